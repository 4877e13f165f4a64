/* confiner [--network] [--terminal] [--host-tools] ROOT COMMAND [ARGUMENT...]: see main.c. */
#ifndef CONFINER_H
#define CONFINER_H

#include <stdbool.h>

/* The status when the command could not be confined and was not started. The values are those of chroot(1) and env(1). */
enum { NOT_CONFINED = 125, CANNOT_RUN = 126, NOT_FOUND = 127 };

/* Ends this process with NOT_CONFINED after a line that says what failed, with errno's text. */
_Noreturn void fail(const char *what);
/* Returns `result`; for a negative one, it calls fail(). */
int must(int result, const char *what);

/* The path of the image for programs of the host. */
#define TARGET "/target"
/* mounts.c: makes `root` the root of this process's mount namespace, with /proc, /sys and /dev, and nothing else in it. With `host_tools`
   its root has the host's programs, read-only, and `root` is TARGET; there must be a directory `root`/dev, which nobody else can swap. */
void enter_root(const char *root, bool host_tools);

/* users.c: puts this process into a user namespace of its own, with the same IDs. `self` is its open directory in /proc. */
void take_users(int self);
/* users.c: the host's interpreters for other programs (binfmt_misc), as an open directory with a file for each. -1 where they cannot
   affect this process's user namespace. */
int list_interpreters(void);
/* users.c: removes them here, where the kernel lets each user namespace have its own (Linux 6.7). An interpreter in `list` that is kept
   open (flag F: qemu-user) is a file of the host, which root could reach by /proc/PID/exe. In this case nothing is started. */
void forget_interpreters(int list);

/* rights.c: gives up all capabilities but those that packages need, and filters the system calls. `network` means that the network is
   the host's. This holds for this process and all that it starts, and cannot be undone. */
void give_up_rights(bool network);
/* filter.c: refuses system calls. */
void refuse_calls(bool network);

#endif
