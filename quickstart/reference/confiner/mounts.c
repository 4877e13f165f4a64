/*
 * Replaces the host's root by the image's, with the mount API of descriptors (fsopen(2), open_tree(2), mount_setattr(2); Linux 5.12).
 *
 * The mounts for the image are made before we leave the host's root, and attached afterwards. The image's links can then lead nowhere but
 * into the image.
 */
#define _GNU_SOURCE
#include "confiner.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From linux/mount.h, which cannot be included because it shares names with sys/mount.h. */
#define OPEN_TREE_CLONE 1
#define MOVE_MOUNT_F_EMPTY_PATH 0x4
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#define FSOPEN_CLOEXEC 1
#define FSMOUNT_CLOEXEC 1
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_CMD_CREATE 6
#define RECURSIVE 0x8000
#define ATTR_RDONLY 0x1
#define ATTR_NOSUID 0x2
#define ATTR_NODEV 0x4
#define ATTR_NOEXEC 0x8
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
struct attributes {
    unsigned long long set, clear, propagation, userns_fd;
};

static const char *const NODES[] = {"null", "zero", "full", "random", "urandom", "tty"};
enum { NODES_COUNT = sizeof NODES / sizeof NODES[0] };

/* What --host-tools shows of the host. Links in the root directory are copied (/bin is usr/bin); links in /etc are followed. */
static const char *const TOOLS[] = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"};
/* Settings for finding programs, and for the names of the network. */
static const char *const SETTINGS[] = {"/etc/alternatives", "/etc/gai.conf",      "/etc/host.conf",   "/etc/hosts",
                                       "/etc/ld.so.cache",  "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/wgetrc"};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* A file of the host: an open descriptor, or the text of a link; neither when the host does not have it. */
struct loan {
    int fd;
    char link[128];
};
struct loans {
    struct loan tools[COUNT(TOOLS)], settings[COUNT(SETTINGS)];
};

static void set_attributes(int tree, unsigned flags, unsigned long long set, const char *what) {
    struct attributes change = {.set = set, .propagation = MS_PRIVATE};
    must((int)syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | flags, &change, sizeof change), what);
}

/* A copy of the mount at the open file `fd`, which is not attached yet. With RECURSIVE in `flags`, mounts below it are copied, too. */
static int copy_of(int fd, unsigned flags, unsigned long long set, const char *what) {
    int tree = must((int)syscall(SYS_open_tree, fd, "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | flags), what);
    set_attributes(tree, flags, set, what);
    return tree;
}

/* A new file system. `options` are alternating names and values, ended by NULL. */
static int mount_of(const char *type, const char *const *options, unsigned attributes) {
    int fs = must((int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), type);
    for (; *options; options += 2) must((int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, options[0], options[1], 0), type);
    must((int)syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), type);
    int tree = must((int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes), type);
    close(fs);
    return tree;
}

static void attach(int tree, const char *name) { must((int)syscall(SYS_move_mount, tree, "", AT_FDCWD, name, MOVE_MOUNT_F_EMPTY_PATH), name); }

/*
 * From here on, no mount is seen outside. In a plain chroot, "/" is no mount: its propagation cannot be changed, and pivot_root(2) cannot
 * leave it. So we enter our own mount namespace again, which leads to its real root (setns(2)).
 */
static void leave_chroot(void) {
    int own = must(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), "/proc/self/ns/mnt");
    must(setns(own, CLONE_NEWNS), "the root of the mount namespace");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    close(own);
}

/* Read-only, because a node's mode and owner belong to the host's file system. A device can still be read and written. */
static int node_of(int node, const char *name) { return copy_of(node, 0, ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC, name); }

static void make_file(const char *name) { close(must(open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), name)); }

/* Make a /dev at `place`. `nodes` are nodes of the host. */
static void furnish_dev(const char *place, int dev, const int *nodes) {
    char name[64];
    attach(dev, place);
    must(chdir(place), place);
    for (int each = 0; each < NODES_COUNT; each++) {
        snprintf(name, sizeof name, "%s/%s", place, NODES[each]);
        make_file(name);
        attach(nodes[each], name);
    }
    must(mkdir("shm", 0755), "/dev/shm");
    must(mkdir("pts", 0755), "/dev/pts");
    must(symlink("/proc/self/fd", "fd"), "/dev/fd");
    must(chdir("/"), "/");
}

static int open_if_there(const char *name) {
    int fd = open(name, O_PATH | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR) fail(name);
    return fd;
}

static void borrow(struct loans *loans) {
    for (unsigned each = 0; each < COUNT(TOOLS); each++) {
        struct loan *loan = &loans->tools[each];
        *loan = (struct loan){.fd = -1};
        ssize_t length = readlink(TOOLS[each], loan->link, sizeof loan->link - 1);
        if (length < 0) loan->fd = open_if_there(TOOLS[each]);
    }
    for (unsigned each = 0; each < COUNT(SETTINGS); each++) loans->settings[each] = (struct loan){.fd = open_if_there(SETTINGS[each])};
}

