/* DynamicUser=: the user that systemd makes up, and the directories that only this user's unit sees (docs/internals/dynamic-user.md). When
   systemd adopts the unit, it makes the user and the directories itself. So this code leaves everything as systemd would make and expect it
   (setup_exec_directory in systemd's src/core). */
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* systemd's DYNAMIC_UID_MIN and DYNAMIC_UID_MAX. */
enum { FIRST_MADE_UP = 61184, LAST_MADE_UP = 65519 };
/* From linux/mount.h, which cannot be included together with sys/mount.h. */
enum { CLONE_TREE = 1, FROM_ITSELF = 4, WHOLE_TREE = 0x8000 };
/* A file for each user that this boot has made up: another unit of the stack may want the same number. */
static const char TAKEN[] = "/run/quickstart/made-up-users";

static bool is_made_up(uid_t uid) { return uid >= FIRST_MADE_UP && uid <= LAST_MADE_UP; }

/* Takes the number, unless somebody has it. */
static bool take(uid_t uid) {
    char *word = text("%u", uid), *path = text("%s/%s", TAKEN, word);
    if (!is_made_up(uid) || has_user(word) || has_group(word)) return false;
    make_directories(TAKEN, 0755);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) fail("%s: %m", path);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static char *private_path(const struct record *record) { return text("%s/private/%s", record->words[1], record->words[2]); }

/* The path of the record's directory, if it is one that the unit's user owns. */
static const char *path_of_his(const struct record *record) {
    if (record->count != 3) return NULL;
    if (strcmp(record->key, "private-directory") == 0) return private_path(record);
    return strcmp(record->key, "directory") == 0 && strcmp(record->words[0], "user") == 0 ? record->words[2] : NULL;
}

/* The owner of a directory of the unit, so that nothing has to be given away, or else what the user's name says (pick_uid in systemd's
   src/core/dynamic-user.c). If all of these are taken, systemd takes any number. */
uid_t made_up_number(void) {
    uid_t by_name = (uid_t)number(fact("dynamic-user", NULL));
    struct stat found;
    for (const struct record *r = NULL; (r = next_record(r, NULL));) {
        const char *path = path_of_his(r);
        if (path && stat(path, &found) == 0 && take(found.st_uid)) return found.st_uid;
    }
    if (!take(by_name)) fail("the number %u of the user `%s` is another's", by_name, fact("user", NULL));
    return by_name;
}

/* The directory that keeps everybody but root away from those in it. */
static int open_root(const char *path) {
    struct stat found;
    int fd = walk_directory(path, 0700);
    if (fd < 0) fail("%s cannot be made: %s", path, walk_fault());
    if (fstat(fd, &found) < 0 || found.st_uid != 0 || found.st_gid != 0 || (found.st_mode & 0077)) fail("%s is not root's alone", path);
    return fd;
}

/* Whether the name is a link to the private directory; systemd moves a directory there (and then gives it to the user). */
static bool is_linked(const char *path, const char *target) {
    char found[PATH_MAX];
    ssize_t length = readlink(path, found, sizeof found - 1);
    if (length < 0 && errno == ENOENT) return false;
    if (length < 0) fail("%s is no link to %s", path, target);
    found[length] = '\0';
    if (strcmp(found, target) != 0) fail("%s leads to %s and not to %s", path, found, target);
    return true;
}

/* Whether the directory is nobody's on the volume, and the user's in the unit's namespace. The user may be one of the image. */
static int mapped_tree(int directory, const struct identity *who) {
    bool maps = strcmp(fact("map-owners", "no"), "yes") == 0 && who->uid != 0 && who->gid != 0;
    return maps ? mapped_mount(directory, who->uid, who->gid) : -1;
}

static bool is_owner(const struct stat *found, uid_t uid, gid_t gid) { return found->st_uid == uid && found->st_gid == gid; }

/* Gives a new directory away. An old one has to be the user's: otherwise it is systemd that gives it away, with all that is in it. */
static void check_owner(int directory, const char *path, bool is_new) {
    const struct identity *who = identity();
    struct stat found;
    if (fstat(directory, &found) < 0) fail("%s: %m", path);
    if (is_owner(&found, who->uid, who->gid)) return;
    if (!is_new && !is_owner(&found, NOBODY, NOBODY)) fail("%s belongs to another user", path);
    int tree = mapped_tree(directory, who);
    if (!is_new && tree < 0) fail("%s belongs to nobody", path);
    if (is_new && fchown(directory, tree < 0 ? who->uid : NOBODY, tree < 0 ? who->gid : NOBODY) < 0) fail("%s cannot be given away: %m", path);
    if (tree >= 0) close(tree);
}

