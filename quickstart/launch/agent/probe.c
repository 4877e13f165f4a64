/*
 * The prober. It is a process of its own, so a slow connect does not delay a command, and a busy port does not delay a stamp.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "clock.h"
#include "mysql.h"
#include "probe.h"
#include "protocol.h"

enum { PACKET_MAX = 4096, COUNTERS_MAX = 3968 }; /* a pipe's packet (PIPE_BUF), and its room after the header */
enum { PATH_LIMIT = 2048, ANSWER_MAX = 65536, STATUS_LINE_MAX = 512 };
enum { TRY_S = 1, EXEC_TRY_S = 10 }; /* for connect, and again for the answer; for a readiness command */

struct place {
    char ifname[IFNAMSIZ], text[INET_ADDRSTRLEN];
    struct sockaddr_in address;
};

static void tell(int out, const char *kind, int64_t stamp, const char *text) {
    char line[STATUS_LINE_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %lld %s\n", kind, (long long)stamp, text);
    /* One packet, shorter than PIPE_BUF. This fails only when the main process has gone, and then we end, too. */
    if (write(out, line, (size_t)length) != length) _exit(1);
}

/* Read whole lines of the file, at most its first `lines` lines and `room` bytes; returns the length. */
static size_t read_lines(const char *path, int lines, char *to, size_t room) {
    char text[COUNTERS_MAX];
    size_t length = 0, end = 0;
    int fd = openat(proc_dir, path, O_RDONLY | O_CLOEXEC); /* read(-1) fails */
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

/* Report the first correct answer. The guest's counters are read before that, so that the report itself does not count. */
static void tell_ready(int out, int64_t stamp, const char *text) {
    char counters[COUNTERS_MAX], packet[PACKET_MAX];
    size_t length = read_lines("stat", 1, counters, sizeof counters);
    length += read_lines("diskstats", INT_MAX, counters + length, sizeof counters - length);
    int64_t uptime = now(CLOCK_BOOTTIME);
    unsigned long long tsc = __builtin_ia32_rdtsc();
    tell(out, AGENT_READY, stamp, text);
    int header = snprintf(packet, sizeof packet, AGENT_COUNTERS " %lld %llu %zu\n", (long long)uptime, tsc, length);
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
        /* The kernel may set IFF_RUNNING a second after the carrier appears, so ask the driver about the carrier, too. */
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
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* with -1, all following calls fail */
    /* When nobody listens on a port of the ephemeral range, TCP can connect to itself. That is no answer. */
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
        connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && getsockname(fd, (struct sockaddr *)&here, &size) == 0 &&
        (here.sin_port != to.sin_port || here.sin_addr.s_addr != to.sin_addr.s_addr))
        return fd;
    /* Reset the connection, because after a close TIME_WAIT could make the server's bind() fail. */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* if this fails, the connection is closed in order */
    close(fd);
    return -1;
}

/* Whether `line` is "HTTP/1.x STATUS …". If so, end it after its text and replace unprintable bytes. */
static bool is_correct(char *line, const char *status) {
    line[strcspn(line, "\r\n")] = '\0';
    if (strlen(line) < 12 || strncmp(line, "HTTP/1.", 7) != 0 || line[8] != ' ') return false;
    if (strncmp(line + 9, status, 3) != 0 || (line[12] != ' ' && line[12] != '\0')) return false;
    if (strlen(line) >= STATUS_LINE_MAX) line[STATUS_LINE_MAX - 1] = '\0';
    for (char *c = line; *c; c++) *c = *c < ' ' || *c > '~' ? '?' : *c;
    return true;
}

/* Report readiness as soon as the status line has arrived. Then read the rest, so that the server sees no reset. */
static bool read_answer(int fd, const char *status, int out) {
    static char answer[ANSWER_MAX + 1];
    bool judged = false, correct = false;
    int64_t limit = now(CLOCK_MONOTONIC) + TRY_S * 1000 * MS;
    for (size_t length = 0; length < ANSWER_MAX && now(CLOCK_MONOTONIC) < limit;) {
        ssize_t got = recv(fd, answer + length, ANSWER_MAX - length, 0);
        int64_t stamp = now(CLOCK_BOOTTIME);
        if (got <= 0) break;
        length += (size_t)got;
        answer[length] = '\0'; /* also cuts off the rest of an earlier answer */
        if (judged || !strchr(answer, '\n')) continue;
        judged = true;
        if ((correct = is_correct(answer, status))) tell_ready(out, stamp, answer);
    }
    return correct;
}

static bool try_command(char *command, int out) {
    pid_t child = fork();
    if (child == 0) {
        alarm(EXEC_TRY_S); /* the alarm survives execve and ends the shell */
        exec_shell(command, -1, -1);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return false;
    int64_t stamp = now(CLOCK_BOOTTIME);
    if (WIFSIGNALED(status)) kill(-child, SIGKILL); /* the programs that the shell waited for, if any */
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
        int length = snprintf(ask, sizeof ask,
                              "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
                              "User-Agent: quickstart-probe\r\n\r\n",
                              ready->path, ready->loopback ? "127.0.0.1" : place->text); /* some servers accept no other name */
        /* The request fits into the buffer of a new socket. If it does not, this attempt has failed. */
        correct = send(fd, ask, (size_t)length, MSG_NOSIGNAL) == length && read_answer(fd, ready->status, out);
    }
    if (ready->kind == READY_MYSQL) correct = ask_databases(fd, ready->account, out);
    close(fd);
    return correct;
}

_Noreturn void probe(const struct ready *ready, int interval_ms, int out) {
    struct place last = {0};
    for (int inet = -1;;) {
        struct place place = {0};
        int64_t start = now(CLOCK_MONOTONIC);
        if (inet < 0) inet = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bool found = inet >= 0 && find_place(inet, &place);
        int64_t stamp = now(CLOCK_BOOTTIME);
        /* The network setup of the root volume may change the address that the initramfs has set, so report it again. */
        if (found && memcmp(&place, &last, sizeof place) != 0) {
            char text[sizeof place.ifname + sizeof place.text];
            snprintf(text, sizeof text, "%s %s", place.ifname, place.text);
            tell(out, AGENT_BEACON, stamp, text);
            last = place;
        }
        if (found && try_once(ready, &place, out)) _exit(0);
        sleep_until(start + (found ? interval_ms : STEP_MS) * MS);
    }
}

struct ready parse_ready(int count, char **words) {
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
        if (number(words[2], 100, 999) < 0 || strlen(words[2]) != 3 || words[3][0] != '/' || strlen(words[3]) > PATH_LIMIT ||
            strpbrk(words[3], " \t\r\n"))
            die("STATUS has three digits; PATH begins with /, has no white space and at most 2048 bytes");
        ready.kind = READY_HTTP;
        ready.status = words[2];
        ready.path = words[3];
    }
    return ready;
}
