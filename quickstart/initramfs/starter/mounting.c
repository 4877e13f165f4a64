/* Makes one mount in the unit's own namespace. */
#include "starter.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/types.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { READ_ONLY_ATTRIBUTE = 1, NOSUID_ATTRIBUTE = 2, NOEXEC_ATTRIBUTE = 8, MOUNT_POINT_FIELD = 4 };

/* For open_tree(2) and move_mount(2), and struct mount_attr: of linux/mount.h, which cannot be included together with sys/mount.h. */
enum { CLONED_TREE = 1, FROM_ITSELF = 4, TO_ITSELF = 0x40, WHOLE_TREE = 0x8000, ITSELF = 0x1000 };
struct attributes {
    __u64 set, clear, propagation, user_namespace;
};

/* proc(5): mountinfo has space, tab, newline and backslash as \ooo. */
static void unescape(char *path) {
    char *to = path;
    for (; *path; path++) {
        bool escaped = path[0] == '\\' && isdigit((unsigned char)path[1]) && isdigit((unsigned char)path[2]) && isdigit((unsigned char)path[3]);
        *to++ = escaped ? (char)((path[1] - '0') << 6 | (path[2] - '0') << 3 | (path[3] - '0')) : *path;
        if (escaped) path += 3;
    }
    *to = '\0';
}

/* The mount points at and below `prefix`, in the order in which they were mounted. */
static struct list mount_points(const char *prefix) {
    struct list found = {0};
    char *lines = read_whole("/proc/self/mountinfo", NULL);
    if (!lines) fail("/proc/self/mountinfo: %m");
    for (char *line; (line = strsep(&lines, "\n")) && *line;) {
        char *field = NULL;
        for (int i = 0; i <= MOUNT_POINT_FIELD; i++) field = strsep(&line, " ");
        if (!field) continue;
        unescape(field);
        if (is_below(field, prefix)) append(&found, field);
    }
    return found;
}

static bool is_mount_point(const char *path) {
    struct list found = mount_points(path);
    for (size_t i = 0; i < found.count; i++)
        if (strcmp(found.items[i], path) == 0) return true;
    return false;
}

/* Unmounts the last mount first. A mount that stays is covered by the next one. */
static void unmount_all(const char *path) {
    struct list found = mount_points(path);
    while (found.count) umount2(found.items[--found.count], UMOUNT_NOFOLLOW);
}

static void bind(const char *source, const char *path, unsigned long flags) {
    if (mount(source, path, NULL, MS_BIND | flags, NULL) < 0) fail("%s cannot be bound to %s: %m", source, path);
}

/* Processes of the application may run by now, and change what is in its directories: no link is followed on the way. */
static int open_place(const char *path, uint64_t flags) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

/* Binds `source` over `path`. Without a source, what is at the path is bound over itself: the path is looked up once, and not for the source and
   the target. */
static void lay_over(const char *source, const char *path, bool with_all_below) {
    unsigned flags = CLONED_TREE | O_CLOEXEC | (with_all_below ? WHOLE_TREE : 0);
    int place = open_place(path, 0);
    if (place < 0) fail("%s: %m", path);
    int tree = (int)(source ? syscall(SYS_open_tree, AT_FDCWD, source, flags) : syscall(SYS_open_tree, place, "", flags | ITSELF));
    if (tree < 0 || syscall(SYS_move_mount, tree, "", place, "", FROM_ITSELF | TO_ITSELF) < 0)
        fail("%s cannot be bound to %s: %m", source ? source : path, path);
    close(tree);
    close(place);
}

static const char *inaccessible_node(const char *path) {
    struct stat found;
    if (lstat(path, &found) < 0) fail("%s: %m", path);
    if (S_ISDIR(found.st_mode)) return "/run/systemd/inaccessible/dir";
    if (S_ISCHR(found.st_mode)) return "/run/systemd/inaccessible/chr";
    if (S_ISBLK(found.st_mode)) return "/run/systemd/inaccessible/blk";
    if (S_ISFIFO(found.st_mode)) return "/run/systemd/inaccessible/fifo";
    if (S_ISSOCK(found.st_mode)) return "/run/systemd/inaccessible/sock";
    return "/run/systemd/inaccessible/reg";
}

/* The node covers the path already, in a namespace that was made before. */
static bool is_inaccessible(const char *path, const char *node) {
    struct stat found, covering;
    return lstat(path, &found) == 0 && lstat(node, &covering) == 0 && found.st_dev == covering.st_dev && found.st_ino == covering.st_ino;
}

