/* RuntimeDirectory= and similar directives, and the directories for PrivateTmp=. */
#include "starter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void own_below(int directory, uid_t uid, gid_t gid, dev_t volume);

/* A path that leads to the file that is open as `fd`, also if it was opened with O_PATH. */
static const char *by_descriptor(int fd) {
    static char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* The former owner's lists would let others in (path_chown_recursive in systemd's src/shared/chown-recursive.c). */
static void drop_acls(int fd, const char *name) {
    static const char *const LISTS[] = {"system.posix_acl_access", "system.posix_acl_default"};
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++)
        if (removexattr(by_descriptor(fd), LISTS[i]) < 0 && errno != ENODATA && errno != EOPNOTSUPP) fail("%s: %m", name);
}

/* Gives `name` in `parent`, and all below it, to uid and gid. Other file systems are not entered. A name is opened once, and the opened
   file is changed, because the name may lead elsewhere a moment later. */
static void own_entry(int parent, const char *name, uid_t uid, gid_t gid, dev_t volume) {
    struct stat found;
    int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) < 0) fail("%s: %m", name);
    if (found.st_dev == volume) {
        if (fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0) fail("%s cannot be given to the unit's user: %m", name);
        if (!S_ISLNK(found.st_mode)) {
            drop_acls(fd, name);
            /* A change of the owner clears setuid and setgid. */
            if (chmod(by_descriptor(fd), found.st_mode & 07777) < 0) fail("%s: %m", name);
        }
        if (S_ISDIR(found.st_mode)) {
            int directory = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (directory < 0) fail("%s: %m", name);
            own_below(directory, uid, gid, volume);
        }
    }
    close(fd);
}

/* Closes `directory`. */
static void own_below(int directory, uid_t uid, gid_t gid, dev_t volume) {
    DIR *entries = fdopendir(directory);
    if (!entries) fail("fdopendir: %m");
    for (struct dirent *entry; (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) own_entry(directory, entry->d_name, uid, gid, volume);
    closedir(entries);
}

/* A descriptor of the directory, which is made when it is missing. A service may have replaced it by a link before the last shutdown. */
static int directory_at(const char *path, mode_t mode) {
    int fd = walk_directory(path, mode);
    if (fd < 0) fail("%s cannot be made: %s", path, walk_fault());
    return fd;
}

/* `directory user|root MODE PATH`: make it with that mode, and give it to the unit's user if it is not his. One of ConfigurationDirectory=
   (`root`) that is there stays as it is, because somebody may have closed it. A new one belongs to the user, too, whatever systemd.exec(5)
   says (setup_exec_directory in systemd's src/core/execute.c). */
void make_unit_directory(const struct record *record) {
    const struct identity *who = identity();
    const char *path = record->words[2];
    mode_t mode = (mode_t)number(record->words[1]);
    struct stat found;
    if (strcmp(record->words[0], "root") == 0 && access(path, F_OK) == 0) return;
    /* UMask= is set already. To systemd, it does not concern the directories above. */
    mode_t before = umask(0);
    int fd = directory_at(path, mode);
    umask(before);
    if (fstat(fd, &found) < 0) fail("%s: %m", path);
    /* Without User=, it is root's. */
    uid_t uid = who->name ? who->uid : 0;
    gid_t gid = who->has_gid ? who->gid : 0;
    if (found.st_uid != uid || found.st_gid != gid) {
        if (fchown(fd, uid, gid) < 0) fail("%s cannot be given to the unit's user: %m", path);
        drop_acls(fd, path);
        own_below(dup(fd), uid, gid, found.st_dev);
    }
    /* The mode is set after the owner, because a change of the owner clears setuid and setgid. */
    if (fchmod(fd, mode) < 0) fail("%s: %m", path);
    close(fd);
}

/* In these places, every user may have made a directory of the name in an earlier boot (inspect/unit/openplaces.py). */
static bool is_in_open_place(const char *path) {
    static const char *const PLACES[] = {"/tmp/", "/var/tmp/", "/dev/shm/", "/run/lock/"};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++)
        if (strncmp(path, PLACES[i], strlen(PLACES[i])) == 0) return true;
    return false;
}