/* `private-directory MODE BASE NAME`: BASE/private/NAME, and a link at BASE/NAME. */
void make_private_directory(const struct record *record) {
    const char *name = record->words[2];
    char *link = text("%s/%s", record->words[1], name), *target = text("private/%s", name), *path = private_path(record);
    mode_t mode = (mode_t)number(record->words[0]);
    bool linked = is_linked(link, target);
    int root = open_root(text("%s/private", record->words[1]));
    bool is_new = mkdirat(root, name, mode) == 0;
    if (!is_new && errno != EEXIST) fail("%s cannot be made: %m", path);
    int fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) fail("%s: %m", path);
    check_owner(fd, path, is_new);
    if (fchmod(fd, mode) < 0) fail("%s: %m", path);
    if (!linked && symlink(target, link) < 0) fail("%s cannot be made: %m", link);
    close(fd);
    close(root);
}

/* A mount of the directory that is nowhere yet. */
static int tree_of(const char *path) {
    const struct identity *who = identity();
    struct stat found;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), tree;
    if (directory < 0 || fstat(directory, &found) < 0) fail("%s: %m", path);
    bool is_nobodys = is_owner(&found, NOBODY, NOBODY) && !is_owner(&found, who->uid, who->gid);
    if (is_nobodys) tree = mapped_tree(directory, who);
    else tree = (int)syscall(SYS_open_tree, directory, "", AT_EMPTY_PATH | CLONE_TREE | WHOLE_TREE | O_CLOEXEC);
    if (tree < 0) fail("%s cannot be mounted: %m", path);
    close(directory);
    return tree;
}

static void put_at(int tree, const char *path) {
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, path, FROM_ITSELF) < 0) fail("%s: %m", path);
    close(tree);
}

/* In the unit's namespace, an empty directory in place of BASE/private, with the unit's own directories in it. */
void mount_private_root(const char *path) {
    struct {
        int tree;
        const char *path;
    } own[64];
    size_t count = 0;
    for (const struct record *r = NULL; (r = next_record(r, "private-directory"));) {
        /* As `path` is; systemd follows a link at /var/lib, too. */
        char *each = realpath(private_path(r), NULL);
        if (!each) fail("%s: %m", private_path(r));
        if (!is_below(each, path)) continue;
        if (count == sizeof own / sizeof *own) fail("the unit has too many directories in %s", path);
        own[count].path = each;
        own[count++].tree = tree_of(each);
    }
    if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_STRICTATIME, "mode=755,size=4m,nr_inodes=1k") < 0)
        fail("a tmpfs at %s: %m", path);
    for (size_t i = 0; i < count; i++) {
        if (mkdir(own[i].path, 0755) < 0) fail("%s: %m", own[i].path);
        put_at(own[i].tree, own[i].path);
    }
}

/* A directory of the tmpfs at `path`, as a mount that is nowhere yet. */
static int part_of(const char *path, const char *name) {
    char *part = text("%s/%s", path, name);
    int tree = -1;
    if (mkdir(part, 01777) == 0 && chmod(part, 01777) == 0) tree = (int)syscall(SYS_open_tree, AT_FDCWD, part, CLONE_TREE | O_CLOEXEC);
    if (tree < 0) fail("%s cannot be mounted: %m", part);
    return tree;
}

/* `own-tmp` for /tmp and then for /var/tmp: two directories of one tmpfs (PRIVATE_TMP_DISCONNECTED in systemd's src/core/namespace.c). */
void mount_own_tmp(const char *path) {
    static int var = -1;
    if (var >= 0) {
        put_at(var, path);
        return;
    }
    if (mount("tmpfs", path, "tmpfs", MS_NODEV | MS_STRICTATIME, "mode=0700,size=10%,nr_inodes=400k") < 0) fail("a tmpfs at %s: %m", path);
    int tmp = part_of(path, "tmp");
    var = part_of(path, "var-tmp");
    if (umount2(path, MNT_DETACH) < 0) fail("%s: %m", path);
    put_at(tmp, path);
}
