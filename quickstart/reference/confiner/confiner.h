/* confiner [--network] [--terminal] [--host-tools] ROOT COMMAND [ARGUMENT...]: see main.c. */
#ifndef CONFINER_H
#define CONFINER_H

#include <stdbool.h>

/* Status when the command could not be confined, and was not started; as chroot(1) and env(1) have it. */
enum { NOT_CONFINED = 125, CANNOT_RUN = 126, NOT_FOUND = 127 };

/* Ends this process with NOT_CONFINED after a line that says what failed, by errno. */
_Noreturn void fail(const char *what);
/* `result`, unless it is negative: then it fails. */
int must(int result, const char *what);

/* Where an image is for programs of the host. */
#define TARGET "/target"
/* mounts.c: makes `root` the root of this process's mount namespace, with /proc, /sys and /dev, and nothing else in it. With `host_tools`
   its root has the host's programs, read-only, and `root` is TARGET; there must be a directory `root`/dev, which nobody else can swap. */
void enter_root(const char *root, bool host_tools);

/* users.c: puts this process into a user namespace of its own, with the same IDs; `self` is its directory of /proc, open. */
void take_users(int self);
/* users.c: the host's interpreters for other programs (binfmt_misc), as an open directory of one file each; -1 where they are no affair
   of this process's user namespace. */
int list_interpreters(void);
/* users.c: makes them none here, as far as the kernel lets each user namespace have its own (Linux 6.7). One of `list` that is kept open
   (flag F: qemu-user) would be a file of the host's, which root finds by /proc/PID/exe: then nothing is started. */
void forget_interpreters(int list);

/* rights.c: gives up all capabilities but those that packages need, and refuses what is not for them. `network` says that the
   network is the host's. For this process and all that it starts, for good. */
void give_up_rights(bool network);
/* filter.c: the system calls that are refused. */
void refuse_calls(bool network);

#endif
