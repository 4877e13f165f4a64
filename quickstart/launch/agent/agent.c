/*
 * QuickStart's launch agent: prober, beacon and --exec shell inside a guest. The initramfs starts it before the root
 * volume is entered. Arguments and protocol: docs/agent.md.
 *
 * Two processes: the main one owns the port and runs commands, a forked one finds the address and probes the
 * application. The prober stamps what it sees at once and hands whole messages over a packet pipe, so neither a
 * slow connect delays a command nor a busy port delays a stamp.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "mysql.h"

#define OURS "/fast/quickstart"
enum { HEADER_ROOM = 16, MESSAGE_MAX = 16384 };  /* the longest header of a payload is "out 16368\n" */
enum { COMMAND_MAX = 65536, REQUEST_LINE_MAX = 32 };  /* the kernel takes 128 KiB in one argument */
enum { PACKET_MAX = 4096, COUNTERS_MAX = 3968 };  /* a pipe's packet (PIPE_BUF), and what it has room for beside its header */
enum { PATH_LIMIT = 2048, ANSWER_MAX = 65536, STATUS_LINE_MAX = 512 };
enum { STEP_MS = 10, HANGUP_PAUSE_MS = 50, DRAIN_MS = 200 };  /* STEP: between looks for port and address */
enum { TRY_S = 1, EXEC_TRY_S = 10 };  /* for connect, and again for the answer; for a readiness command */

enum kind { READY_NONE, READY_HTTP, READY_TCP, READY_MYSQL, READY_EXEC };
struct ready { enum kind kind; bool loopback; uint16_t port; char *status, *path, *account, *command; };
struct place { char ifname[IFNAMSIZ], text[INET_ADDRSTRLEN]; struct sockaddr_in address; };
/* A pipe to forward. `owed`: what it held when the command ended, to be sent however long that takes. */
struct stream { const char *name; int fd, owed; };

/* Opened first and used ever after: they follow the mounts when these are moved into the new root. */
static int proc_dir, sys_dir, dev_dir;
static int port = -1, signals = -1;
static char message[MESSAGE_MAX];
static size_t message_start, message_end;  /* what is still to be written; equal: nothing */
static char request[COMMAND_MAX + REQUEST_LINE_MAX + 1];  /* and what may have come after the first one */
static size_t request_length;
static pid_t command_pid;  /* 0: no command */
static int command_status = -1;  /* set when it has ended */
static int64_t drain_until;
enum { PROBE, OUT, ERR, STREAMS };
static struct stream streams[STREAMS] = {{NULL, -1, 0}, {"out", -1, 0}, {"err", -1, 0}};

static bool pending(void) { return message_start < message_end; }

static _Noreturn void die(const char *what) {
    dprintf(STDERR_FILENO, "quickstart-agent: %s\n", what);
    _exit(2);
}

static void sleep_until(int64_t when) {
    struct timespec t = {.tv_sec = (time_t)(when / (1000 * MS)), .tv_nsec = (long)(when % (1000 * MS))};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);  /* woken early: the caller's loop looks again */
}

/* In a forked child; -1 sends output to /dev/null. PID 1's root is the initramfs first, then the root volume. */
static _Noreturn void exec_shell(char *command, int out, int err) {
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, command, NULL};
    char *envp[] = {(char[]){"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                    (char[]){"HOME=/root"}, (char[]){"TERM=linux"}, NULL};
    sigset_t none;
    sigemptyset(&none);
    setsid();  /* cannot fail: a fresh child leads no process group */
    for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL);  /* fails only for those that cannot be changed anyway */
    int null = openat(dev_dir, "null", O_RDWR | O_CLOEXEC);
    int root = openat(proc_dir, "1/root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (null >= 0 && dup2(null, 0) >= 0 && dup2(out < 0 ? null : out, 1) >= 0 && dup2(err < 0 ? null : err, 2) >= 0 &&
        root >= 0 && fchdir(root) == 0 && chroot(".") == 0 && chdir("/") == 0 &&
        sigprocmask(SIG_SETMASK, &none, NULL) == 0) {
        execve(argv[0], argv, envp);  /* returns only if it fails */
        /* A root that has only what the application needs (the bench's ramboot): init's own shell. */
        envp[0] = (char[]){"PATH=" OURS "/bin"};
        execve(OURS "/busybox", (char *[]){(char[]){"sh"}, (char[]){"-c"}, command, NULL}, envp);
    }
    dprintf(STDERR_FILENO, "quickstart-agent: cannot run /bin/sh in PID 1's root: %s\n", strerror(errno));
    _exit(127);
}

