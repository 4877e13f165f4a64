/*
 * QuickStart's launch agent: prober, beacon and --exec shell inside a guest. The initramfs starts it before the root
 * volume is entered. docs/internals/agent.md describes its arguments and its protocol.
 *
 * It has two processes. The main one owns the port and runs commands. A forked one (probe.c) finds the address and
 * probes the application. The prober stamps an event at once and sends whole messages through a packet pipe. So a slow
 * connect does not delay a command, and a busy port does not delay a stamp.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "clock.h"
#include "probe.h"
#include "protocol.h"

enum { HEADER_ROOM = 16, MESSAGE_MAX = AGENT_MESSAGE_MAX }; /* the longest header of a payload is "out 16368\n" */
enum { COMMAND_MAX = 65536, REQUEST_LINE_MAX = 32 };        /* one argument may have up to 128 KiB */
enum { HANGUP_PAUSE_MS = 50, DRAIN_MS = 200 };

/* A pipe whose content we forward. `owed` bytes were in it when the command ended; they are sent, however long that takes. */
struct stream {
    const char *name;
    int fd, owed;
};

static int port = -1, signals = -1;
static char message[MESSAGE_MAX];
static size_t message_start, message_end;                /* the part that is not written yet; equal: none */
static char request[COMMAND_MAX + REQUEST_LINE_MAX + 1]; /* the first request, and any bytes after it */
static size_t request_length;
static pid_t command_pid;       /* 0: no command */
static int command_status = -1; /* set when the command has ended */
static int64_t drain_until;
enum { PROBE, OUT, ERR, STREAMS };
static struct stream streams[STREAMS] = {{NULL, -1, 0}, {AGENT_OUT, -1, 0}, {AGENT_ERR, -1, 0}};

static bool pending(void) { return message_start < message_end; }

static void start_probe(const struct ready *ready, int interval_ms) {
    int ends[2];
    pid_t parent = getpid(), child = -1;
    /* With O_DIRECT the pipe keeps packets, so one read gives one message. */
    if (pipe2(ends, O_CLOEXEC | O_DIRECT) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0) child = fork();
    if (child < 0) die("cannot start the prober");
    if (child == 0) {
        if (close(ends[0]) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent) probe(ready, interval_ms, ends[1]);
        _exit(1);
    }
    close(ends[1]);
    streams[PROBE].fd = ends[0];
}

/* The port of that name, or -1 while there is none. */
static int open_virtio_port(const char *wanted) {
    int fd = openat(sys_dir, "class/virtio-ports", O_RDONLY | O_DIRECTORY | O_CLOEXEC), found = -1;
    if (fd < 0) return -1;
    DIR *ports = fdopendir(fd);
    if (!ports) die("no memory");
    for (struct dirent *entry; found < 0 && (entry = readdir(ports));) {
        char path[sizeof entry->d_name + 8], name[128] = "";
        snprintf(path, sizeof path, "%s/name", entry->d_name);
        int name_fd = openat(fd, path, O_RDONLY | O_CLOEXEC);
        if (name_fd < 0) continue; /* "." and "..", or a port whose name has not arrived yet */
        if (read(name_fd, name, sizeof name - 1) <= 0) name[0] = '\0';
        close(name_fd);
        name[strcspn(name, "\n")] = '\0';
        if (strcmp(name, wanted) != 0) continue;
        found = openat(dev_dir, entry->d_name, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    closedir(ports);
    return found;
}

/* For a PORT_NAME that is a path. A character device is opened; a UNIX socket cannot be, so we connect to it. */
static int open_path_port(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 || snprintf(to.sun_path, sizeof to.sun_path, "%s", path) >= (int)sizeof to.sun_path) return fd;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

/* `done` is what read or write returned. Without a host, we only pause; meanwhile the prober makes its stamps. */
static size_t port_bytes(ssize_t done) {
    if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR)) sleep_until(now(CLOCK_MONOTONIC) + HANGUP_PAUSE_MS * MS);
    return done > 0 ? (size_t)done : 0;
}

/* Write as much of the message as the port takes. poll() tells when to write the rest. */
static void flush(void) {
    if (pending()) message_start += port_bytes(write(port, message + message_start, message_end - message_start));
}

static void send_line(const char *word, int value) {
    message_start = 0;
    message_end = (size_t)snprintf(message, sizeof message, "%s %d\n", word, value);
    flush();
}

/* The length of the first request's first line: 0 for an incomplete request, -1 for bytes that are no request. */
static int parse_request(size_t *length) {
    char line[REQUEST_LINE_MAX + 1] = "", newline = '\0';
    int header = 0;
    memcpy(line, request, request_length < REQUEST_LINE_MAX ? request_length : REQUEST_LINE_MAX);
    if (!strchr(line, '\n')) return request_length < REQUEST_LINE_MAX ? 0 : -1;
    if (sscanf(line, AGENT_EXEC " %5zu%c%n", length, &newline, &header) != 2 || newline != '\n' || *length > COMMAND_MAX) return -1;
    return request_length < (size_t)header + *length ? 0 : header;
}