static void make_inaccessible(const char *path) {
    const char *node = inaccessible_node(path);
    if (!is_inaccessible(path, node)) lay_over(node, path, true);
}

static void same_device(const char *root, const char *name) {
    struct stat found;
    char *from = text("/dev/%s", name), *to = text("%s/%s", root, name);
    if (stat(from, &found) < 0) {
        if (errno == ENOENT) return;
        fail("%s: %m", from);
    }
    if (!S_ISCHR(found.st_mode)) fail("%s is no character device", from);
    if (mknod(to, found.st_mode, found.st_rdev) < 0) fail("%s cannot be made: %m", to);
}

static void link_in(const char *root, const char *name, const char *target) {
    char *path = text("%s/%s", root, name);
    if (symlink(target, path) < 0) fail("%s cannot be made: %m", path);
}

static void share_in(const char *root, const char *name) {
    char *from = text("/dev/%s", name), *to = text("%s/%s", root, name);
    if (access(from, F_OK) < 0) return;
    if (mkdir(to, 0755) < 0) fail("%s: %m", to);
    bind(from, to, 0);
}

/* PrivateDevices=: a /dev with only the devices that are not hardware of the machine. */
static void mount_private_dev(const char *path) {
    static const char *const DEVICES[] = {"null", "zero", "full", "random", "urandom", "tty", NULL};
    static const char *const SHARED[] = {"pts", "shm", "mqueue", "hugepages", NULL};
    char root[] = "/run/quickstart-dev-XXXXXX", target[64];
    mode_t before = umask(0);
    if (!mkdtemp(root)) fail("%s: %m", root);
    if (mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_STRICTATIME | MS_NOEXEC, "mode=755,nr_inodes=64k,size=4m") < 0) fail("a private /dev: %m");
    for (size_t i = 0; SHARED[i]; i++) share_in(root, SHARED[i]);
    for (size_t i = 0; DEVICES[i]; i++) same_device(root, DEVICES[i]);
    ssize_t length = readlink("/dev/ptmx", target, sizeof target - 1);
    if (length > 0) {
        target[length] = '\0';
        link_in(root, "ptmx", target);
    } else {
        same_device(root, "ptmx");
    }
    link_in(root, "log", "/run/systemd/journal/dev-log");
    link_in(root, "core", "/proc/kcore");
    link_in(root, "fd", "/proc/self/fd");
    link_in(root, "stdin", "/proc/self/fd/0");
    link_in(root, "stdout", "/proc/self/fd/1");
    link_in(root, "stderr", "/proc/self/fd/2");
    unmount_all(path);
    if (mount(root, path, NULL, MS_MOVE, NULL) < 0) fail("a private /dev: %m");
    rmdir(root);
    umask(before);
}

/* A detached mount of each mount point below `path`. -1 where there is none: for `path` itself, and for a mount below another one. */
static int *detached_below(const char *path, const struct list *points) {
    int *trees = must(calloc(points->count + 1, sizeof *trees));
    for (size_t i = 0; i < points->count; i++) {
        bool is_hidden = strcmp(points->items[i], path) == 0;
        for (size_t later = i + 1; later < points->count; later++) is_hidden |= strcmp(points->items[i], points->items[later]) == 0;
        trees[i] = is_hidden ? -1 : (int)syscall(SYS_open_tree, AT_FDCWD, points->items[i], CLONED_TREE | O_CLOEXEC);
    }
    return trees;
}

/* A new /sys shows the devices of the present network namespace. What is mounted below the old one is there again, as far as there is a place:
   systemd passes by what it cannot mount, too (bind_mount_submounts). */
