/* Executes a program as PID 1 would, with nothing of what the settings of a unit give to its processes. systemd gives a command with `+` all rights
   (systemd.service(5)), but the unit's mounts, working directory and environment, too, and these may be the application's to write. With Delegate=,
   its control group may be, too, and who may freeze a program may have it act on what has changed meanwhile. */
#include "caretaker.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { AFTER_STDERR = 3, USUAL_UMASK = 022 };

/* The mount namespace comes last: PID 1's /proc need not be what the unit's was. It brings PID 1's root, and that as the working directory. */
static bool enter_namespaces(void) {
    static const struct {
        const char *name;
        int type;
    } spaces[] = {{"1/ns/net", CLONE_NEWNET}, {"1/ns/ipc", CLONE_NEWIPC}, {"1/ns/uts", CLONE_NEWUTS}};
    dev_t device;
    ino_t inode;
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int mounts = proc < 0 ? -1 : open_namespace(proc, "1", &device, &inode);
    if (mounts < 0) return false;
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        /* A kernel may have no namespaces of one kind. */
        int space = openat(proc, spaces[i].name, O_RDONLY | O_CLOEXEC);
        if (space >= 0 && setns(space, spaces[i].type) < 0) return false;
    }
    return setns(mounts, CLONE_NEWNS) == 0;
}

/* What the program says goes to the kernel's log, and not to a file of the unit's (StandardError=). */
static bool take_own_descriptors(void) {
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC), log = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0) return false;
    if (dup2(log < 0 ? nothing : log, STDERR_FILENO) < 0) return false;
    return syscall(SYS_close_range, AFTER_STDERR, ~0U, 0) == 0;
}

/* The root of the hierarchy is nobody's but root's. systemd still knows the program by its number. */
static bool leave_group(void) {
    int root = open("/sys/fs/cgroup/cgroup.procs", O_WRONLY | O_CLOEXEC);
    bool done = root >= 0 && write(root, "0", 1) == 1;
    if (root >= 0) close(root);
    return done;
}

bool leave_unit(char **program) {
    static char notify[] = "NOTIFY_SOCKET=/run/systemd/notify";
    char *environment[] = {notify, NULL};
    if (!enter_namespaces()) return complain("cannot enter the namespaces of", "PID 1");
    if (!leave_group()) return complain("cannot leave", "the unit's control group");
    if (!take_own_descriptors()) return complain("cannot open", "/dev/null");
    umask(USUAL_UMASK);
    execve(program[0], program, environment);
    return complain("cannot execute", program[0]);
}