static void tell(int out, const char *kind, int64_t stamp, const char *text) {
    char line[STATUS_LINE_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %lld %s\n", kind, (long long)stamp, text);
    /* One packet, shorter than PIPE_BUF. It fails only when the main process is gone, and we go with it. */
    if (write(out, line, (size_t)length) != length) _exit(1);
}

/* What the file holds, up to its first `lines` lines and `room` bytes, whole lines only; the length. */
static size_t read_lines(const char *path, int lines, char *to, size_t room) {
    char text[COUNTERS_MAX];
    size_t length = 0, end = 0;
    int fd = openat(proc_dir, path, O_RDONLY | O_CLOEXEC);  /* -1 is refused by read */
    for (ssize_t got; room > length && (got = read(fd, text + length, room - length)) > 0;) length += (size_t)got;
    close(fd);
    for (size_t i = 0; i < length && lines > 0; i++)
        if (text[i] == '\n') {
            end = i + 1;
            lines--;
        }
    memcpy(to, text, end);
    return end;
}

/* The first correct answer: the guest's counters are read before word of it, so that telling does not count. */
static void tell_ready(int out, int64_t stamp, const char *text) {
    char counters[COUNTERS_MAX], packet[PACKET_MAX];
    size_t length = read_lines("stat", 1, counters, sizeof counters);
    length += read_lines("diskstats", INT_MAX, counters + length, sizeof counters - length);
    int64_t uptime = now(CLOCK_BOOTTIME);
    unsigned long long tsc = __builtin_ia32_rdtsc();
    tell(out, "ready", stamp, text);
    int header = snprintf(packet, sizeof packet, "counters %lld %llu %zu\n", (long long)uptime, tsc, length);
    memcpy(packet + header, counters, length);
    if (write(out, packet, (size_t)header + length) != header + (ssize_t)length) _exit(1);
}

/* The first interface that is not loopback, is up and running, and has an IPv4 address. */
static bool find_place(int inet, struct place *place) {
    struct ifreq list[64];
    struct ifconf conf = {.ifc_len = sizeof list, .ifc_req = list};
    if (ioctl(inet, SIOCGIFCONF, &conf) < 0) return false;
    for (size_t i = 0; i < (size_t)conf.ifc_len / sizeof list[0]; i++) {
        struct ethtool_value carrier = {.cmd = ETHTOOL_GLINK};
        struct ifreq flags = list[i], link = list[i];
        link.ifr_data = (char *)&carrier;
        if (list[i].ifr_addr.sa_family != AF_INET || ioctl(inet, SIOCGIFFLAGS, &flags) < 0) continue;
        if ((flags.ifr_flags & (IFF_UP | IFF_LOOPBACK)) != IFF_UP) continue;
        /* The kernel may set IFF_RUNNING a second later than there is a carrier: ask for that, if the driver tells. */
        if (!(flags.ifr_flags & IFF_RUNNING) && (ioctl(inet, SIOCETHTOOL, &link) < 0 || !carrier.data)) continue;
        memcpy(&place->address, &list[i].ifr_addr, sizeof place->address);
        snprintf(place->ifname, sizeof place->ifname, "%.*s", IFNAMSIZ - 1, list[i].ifr_name);
        return inet_ntop(AF_INET, &place->address.sin_addr, place->text, sizeof place->text) != NULL;
    }
    return false;
}

/* A connected socket whose reads end after TRY_S, or -1. */
static int connect_to(const struct place *place, const struct ready *ready) {
    struct sockaddr_in here, to = place->address;
    to.sin_port = htons(ready->port);
    if (ready->loopback) to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval limit = {.tv_sec = TRY_S};
    struct linger reset = {.l_onoff = 1};
    socklen_t size = sizeof here;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  /* -1 is refused by all that follows */
    /* Without a listener on a port of the ephemeral range, TCP can connect to itself: that is no answer. */
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
        connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &size) == 0 &&
        (here.sin_port != to.sin_port || here.sin_addr.s_addr != to.sin_addr.s_addr))
        return fd;
    /* Reset rather than close, so that no TIME_WAIT stands in the way of the server's bind(). */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);  /* at worst an orderly close */
    close(fd);
    return -1;
}