static void mount_fresh_sys(const char *path) {
    struct list points = mount_points(path);
    int *trees = detached_below(path, &points);
    unmount_all(path);
    if (mount("sysfs", path, "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0) fail("a /sys of its own: %m");
    for (size_t i = 0; i < points.count; i++) {
        if (trees[i] < 0) continue;
        syscall(SYS_move_mount, trees[i], "", AT_FDCWD, points.items[i], FROM_ITSELF);
        close(trees[i]);
    }
    free(trees);
}

void mount_entry(const struct mount_entry *entry) {
    char *source = NULL;
    /* An earlier mount may have hidden it: a private /dev has no /dev/kmsg. */
    if (entry->optional && access(entry->path, F_OK) < 0 && errno == ENOENT) return;
    switch (entry->kind) {
    case INACCESSIBLE:
        make_inaccessible(entry->path);
        break;
    case BIND:
    case BIND_ALL:
        if (!(source = realpath(entry->source, NULL))) fail("%s: %m", entry->source);
        lay_over(source, entry->path, entry->kind == BIND_ALL);
        break;
    case PRIVATE_TMP:
        bind(private_tmp(entry->path), entry->path, MS_REC);
        break;
    case PRIVATE_DEV:
        mount_private_dev(entry->path);
        break;
    case PRIVATE_ROOT:
        mount_private_root(entry->path);
        break;
    case OWN_TMP:
        mount_own_tmp(entry->path);
        break;
    case EMPTY_TMPFS:
        unmount_all(entry->path);
        if (mount("tmpfs", entry->path, "tmpfs", *entry->options ? MS_NODEV | MS_STRICTATIME : 0, entry->options) < 0)
            fail("a tmpfs at %s: %m", entry->path);
        break;
    case AS_IT_IS:
        break;
    case FRESH_SYS:
        mount_fresh_sys(entry->path);
        break;
    case FRESH_PROC:
        unmount_all(entry->path);
        if (mount("proc", entry->path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, *entry->options ? entry->options : NULL) < 0)
            fail("a /proc of its own: %m");
        break;
    case READ_ONLY:
    case READ_WRITE:
    case NO_EXEC:
    case EXEC:
    case READ_WRITE_IMPLICIT:
        if (!is_mount_point(entry->path)) lay_over(NULL, entry->path, true);
    }
    free(source);
}

/* Whether the entry binds a packed file over the volume's; it has to look like the volume's. */
static bool is_laid_over(const struct mount_entry *entry) {
    bool bound = entry->kind == BIND || entry->kind == BIND_ALL;
    return bound && is_below(entry->source, FAST) && strcmp(entry->source + strlen(FAST), entry->path) == 0;
}

/* Whether a mount point below the entry `which` belongs to a deeper entry, which has its own rule. */
static bool is_anothers(const char *point, const struct mount_entry *entries, size_t count, size_t which, bool but_laid_over) {
    for (size_t i = 0; i < count; i++)
        if (i != which && !(but_laid_over && is_laid_over(&entries[i])) && strcmp(entries[i].path, entries[which].path) != 0 &&
            is_below(entries[i].path, entries[which].path) && is_below(point, entries[i].path))
            return true;
    return false;
}

static void change_attributes(const char *point, __u64 set, __u64 clear) {
    struct attributes wanted = {.set = set, .clear = clear};
    /* As a directory, it is mounted where an automount is to mount it. */
    int place = open_place(point, O_DIRECTORY);
    if (place < 0 && errno != ENOENT) place = open_place(point, 0);
    if (place < 0 && errno == ENOENT) return;
    bool done = place >= 0 && syscall(SYS_mount_setattr, place, "", ITSELF, &wanted, sizeof wanted) == 0;
    int error = errno;
    if (place >= 0) close(place);
    /* The boot continues meanwhile, and may have unmounted it. */
    if (done || (error == EINVAL && !is_mount_point(point))) return;
    errno = error;
    fail("%s cannot be made read-only, nosuid or noexec: %m", point);
}

void make_read_only(const struct mount_entry *entries, size_t count, size_t which) {
    const struct mount_entry *entry = &entries[which];
    /* What is shared in a private /dev is read-only only with ReadOnlyPaths=/dev, too. */
    bool alone = (entry->kind == PRIVATE_DEV && !entry->read_only) || entry->kind == PRIVATE_ROOT || entry->kind == EMPTY_TMPFS;
    struct list points = mount_points(entry->path);
    for (size_t i = 0; i < points.count; i++) {
        const char *point = points.items[i];
        if ((alone && strcmp(point, entry->path) != 0) || is_anothers(point, entries, count, which, false)) continue;
        change_attributes(point, READ_ONLY_ATTRIBUTE, 0);
    }
}

void make_executable_or_not(const struct mount_entry *entries, size_t count, size_t which) {
    const struct mount_entry *entry = &entries[which];
    struct list points = mount_points(entry->path);
    for (size_t i = 0; i < points.count; i++) {
        const char *point = points.items[i];
        if ((entry->kind == EMPTY_TMPFS && strcmp(point, entry->path) != 0) || is_anothers(point, entries, count, which, true)) continue;
        change_attributes(point, entry->no_exec ? NOEXEC_ATTRIBUTE : 0, entry->no_exec ? 0 : NOEXEC_ATTRIBUTE);
    }
}

void make_nosuid(const struct mount_entry *entry) {
    struct list points = mount_points(entry->path);
    for (size_t i = 0; i < points.count; i++)
        if (entry->kind != EMPTY_TMPFS || strcmp(points.items[i], entry->path) == 0) change_attributes(points.items[i], NOSUID_ATTRIBUTE, 0);
}
