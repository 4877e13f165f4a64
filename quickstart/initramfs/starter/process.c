/* One command of the unit, from fork to execve, and the wait for its end. */
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char LOG_FILE[] = "/var/log/quickstart.log";

enum { REASON_MAX = 1024 };

/* Wait until `fd` can be read; false when the time (by now_ms) comes first. */
bool wait_for(int fd, int64_t deadline) {
    for (;;) {
        struct pollfd wanted = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - now_ms();
        int timeout = left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
        int found = poll(&wanted, 1, timeout);
        if (found > 0) return true;
        if (found < 0 && errno != EINTR) fail("poll: %m");
        if (found == 0) return false;
    }
}

/* The argument of rt_sigaction(2). The C library does not let us set its own two signals, which posix_spawn(3) leaves ignored. */
struct action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

/* Set the signals as in a new process, but ignore SIGPIPE unless the unit wants it. */
static void reset_signals(void) {
    const struct action by_default = {0};
    sigset_t none;
    sigemptyset(&none);
    /* This fails for signals that nobody can change. */
    for (int i = 1; i < NSIG; i++) syscall(SYS_rt_sigaction, i, &by_default, NULL, sizeof by_default.mask);
    if (strcmp(fact("ignore-sigpipe", "yes"), "yes") == 0) signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_SETMASK, &none, NULL) < 0) fail("sigprocmask: %m");
}

/* Without a hand-off there is no journald. Our log is for root and for the users who may read logs, because an application may write anything to it. If there is anything but a
   regular file with a single name in its place, somebody has put it there to make us write into it. */
static int open_log(void) {
    struct stat found;
    int fd = walk_open(LOG_FILE, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK, 0640, NO_LINK_AT_THE_END);
    if (fd < 0) fail("%s cannot be opened: %s", LOG_FILE, walk_fault());
    if (fstat(fd, &found) < 0 || !S_ISREG(found.st_mode) || found.st_nlink != 1) fail("%s is no plain file of one name", LOG_FILE);
    if (fchown(fd, 0, group_or("adm", 0)) < 0 || fchmod(fd, 0640) < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0) fail("%s: %m", LOG_FILE);
    return fd;
}

/* `stdout` and `stderr` of the description: null, log KERNEL CONSOLE, file PATH, append PATH, truncate PATH. */
static int open_output(const struct command *command, const char *key) {
    const struct record *record = next_record(NULL, key);
    const char *what = record && record->count ? record->words[0] : "log";
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY;
    if (strcmp(what, "log") == 0) {
        int stream = open_journal(command, record);
        return stream < 0 ? open_log() : stream;
    }
    if (strcmp(what, "null") == 0) return open("/dev/null", O_WRONLY | O_NOCTTY);
    if (record->count != 2) fail("the description needs a path in `%s`", key);
    if (strcmp(what, "file") == 0) flags = O_WRONLY | O_CREAT | O_NOCTTY;
    if (strcmp(what, "truncate") == 0) flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY;
    /* systemd makes the file with UMask=, which may keep others from reading it. */
    const struct record *mask = next_record(NULL, "umask");
    mode_t before = umask(0), mode = 0666 & ~(mask && mask->count ? (mode_t)number(mask->words[0]) : 0022);
    /* If the service has put a FIFO there, we and the whole machine would wait until somebody reads from it. */
    int fd = walk_open(record->words[1], flags | O_NONBLOCK, mode, ROOTS_LINKS);
    umask(before);
    if (fd < 0) fail("%s cannot be opened: %s", record->words[1], walk_fault());
    if (fcntl(fd, F_SETFL, flags & O_APPEND) < 0) fail("%s: %m", record->words[1]);
    return fd;
}

static void send_output(const struct command *command, const char *key, int as) {
    int fd = open_output(command, key);
    if (fd < 0 || dup2(fd, as) < 0) fail("the output of the unit: %m");
    if (fd != as) close(fd);
    /* When it already is this descriptor, it must not be closed by the execve. */
    else if (fcntl(fd, F_SETFD, 0) < 0) fail("fcntl: %m");
}

static void open_streams(const struct command *command) {
    int null = open("/dev/null", O_RDONLY | O_NOCTTY);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) fail("/dev/null cannot be opened: %m");
    if (null != STDIN_FILENO) close(null);
    umask(0022);
    send_output(command, "stdout", STDOUT_FILENO);
    if (next_record(NULL, "stderr")) send_output(command, "stderr", STDERR_FILENO);
    else if (dup2(STDOUT_FILENO, STDERR_FILENO) < 0) fail("dup2: %m");
}

static _Noreturn void execute(const struct command *command, pid_t main_pid) {
    reset_signals();
    setsid(); /* cannot fail: a new child leads no process group */
    enter_group();
    open_streams(command);
    if (chdir("/") < 0) fail("chdir: %m");
    struct list environment = command_environment(command, main_pid);
    char **argv = strchr(command->flags, ':') ? command->argv : expand(command->argv, &environment);
    take_steps(command->flags);
    execve(command->program, argv, environment.items);
    fail("%s cannot be executed: %m", command->program);
}

/* Starts the command, and returns when it has been executed. If that is impossible, this fails with the child's reason, or returns 0
   when the command's failure is ignored. */
pid_t start(const struct command *command, pid_t main_pid, int64_t deadline) {
    int ends[2];
    char reason[REASON_MAX];
    if (pipe2(ends, O_CLOEXEC) < 0) fail("pipe: %m");
    pid_t child = fork();
    if (child < 0) fail("fork: %m");
    if (child == 0) {
        /* A high number does not collide with the streams, or with the numbers that the application expects for its first descriptors. */
        int end = fcntl(ends[1], F_DUPFD_CLOEXEC, 64);
        if (end < 0) fail("fcntl: %m");
        fail_into(end);
        /* Only the main process gets the sockets, and of the stack's only its unit's own. */
        int kept = strcmp(command->when, "main") == 0 ? take_sockets() : 0;
        int last = keep_network(end + 1);
        syscall(SYS_close_range, (unsigned)(FIRST_SOCKET + kept), (unsigned)end - 1, 0);
        if (last > end + 1) syscall(SYS_close_range, (unsigned)end + 1, (unsigned)last - 1, 0);
        syscall(SYS_close_range, (unsigned)(last < 0 ? end : last) + 1, ~0U, 0);
        execute(command, main_pid);
    }
    close(ends[1]);
    if (!wait_for(ends[0], deadline)) fail("%s was not executed within %s", command->program, limit_of(deadline));
    ssize_t length = read(ends[0], reason, sizeof reason - 1);
    close(ends[0]);
    if (length > 0 && strchr(command->flags, '-')) {
        waitpid(child, NULL, 0);
        return 0;
    }
    if (length > 0) fail("Exec %s: %.*s", command->when, (int)length, reason);
    return child;
}

/* The status of an ended child, as from waitpid(2); -1 when the time comes first. */
int await_exit(pid_t pid, int64_t deadline) {
    int status, fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) fail("pidfd_open: %m");
    bool ended = wait_for(fd, deadline);
    close(fd);
    if (!ended) return -1;
    if (waitpid(pid, &status, 0) != pid) fail("waitpid: %m");
    return status;
}