/* If `line` is "HTTP/1.x STATUS …", ends it behind its text and replaces what is unprintable. */
static bool is_correct(char *line, const char *status) {
    line[strcspn(line, "\r\n")] = '\0';
    if (strlen(line) < 12 || strncmp(line, "HTTP/1.", 7) != 0 || line[8] != ' ') return false;
    if (strncmp(line + 9, status, 3) != 0 || (line[12] != ' ' && line[12] != '\0')) return false;
    if (strlen(line) >= STATUS_LINE_MAX) line[STATUS_LINE_MAX - 1] = '\0';
    for (char *c = line; *c; c++) *c = *c < ' ' || *c > '~' ? '?' : *c;
    return true;
}

/* Reports readiness as soon as the status line is in, then reads on so that the server sees no reset. */
static bool read_answer(int fd, const char *status, int out) {
    static char answer[ANSWER_MAX + 1];
    bool judged = false, correct = false;
    int64_t limit = now(CLOCK_MONOTONIC) + TRY_S * 1000 * MS;
    for (size_t length = 0; length < ANSWER_MAX && now(CLOCK_MONOTONIC) < limit;) {
        ssize_t got = recv(fd, answer + length, ANSWER_MAX - length, 0);
        int64_t stamp = now(CLOCK_BOOTTIME);
        if (got <= 0) break;
        length += (size_t)got;
        answer[length] = '\0';  /* also ends what an earlier answer has left */
        if (judged || !strchr(answer, '\n')) continue;
        judged = true;
        if ((correct = is_correct(answer, status))) tell_ready(out, stamp, answer);
    }
    return correct;
}