/* Most of them belong to root, for whom no file of the volume has to be read. */
static uid_t user_of(const char *name) { return strcmp(name, "root") == 0 ? 0 : user_number(name); }
static gid_t group_of(const char *name) { return strcmp(name, "root") == 0 ? 0 : group_number(name); }

/* A word behind a `:` is for a new directory only. */
static bool counts(const char *word, bool is_new) { return is_new || *word != ':'; }
static const char *plain(const char *word) { return word + (*word == ':'); }

/* `run-directory MODE USER GROUP PATH`: systemd-tmpfiles would make it later, and then finds it. What is there already in /run is our own, and
   stays as it is. In an open place, it gets its owner and mode before anybody else runs, as in a stock boot (fd_set_perms in systemd's
   src/tmpfiles/tmpfiles.c). */
static void make_run_directory(char *const *words) {
    const char *path = words[3];
    struct stat found;
    bool is_new = access(path, F_OK) < 0;
    if (!is_new && !is_in_open_place(path)) return;
    int fd = directory_at(path, 0755);
    if (fstat(fd, &found) < 0) fail("%s: %m", path);
    mode_t mode = counts(words[0], is_new) ? (mode_t)number(plain(words[0])) : found.st_mode & 07777;
    uid_t uid = counts(words[1], is_new) ? user_of(plain(words[1])) : found.st_uid;
    gid_t gid = counts(words[2], is_new) ? group_of(plain(words[2])) : found.st_gid;
    bool is_given = found.st_uid != uid || found.st_gid != gid;
    if (is_given && fchown(fd, uid, gid) < 0) fail("%s: %m", path);
    /* A change of the owner clears setuid and setgid. */
    if ((is_given || (found.st_mode & 07777) != mode) && fchmod(fd, mode) < 0) fail("%s: %m", path);
    close(fd);
}

/* The first starter of a stack has made all of them. By the time of the next one, the services that run may have changed theirs. */
static const char MADE[] = "/run/quickstart/directories";

void make_run_directories(void) {
    if (access(MADE, F_OK) == 0) return;
    for (const struct record *r = NULL; (r = next_record(r, "run-directory"));) {
        if (r->count != 4) fail("the description's `run-directory` lacks words");
        make_run_directory(r->words);
    }
    int fd = open(MADE, O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

/* The ID of this boot as 32 digits. systemd-tmpfiles does not clean names that contain it (tmpfiles.d/systemd-tmp.conf). */
static char *boot_id(void) {
    char *id = read_whole("/proc/sys/kernel/random/boot_id", NULL), *to = id;
    if (!id) fail("boot_id: %m");
    for (char *from = id; *from && *from != '\n'; from++)
        if (*from != '-') *to++ = *from;
    *to = '\0';
    return id;
}

static char *temporary, *temporary_var;

static char *private_below(const char *parent) {
    char *outer = text("%s/systemd-private-%s-%s-XXXXXX", parent, boot_id(), fact("unit", NULL));
    if (!mkdtemp(outer)) fail("%s cannot be made: %m", outer);
    char *inner = text("%s/tmp", outer);
    if (mkdir(inner, 01777) < 0 || chmod(inner, 01777) < 0) fail("%s cannot be made: %m", inner);
    return inner;
}

/* The starter itself makes them, because all commands of the unit share them. */
void make_private_tmp(void) {
    if (strcmp(fact("private-tmp", "no"), "yes") != 0) return;
    temporary = private_below("/tmp");
    temporary_var = private_below("/var/tmp");
}

/* The directory that is bound over /tmp or /var/tmp. */
const char *private_tmp(const char *of) { return strcmp(of, "/tmp") == 0 ? temporary : temporary_var; }