static void start_command(char *command, size_t length) {
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    bool good = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    good = good && fcntl(out[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(err[0], F_SETFL, O_NONBLOCK) == 0;
    if (good) command_pid = fork();
    if (command_pid == 0) {
        command[length] = '\0'; /* in the child's copy; `request` has a spare byte */
        exec_shell(command, out[1], err[1]);
    }
    streams[OUT].fd = out[0];
    streams[ERR].fd = err[0];
    close(out[1]); /* close(-1) fails without harm */
    close(err[1]);
}

/* Start the next request, if it has arrived completely. */
static void next_request(void) {
    size_t length = 0;
    int header = command_pid != 0 || pending() ? 0 : parse_request(&length);
    if (header == 0) return;
    command_pid = -1;
    if (header > 0) start_command(request + header, length);
    if (command_pid < 0) { /* nothing was started: treat it as an ended command */
        command_status = 126;
        drain_until = 0;
    }
    /* After a malformed request, nobody can tell where the next one begins, so drop all the bytes. */
    size_t used = header > 0 ? (size_t)header + length : request_length;
    request_length -= used;
    memmove(request, request + used, request_length);
}

static void reap(void) {
    struct signalfd_siginfo ignored;
    while (read(signals, &ignored, sizeof ignored) > 0) {} /* empty it; waitpid tells which process ended */
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid != command_pid) continue; /* the prober */
        command_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        drain_until = now(CLOCK_MONOTONIC) + DRAIN_MS * MS;
        for (int i = OUT; i <= ERR; i++)
            if (ioctl(streams[i].fd, FIONREAD, &streams[i].owed) < 0) streams[i].owed = 0; /* it is closed already */
    }
}

/* Take one message from a pipe. `late`: only descendants of an ended command keep it open, and their time is over. */
static void pump(struct stream *stream, bool late) {
    char header[HEADER_ROOM];
    ssize_t got = read(stream->fd, message + HEADER_ROOM, MESSAGE_MAX - HEADER_ROOM);
    bool empty = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (got > 0) { /* the prober sends complete messages */
        int length = stream->name ? snprintf(header, sizeof header, "%s %zd\n", stream->name, got) : 0;
        message_start = HEADER_ROOM - (size_t)length;
        message_end = HEADER_ROOM + (size_t)got;
        memcpy(message + message_start, header, (size_t)length);
        stream->owed -= (int)got;
    }
    if ((got <= 0 && !empty) || (late && (empty || stream->owed <= 0))) {
        close(stream->fd);
        stream->fd = -1;
    }
    flush();
}

static void serve_once(void) {
    bool waiting = pending(); /* we hold one message, and the pipes wait until it is written */
    short receive = request_length < sizeof request - 1 ? POLLIN : 0, send = waiting ? POLLOUT : 0;
    struct pollfd fds[STREAMS + 2] = {[STREAMS] = {.fd = port, .events = (short)(receive | send)}, [STREAMS + 1] = {.fd = signals, .events = POLLIN}};
    for (int i = 0; i < STREAMS; i++) fds[i] = (struct pollfd){.fd = waiting ? -1 : streams[i].fd, .events = POLLIN};
    if (poll(fds, STREAMS + 2, !waiting && command_status >= 0 ? ms_until(drain_until) : -1) < 0)
        return; /* EINTR or a short lack of memory: try again */
    if (fds[STREAMS + 1].revents) reap();
    if (fds[STREAMS].revents & POLLIN) request_length += port_bytes(read(port, request + request_length, sizeof request - 1 - request_length));
    else if (fds[STREAMS].revents & ~POLLOUT) port_bytes(0);
    flush();
    bool late = command_status >= 0 && ms_until(drain_until) == 0;
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].fd >= 0 && (fds[i].revents || (late && i != PROBE)) && !pending()) pump(&streams[i], late && i != PROBE);
    if (command_status >= 0 && streams[OUT].fd < 0 && streams[ERR].fd < 0 && !pending()) {
        send_line(AGENT_EXIT, command_status);
        command_pid = 0;
        command_status = -1;
    }
    next_request();
}

/* The prober ends with us. A running command is left to the program that ends the system. */
static void end(int number) { _exit(number == SIGTERM ? 0 : 1); }

static void set_up_signals(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    signals = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
    /* Our parent may have ignored or blocked signals, but we need SIGCHLD and SIGTERM. */
    if (signals < 0 || signal(SIGCHLD, SIG_DFL) == SIG_ERR || signal(SIGTERM, end) == SIG_ERR || signal(SIGPIPE, SIG_IGN) == SIG_ERR ||
        signal(SIGHUP, SIG_IGN) == SIG_ERR || sigprocmask(SIG_SETMASK, &children, NULL) < 0)
        die("cannot set up signals");
}

int main(int argc, char **argv) {
    struct ready ready = parse_ready(argc < 3 ? 0 : argc - 3, argv + (argc < 3 ? argc : 3));
    int interval_ms = number(argv[2], 1, 3600 * 1000);
    /* Without a console, the kernel starts programs with 0 to 2 closed. No other file may get these numbers. */
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) die("cannot open /dev/null");
    /* Opened through an entry of the mount, so that it fails when nothing is mounted. We would keep an empty directory for ever. */
    proc_dir = open("/proc/1/..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    sys_dir = open("/sys/class/..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    dev_dir = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc_dir < 0 || sys_dir < 0 || faccessat(dev_dir, "null", F_OK, 0) < 0 || chdir("/") < 0) die("/proc, /sys or /dev is not mounted");
    argv[0][0] = '@'; /* when systemd leaves the initramfs, it ends all processes but those of root with an @ here */
    set_up_signals();
    start_probe(&ready, interval_ms); /* before the port is open, so that its stamps do not depend on the port */
    if (strcmp(argv[1], AGENT_CONSOLE) == 0) speak(streams[PROBE].fd);
    while ((port = argv[1][0] == '/' ? open_path_port(argv[1]) : open_virtio_port(argv[1])) < 0) sleep_until(now(CLOCK_MONOTONIC) + STEP_MS * MS);
    send_line(AGENT_HELLO, AGENT_VERSION);
    for (;;) serve_once();
}
