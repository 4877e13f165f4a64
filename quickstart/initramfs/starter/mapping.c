/* ID-mapped mounts, in which files that belong to nobody on the volume belong to the unit's user (mount_setattr(2), "ID-mapped mounts").
   systemd 257 mounts the directories of a unit with DynamicUser= in this way, so the files on the volume need no new owner
   (setup_exec_directory in systemd's src/core/exec-invoke.c). */
#include "starter.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* From linux/mount.h, which cannot be included together with sys/mount.h. */
enum { CLONE_TREE = 1, NOSUID = 2, NODEV = 4, NOEXEC = 8, MAPPED = 0x100000 };
struct attributes {
    uint64_t set, clear, propagation, user_namespace;
};

/* Of a namespace with these users; -1 if there can be none. The process in it ends; the descriptor keeps the namespace. */
static int user_namespace(const char *users, const char *groups) {
    int ready[2];
    char byte = 0;
    if (pipe2(ready, O_CLOEXEC) < 0) fail("pipe: %m");
    pid_t inside = fork();
    if (inside < 0) fail("fork: %m");
    if (inside == 0) {
        /* A parent that fails meanwhile leaves nobody in the unit's group. Not before: unshare(2) would undo it (prctl(2)). */
        if (unshare(CLONE_NEWUSER) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    int fd = -1;
    if (read(ready[0], &byte, 1) == 1) {
        write_whole(text("/proc/%d/uid_map", (int)inside), users);
        write_whole(text("/proc/%d/gid_map", (int)inside), groups);
        fd = open(text("/proc/%d/ns/user", (int)inside), O_RDONLY | O_CLOEXEC);
    }
    close(ready[0]);
    kill(inside, SIGKILL);
    waitpid(inside, NULL, 0);
    return fd;
}

/* Nobody's number is this one, and root stays root. */
static char *map_of(unsigned number) { return text("%d %u 1\n%s", NOBODY, number, number == 0 ? "" : "0 0 1\n"); }

/* A mount of the directory, which is nowhere yet, on which nobody's files are the user's; -1 where the file system or the kernel has no such
   mounts. */
int mapped_mount(int directory, uid_t uid, gid_t gid) {
    int users = user_namespace(map_of(uid), map_of(gid));
    if (users < 0) return -1;
    struct attributes wanted = {.set = MAPPED | NOSUID | NODEV | NOEXEC, .user_namespace = (uint64_t)users};
    int tree = (int)syscall(SYS_open_tree, directory, "", AT_EMPTY_PATH | CLONE_TREE | O_CLOEXEC);
    bool done = tree >= 0 && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) == 0;
    close(users);
    if (done || tree < 0) return tree;
    close(tree);
    return -1;
}
