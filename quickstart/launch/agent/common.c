#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "clock.h"
#include "protocol.h"

int proc_dir, sys_dir, dev_dir;

_Noreturn void die(const char *what) {
    dprintf(STDERR_FILENO, "quickstart-agent: %s\n", what);
    _exit(2);
}

void sleep_until(int64_t when) {
    struct timespec t = {.tv_sec = (time_t)(when / (1000 * MS)), .tv_nsec = (long)(when % (1000 * MS))};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL); /* when a signal wakes it early, the caller's loop tries again */
}

int number(const char *text, int low, int high) {
    char *rest;
    long value = strtol(text, &rest, 10); /* beyond long's range it returns long's limits, which no range allows */
    if (rest == text || *rest != '\0' || value < low || value > high) die("a number is malformed or out of range");
    return (int)value;
}

_Noreturn void exec_shell(char *command, int out, int err) {
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, command, NULL};
    char *envp[] = {(char[]){"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, (char[]){"HOME=/root"}, (char[]){"TERM=linux"},
                    NULL};
    sigset_t none;
    sigemptyset(&none);
    setsid();                                          /* cannot fail: a new child leads no process group */
    for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL); /* fails only for signals that nobody can change */
    int null = openat(dev_dir, "null", O_RDWR | O_CLOEXEC);
    int root = openat(proc_dir, "1/root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (null >= 0 && dup2(null, 0) >= 0 && dup2(out < 0 ? null : out, 1) >= 0 && dup2(err < 0 ? null : err, 2) >= 0 && root >= 0 &&
        fchdir(root) == 0 && chroot(".") == 0 && chdir("/") == 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0) {
        execve(argv[0], argv, envp); /* returns only if it fails */
        /* A root with only the application's files (the bench's ramboot) has no shell, so use init's own. */
        envp[0] = (char[]){"PATH=" FAST_OURS "/bin"};
        execve(FAST_OURS "/busybox", (char *[]){(char[]){"sh"}, (char[]){"-c"}, command, NULL}, envp);
    }
    dprintf(STDERR_FILENO, "quickstart-agent: cannot run /bin/sh in PID 1's root: %s\n", strerror(errno));
    _exit(127);
}
