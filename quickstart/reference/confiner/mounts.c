/*
 * The root of the image in place of the host's, by the mount API of descriptors (fsopen(2), open_tree(2), mount_setattr(2); Linux 5.12).
 *
 * What goes into the image is made before the host's root is left, and put there afterwards, by names that the image's links lead
 * nowhere else but into the image.
 */
#define _GNU_SOURCE
#include "confiner.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/mount.h, which has names that sys/mount.h has as well. */
#define OPEN_TREE_CLONE 1
#define MOVE_MOUNT_F_EMPTY_PATH 0x4
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#define FSOPEN_CLOEXEC 1
#define FSMOUNT_CLOEXEC 1
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_CMD_CREATE 6
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

/* A copy of what is mounted at the open file `fd`, not attached anywhere yet. */
static int copy_of(int fd, unsigned long long set, const char *what)
{
	struct attributes change = {.set = set, .propagation = MS_PRIVATE};
	int tree = must((int)syscall(SYS_open_tree, fd, "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH), what);
	must((int)syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &change, sizeof change), what);
	return tree;
}

/* A new file system; `options` are names and values in turn, ended by NULL. */
static int mount_of(const char *type, const char *const *options, unsigned attributes)
{
	int fs = must((int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), type);
	for (; *options; options += 2)
		must((int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, options[0], options[1], 0), type);
	must((int)syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), type);
	int tree = must((int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes), type);
	close(fs);
	return tree;
}

static void attach(int tree, const char *name)
{
	must((int)syscall(SYS_move_mount, tree, "", AT_FDCWD, name, MOVE_MOUNT_F_EMPTY_PATH), name);
}

/*
 * Nothing that is mounted from here on is seen outside. "/" may be no mount here (a bare chroot), whose propagation could not be
 * changed and which pivot_root(2) could not leave: to enter one's own mount namespace anew leads to its real root (setns(2)).
 */
static void leave_chroot(void)
{
	int own = must(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), "/proc/self/ns/mnt");
	must(setns(own, CLONE_NEWNS), "the root of the mount namespace");
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
	close(own);
}

static void furnish_dev(int dev, const int *nodes)
{
	attach(dev, "/dev");
	for (int each = 0; each < NODES_COUNT; each++) {
		char name[32] = "/dev/";
		size_t end = 5;
		for (const char *from = NODES[each]; *from; from++)
			name[end++] = *from;
		close(must(open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), name));
		attach(nodes[each], name);
	}
	must(mkdir("/dev/shm", 0755), "/dev/shm");
	must(mkdir("/dev/pts", 0755), "/dev/pts");
	must(symlink("/proc/self/fd", "/dev/fd"), "/dev/fd");
}

void enter_root(const char *root)
{
	static const char *const NO_OPTIONS[] = {NULL};
	static const char *const SMALL[] = {"mode", "0755", "size", "1m", NULL};
	int nodes[NODES_COUNT];
	int place = must(open(root, O_PATH | O_DIRECTORY | O_CLOEXEC), root);
	int host_dev = must(open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC), "/dev");
	for (int each = 0; each < NODES_COUNT; each++)
		nodes[each] = must(openat(host_dev, NODES[each], O_PATH | O_NOFOLLOW | O_CLOEXEC), NODES[each]);
	leave_chroot();
	/* Read-only: what a device reads and writes is not of the file system, its mode and owner are, and the host's. */
	for (int each = 0; each < NODES_COUNT; each++)
		nodes[each] = copy_of(nodes[each], ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC, NODES[each]);
	/* All of /proc/sys is root's to write, without any capability; of its own processes nothing is worth an exception. */
	int proc = mount_of("proc", NO_OPTIONS, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
	/* The host's devices and control groups are no affair of an image's. */
	int sys = mount_of("tmpfs", SMALL, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
	int dev = mount_of("tmpfs", SMALL, ATTR_NOSUID | ATTR_NOEXEC);
	int image = copy_of(place, ATTR_NODEV, root);
	must((int)syscall(SYS_move_mount, image, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH), root);
	must(fchdir(image), root);
	must((int)syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "the host's root");
	must(chdir("/"), "/");
	attach(proc, "/proc");
	attach(sys, "/sys");
	furnish_dev(dev, nodes);
}