/* Call this when the host's root is private, and before we leave it. */
static void copy_loan(struct loan *loan, const char *name) {
    if (loan->fd >= 0) loan->fd = copy_of(loan->fd, RECURSIVE, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, name);
}

static void show(const struct loan *loan, const char *name) {
    struct stat status;
    if (loan->link[0]) must(symlink(loan->link, name), name);
    if (loan->fd < 0) return;
    must(fstat(loan->fd, &status), name);
    if (S_ISDIR(status.st_mode)) must(mkdir(name, 0755), name);
    else make_file(name);
    attach(loan->fd, name);
}

/* The root directory of --host-tools: the host's programs, read-only, and the image as TARGET. Only writes to the image are kept. */
static void furnish_tools(const struct loans *loans, int image, int scratch) {
    static const char *const PLACES[] = {"/dev", "/etc", "/etc/apt", "/etc/apt/apt.conf.d", "/proc", "/root", "/sys", "/tmp", TARGET};
    for (unsigned each = 0; each < COUNT(PLACES); each++) must(mkdir(PLACES[each], 0755), PLACES[each]);
    for (unsigned each = 0; each < COUNT(TOOLS); each++) show(&loans->tools[each], TOOLS[each]);
    for (unsigned each = 0; each < COUNT(SETTINGS); each++) show(&loans->settings[each], SETTINGS[each]);
    /* Debian's own users: tar(1) finds the owners of a package's files by them. A package needs to know nothing of the host's users. */
    must(symlink("/usr/share/base-passwd/passwd.master", "/etc/passwd"), "/etc/passwd");
    must(symlink("/usr/share/base-passwd/group.master", "/etc/group"), "/etc/group");
    attach(scratch, "/tmp");
    attach(image, TARGET);
}

static void pivot(int tree, int place, const char *root) {
    must((int)syscall(SYS_move_mount, tree, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH), root);
    must(fchdir(tree), root);
    must((int)syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "the host's root");
    must(chdir("/"), "/");
}

/* Enter a root directory with the host's programs and an image. No program of the image runs. */
static void enter_tools(int place, int image, struct loans *loans, const int *nodes) {
    static const char *const SMALL[] = {"mode", "0755", "size", "1m", NULL};
    static const char *const SCRATCH[] = {"mode", "1777", "size", "16m", NULL};
    int seen[NODES_COUNT];
    for (unsigned each = 0; each < COUNT(TOOLS); each++) copy_loan(&loans->tools[each], TOOLS[each]);
    for (unsigned each = 0; each < COUNT(SETTINGS); each++) copy_loan(&loans->settings[each], SETTINGS[each]);
    for (int each = 0; each < NODES_COUNT; each++) seen[each] = node_of(nodes[each], NODES[each]);
    int tree = mount_of("tmpfs", SMALL, ATTR_NOSUID | ATTR_NODEV);
    int scratch = mount_of("tmpfs", SCRATCH, ATTR_NOSUID | ATTR_NODEV);
    int dev = mount_of("tmpfs", SMALL, ATTR_NOSUID | ATTR_NOEXEC);
    pivot(tree, place, "the host's programs");
    furnish_tools(loans, image, scratch);
    /* debootstrap tests for nodes, and makes those that it does not find. This /dev vanishes when this process ends. */
    furnish_dev(TARGET "/dev", dev, seen);
    make_file(TARGET "/dev/console");
    make_file(TARGET "/dev/ptmx");
    set_attributes(tree, 0, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, "/");
}

void enter_root(const char *root, bool host_tools) {
    static const char *const NO_OPTIONS[] = {NULL};
    static const char *const SMALL[] = {"mode", "0755", "size", "1m", NULL};
    int nodes[NODES_COUNT], copies[NODES_COUNT];
    struct loans loans;
    int place = must(open(root, O_PATH | O_DIRECTORY | O_CLOEXEC), root);
    int host_dev = must(open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC), "/dev");
    for (int each = 0; each < NODES_COUNT; each++) nodes[each] = must(openat(host_dev, NODES[each], O_PATH | O_NOFOLLOW | O_CLOEXEC), NODES[each]);
    if (host_tools) borrow(&loans);
    leave_chroot();
    for (int each = 0; each < NODES_COUNT; each++) copies[each] = node_of(nodes[each], NODES[each]);
    /* Without any capability, root may write to all of /proc/sys. Nothing in its own processes' directories needs an exception. */
    int proc = mount_of("proc", NO_OPTIONS, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
    /* An image must not see the host's devices and control groups. */
    int sys = mount_of("tmpfs", SMALL, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
    int dev = mount_of("tmpfs", SMALL, ATTR_NOSUID | ATTR_NOEXEC);
    int image = copy_of(place, 0, ATTR_NODEV, root);
    if (host_tools) enter_tools(place, image, &loans, nodes);
    else pivot(image, place, root);
    attach(proc, "/proc");
    attach(sys, "/sys");
    furnish_dev("/dev", dev, copies);
}
