/*
 * confiner [--network] [--terminal] [--host-tools] ROOT COMMAND [ARGUMENT...]
 *
 * Runs COMMAND as root of an image and of nothing else. It has namespaces of its own (mount, PID, IPC, UTS, cgroup, user; network unless
 * --network), ROOT as its root directory with nothing of the host in sight, few capabilities (rights.c) and a filter of system calls
 * (filter.c). With --terminal its stdin becomes its controlling terminal. Its status is COMMAND's, 128 + N after signal N.
 *
 * With --host-tools, COMMAND is a program of the host instead, which sees ROOT as /target. Of the host, it sees /usr and a few files of
 * /etc, read-only (mounts.c).
 *
 * All descriptors except stdin, stdout and stderr are closed. These three must be pipes, or a terminal that no one else uses, because root
 * may change the mode and the owner of any file behind a descriptor.
 *
 * It has to be started with all of root's capabilities, of the host or of a user namespace.
 */
#define _GNU_SOURCE
#include "confiner.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

struct task {
    bool network, terminal, host_tools;
    char *root;
    char **command;
};

_Noreturn void fail(const char *what) {
    fprintf(stderr, "confiner: %s: %s\n", what, strerror(errno));
    _exit(NOT_CONFINED);
}

int must(int result, const char *what) {
    if (result < 0) fail(what);
    return result;
}

static int status_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

static void loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "a socket");
    must(ioctl(fd, SIOCSIFFLAGS, &request), "the loopback interface");
    close(fd);
}

static _Noreturn void run_command(const struct task *task) {
    setsid();
    if (task->terminal) must(ioctl(0, TIOCSCTTY, 0), "the terminal");
    execvp(task->command[0], task->command);
    int number = errno;
    fprintf(stderr, "%s: %s\n", task->command[0], number == ENOENT ? "not found" : strerror(number));
    _exit(number == ENOENT ? NOT_FOUND : CANNOT_RUN);
}

/* This process ends with the process outside, which may already have ended. */
static void die_with(int outside) {
    must(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG");
    struct pollfd gone = {.fd = outside};
    if (poll(&gone, 1, 0) != 0) _exit(NOT_CONFINED);
}

/* PID 1 of the namespace: it reaps processes that lose their parent, and when it ends, all others end, too. */
static _Noreturn void be_first(const struct task *task, int outside) {
    die_with(outside);
    int self = must(open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC), "/proc/self");
    int interpreters = list_interpreters();
    enter_root(task->root, task->host_tools);
    if (!task->network) loopback_up();
    /* This comes last, so that capabilities in it give no power over the other namespaces. */
    take_users(self);
    forget_interpreters(interpreters);
    /* The kernel may have cleared it when the credentials changed (prctl(2)). */
    die_with(outside);
    must((int)syscall(SYS_close_range, 3U, ~0U, 0U), "close_range");
    give_up_rights(task->network);
    /* Otherwise, root of the image could write to this program's file on the host by /proc/1/exe. */
    must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE");
    pid_t command = must(fork(), "fork");
    if (command == 0) run_command(task);
    /* A reader outside would wait while we keep these open. */
    for (int fd = 0; fd < 3; fd++) close(fd);
    for (;;) {
        int status;
        pid_t ended = wait(&status);
        if (ended == command) _exit(status_of(status));
        if (ended < 0 && errno != EINTR) _exit(NOT_CONFINED);
    }
}

static struct task parse(char **words) {
    struct task task = {0};
    for (words++; *words && strncmp(*words, "--", 2) == 0; words++) {
        if (strcmp(*words, "--network") == 0) task.network = true;
        else if (strcmp(*words, "--terminal") == 0) task.terminal = true;
        else if (strcmp(*words, "--host-tools") == 0) task.host_tools = true;
        else break;
    }
    if (words[0] == NULL || words[1] == NULL) {
        fputs("usage: confiner [--network] [--terminal] [--host-tools] ROOT COMMAND [ARGUMENT...]\n", stderr);
        exit(NOT_CONFINED);
    }
    task.root = words[0];
    task.command = words + 1;
    return task;
}

int main(int count, char **words) {
    (void)count;
    struct task task = parse(words);
    int alive[2];
    /* Our parent may have ignored signals, and execve(2) keeps that. */
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    umask(022);
    /* HOME names a directory of the user, and TMPDIR one of the host. */
    setenv("HOME", "/root", 1);
    unsetenv("TMPDIR");
    must(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | (task.network ? 0 : CLONE_NEWNET)),
         "namespaces of its own");
    must(pipe(alive), "a pipe");
    pid_t first = must(fork(), "fork");
    if (first == 0) {
        close(alive[1]);
        be_first(&task, alive[0]);
    }
    close(alive[0]);
    int status;
    while (waitpid(first, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    return status_of(status);
}