static bool try_command(char *command, int out) {
    pid_t child = fork();
    if (child == 0) {
        alarm(EXEC_TRY_S);  /* survives execve and ends the shell */
        exec_shell(command, -1, -1);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return false;
    int64_t stamp = now(CLOCK_BOOTTIME);
    if (WIFSIGNALED(status)) kill(-child, SIGKILL);  /* what the shell waited for; none left is fine */
    if (status == 0) tell_ready(out, stamp, "exit 0");
    return status == 0;
}

static bool ask_databases(int fd, const char *account, int out) {
    char text[sizeof "2147483647 databases"];
    int databases = list_databases(fd, account, now(CLOCK_MONOTONIC) + TRY_S * 1000 * MS);
    int64_t stamp = now(CLOCK_BOOTTIME);
    if (databases == 0) return false;
    snprintf(text, sizeof text, "%d databases", databases);
    tell_ready(out, stamp, text);
    end_session(fd);
    return true;
}

static bool try_once(const struct ready *ready, const struct place *place, int out) {
    char ask[PATH_LIMIT + 256];
    if (ready->kind == READY_NONE) return true;
    if (ready->kind == READY_EXEC) return try_command(ready->command, out);
    int fd = connect_to(place, ready);
    if (fd < 0) return false;
    bool correct = ready->kind == READY_TCP;
    if (correct) tell_ready(out, now(CLOCK_BOOTTIME), "connected");
    if (ready->kind == READY_HTTP) {
        int length = snprintf(ask, sizeof ask, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
                              "User-Agent: quickstart-probe\r\n\r\n", ready->path, place->text);
        /* A fresh socket's buffer holds all of it; if it does not, this try has failed. */
        correct = send(fd, ask, (size_t)length, MSG_NOSIGNAL) == length && read_answer(fd, ready->status, out);
    }
    if (ready->kind == READY_MYSQL) correct = ask_databases(fd, ready->account, out);
    close(fd);
    return correct;
}

static _Noreturn void probe(const struct ready *ready, int interval_ms, int out) {
    struct place last = {0};
    for (int inet = -1;;) {
        struct place place = {0};
        int64_t start = now(CLOCK_MONOTONIC);
        if (inet < 0) inet = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bool found = inet >= 0 && find_place(inet, &place);
        int64_t stamp = now(CLOCK_BOOTTIME);
        /* The root volume's own network setup may change what the initramfs has set up: say so again. */
        if (found && memcmp(&place, &last, sizeof place) != 0) {
            char text[sizeof place.ifname + sizeof place.text];
            snprintf(text, sizeof text, "%s %s", place.ifname, place.text);
            tell(out, "beacon", stamp, text);
            last = place;
        }
        if (found && try_once(ready, &place, out)) _exit(0);
        sleep_until(start + (found ? interval_ms : STEP_MS) * MS);
    }
}

static void start_probe(const struct ready *ready, int interval_ms) {
    int ends[2];
    pid_t parent = getpid(), child = -1;
    /* O_DIRECT: packets, so that one read is one message. */
    if (pipe2(ends, O_CLOEXEC | O_DIRECT) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0) child = fork();
    if (child < 0) die("cannot start the prober");
    if (child == 0) {
        if (close(ends[0]) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent)
            probe(ready, interval_ms, ends[1]);
        _exit(1);
    }
    close(ends[1]);
    streams[PROBE].fd = ends[0];
}

/* The port of that name, or -1 as long as there is none. */
static int open_virtio_port(const char *wanted) {
    int fd = openat(sys_dir, "class/virtio-ports", O_RDONLY | O_DIRECTORY | O_CLOEXEC), found = -1;
    if (fd < 0) return -1;
    DIR *ports = fdopendir(fd);
    if (!ports) die("no memory");
    for (struct dirent *entry; found < 0 && (entry = readdir(ports));) {
        char path[sizeof entry->d_name + 8], name[128] = "";
        snprintf(path, sizeof path, "%s/name", entry->d_name);
        int name_fd = openat(fd, path, O_RDONLY | O_CLOEXEC);
        if (name_fd < 0) continue;  /* "." and "..", or a port whose name has not arrived yet */
        if (read(name_fd, name, sizeof name - 1) <= 0) name[0] = '\0';
        close(name_fd);
        name[strcspn(name, "\n")] = '\0';
        if (strcmp(name, wanted) != 0) continue;
        found = openat(dev_dir, entry->d_name, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    closedir(ports);
    return found;
}

/* PORT_NAME is a path: a character device's, or a UNIX socket's, which cannot be opened. */
static int open_path_port(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 || snprintf(to.sun_path, sizeof to.sun_path, "%s", path) >= (int)sizeof to.sun_path) return fd;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

/* `done` is what read or write returned. Without a host we only pause: the prober stamps by itself meanwhile. */
static size_t port_bytes(ssize_t done) {
    if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
        sleep_until(now(CLOCK_MONOTONIC) + HANGUP_PAUSE_MS * MS);
    return done > 0 ? (size_t)done : 0;
}

/* Writes as much of the message as the port takes; poll() brings us back for the rest. */
static void flush(void) {
    if (pending()) message_start += port_bytes(write(port, message + message_start, message_end - message_start));
}

static void send_line(const char *word, int value) {
    message_start = 0;
    message_end = (size_t)snprintf(message, sizeof message, "%s %d\n", word, value);
    flush();
}

/* The length of the first request's first line: 0 when the request is not all there yet, -1 when it is none. */
static int parse_request(size_t *length) {
    char line[REQUEST_LINE_MAX + 1] = "", newline = '\0';
    int header = 0;
    memcpy(line, request, request_length < REQUEST_LINE_MAX ? request_length : REQUEST_LINE_MAX);
    if (!strchr(line, '\n')) return request_length < REQUEST_LINE_MAX ? 0 : -1;
    if (sscanf(line, "exec %5zu%c%n", length, &newline, &header) != 2 || newline != '\n' || *length > COMMAND_MAX)
        return -1;
    return request_length < (size_t)header + *length ? 0 : header;
}

static void start_command(char *command, size_t length) {
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    bool good = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    good = good && fcntl(out[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(err[0], F_SETFL, O_NONBLOCK) == 0;
    if (good) command_pid = fork();
    if (command_pid == 0) {
        command[length] = '\0';  /* in the child's copy; `request` has a byte to spare */
        exec_shell(command, out[1], err[1]);
    }
    streams[OUT].fd = out[0];
    streams[ERR].fd = err[0];
    close(out[1]);  /* -1 is refused, which does no harm */
    close(err[1]);
}

/* Starts the next request, if it is there as a whole. */
static void next_request(void) {
    size_t length = 0;
    int header = command_pid != 0 || pending() ? 0 : parse_request(&length);
    if (header == 0) return;
    command_pid = -1;
    if (header > 0) start_command(request + header, length);
    if (command_pid < 0) {  /* nothing was started: as if it had ended long ago */
        command_status = 126;
        drain_until = 0;
    }
    /* After a malformed request there is no telling where the next one begins: drop them all. */
    size_t used = header > 0 ? (size_t)header + length : request_length;
    request_length -= used;
    memmove(request, request + used, request_length);
}

static void reap(void) {
    struct signalfd_siginfo ignored;
    while (read(signals, &ignored, sizeof ignored) > 0) {}  /* empties it; waitpid says what ended */
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid != command_pid) continue;  /* the prober */
        command_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        drain_until = now(CLOCK_MONOTONIC) + DRAIN_MS * MS;
        for (int i = OUT; i <= ERR; i++)
            if (ioctl(streams[i].fd, FIONREAD, &streams[i].owed) < 0) streams[i].owed = 0;  /* closed already */
    }
}

/* One message from a pipe. `late`: only descendants of an ended command keep it open, and their time is up. */
static void pump(struct stream *stream, bool late) {
    char header[HEADER_ROOM];
    ssize_t got = read(stream->fd, message + HEADER_ROOM, MESSAGE_MAX - HEADER_ROOM);
    bool empty = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (got > 0) {  /* what the prober sends is a message already */
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
    bool waiting = pending();  /* there is room for one message: pipes wait until it is out */
    short receive = request_length < sizeof request - 1 ? POLLIN : 0, send = waiting ? POLLOUT : 0;
    struct pollfd fds[STREAMS + 2] = {[STREAMS] = {.fd = port, .events = (short)(receive | send)},
                                      [STREAMS + 1] = {.fd = signals, .events = POLLIN}};
    for (int i = 0; i < STREAMS; i++)
        fds[i] = (struct pollfd){.fd = waiting ? -1 : streams[i].fd, .events = POLLIN};
    if (poll(fds, STREAMS + 2, !waiting && command_status >= 0 ? ms_until(drain_until) : -1) < 0)
        return;  /* EINTR or no memory for a moment: look again */
    if (fds[STREAMS + 1].revents) reap();
    if (fds[STREAMS].revents & POLLIN)
        request_length += port_bytes(read(port, request + request_length, sizeof request - 1 - request_length));
    else if (fds[STREAMS].revents & ~POLLOUT) port_bytes(0);
    flush();
    bool late = command_status >= 0 && ms_until(drain_until) == 0;
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].fd >= 0 && (fds[i].revents || (late && i != PROBE)) && !pending())
            pump(&streams[i], late && i != PROBE);
    if (command_status >= 0 && streams[OUT].fd < 0 && streams[ERR].fd < 0 && !pending()) {
        send_line("exit", command_status);
        command_pid = 0;
        command_status = -1;
    }
    next_request();
}

/* The prober goes with us; a running command is left to whoever ends the system. */
static void end(int number) { _exit(number == SIGTERM ? 0 : 1); }

static void set_up_signals(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    signals = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
    /* Whatever our starter ignored or blocked: SIGCHLD must come, SIGTERM must work. */
    if (signals < 0 || signal(SIGCHLD, SIG_DFL) == SIG_ERR || signal(SIGTERM, end) == SIG_ERR ||
        signal(SIGPIPE, SIG_IGN) == SIG_ERR || signal(SIGHUP, SIG_IGN) == SIG_ERR ||
        sigprocmask(SIG_SETMASK, &children, NULL) < 0)
        die("cannot set up signals");
}

static int number(const char *text, int low, int high) {
    char *rest;
    long value = strtol(text, &rest, 10);  /* out of long's range: its limits, which no range allows */
    if (rest == text || *rest != '\0' || value < low || value > high) die("a number is malformed or out of range");
    return (int)value;
}

static struct ready parse_ready(int count, char **words) {
    bool loopback = count > 1 && strcmp(words[0], "loopback") == 0 && strcmp(words[1], "exec") != 0;
    if (loopback) {
        count--;
        words++;
    }
    bool http = count == 4 && strcmp(words[0], "http") == 0, tcp = count == 2 && strcmp(words[0], "tcp") == 0;
    bool mysql = count == 3 && strcmp(words[0], "mysql") == 0;
    if (count == 1 && !loopback && strcmp(words[0], "none") == 0) return (struct ready){.kind = READY_NONE};
    if (count == 2 && strcmp(words[0], "exec") == 0) return (struct ready){.kind = READY_EXEC, .command = words[1]};
    if (!http && !tcp && !mysql)
        die("usage: agent PORT_NAME INTERVAL_MS none|[loopback] http PORT STATUS PATH|[loopback] tcp PORT|"
            "[loopback] mysql PORT ACCOUNT|exec COMMAND");
    struct ready ready = {.kind = READY_TCP, .loopback = loopback, .port = (uint16_t)number(words[1], 1, 65535)};
    if (mysql) {
        if (words[2][0] == '\0' || strlen(words[2]) > ACCOUNT_MAX) die("ACCOUNT has 1 to 32 bytes");
        ready.kind = READY_MYSQL;
        ready.account = words[2];
    }
    if (http) {
        if (number(words[2], 100, 999) < 0 || strlen(words[2]) != 3 || words[3][0] != '/' ||
            strlen(words[3]) > PATH_LIMIT || strpbrk(words[3], " \t\r\n"))
            die("STATUS has three digits; PATH begins with /, has no white space and at most 2048 bytes");
        ready.kind = READY_HTTP;
        ready.status = words[2];
        ready.path = words[3];
    }
    return ready;
}

int main(int argc, char **argv) {
    struct ready ready = parse_ready(argc < 3 ? 0 : argc - 3, argv + (argc < 3 ? argc : 3));
    int interval_ms = number(argv[2], 1, 3600 * 1000);
    /* Without a console the kernel starts programs with 0 to 2 closed: nothing else may get these numbers. */
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) die("cannot open /dev/null");
    /* By way of something below: without their mounts these would be empty directories to us for ever. */
    proc_dir = open("/proc/1/..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    sys_dir = open("/sys/class/..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    dev_dir = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc_dir < 0 || sys_dir < 0 || faccessat(dev_dir, "null", F_OK, 0) < 0 || chdir("/") < 0)
        die("/proc, /sys or /dev is not mounted");
    argv[0][0] = '@';  /* systemd ends every process when it leaves the initramfs, except root's with an @ here */
    set_up_signals();
    start_probe(&ready, interval_ms);  /* before there is a port, so that its stamps do not depend on that */
    while ((port = argv[1][0] == '/' ? open_path_port(argv[1]) : open_virtio_port(argv[1])) < 0)
        sleep_until(now(CLOCK_MONOTONIC) + STEP_MS * MS);
    send_line("hello", 2);
    for (;;) serve_once();
}
