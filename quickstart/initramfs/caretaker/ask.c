/* Sends the profile's HTTP request to the application on the machine itself, as the agent does (docs/internals/agent.md). The application may be
   hostile, so the time and the length of the answer are limited, and only the status of the answer counts. */
#include "caretaker.h"

#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A server may accept long before it serves, so there is much time for the answer. After its first line, a server that is
   still sending gets a moment to end, so that it sees no reset. */
enum { ANSWER_MS = 10000, REST_MS = 200 };
enum { REQUEST_MAX = 4096, STATUS_LINE_MAX = 512, REST_MAX = 65536 };

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Whether the socket is ready for `events` before `end_ms`. */
static bool is_ready(int fd, short events, long long end_ms) {
    struct pollfd poller = {.fd = fd, .events = events};
    long long left_ms = end_ms - now_ms();
    return left_ms > 0 && poll(&poller, 1, (int)left_ms) == 1;
}

/* A connected socket, or -1. When nobody listens on a port of the ephemeral range, TCP can connect to itself. That is no answer. */
static int connect_to(const struct sockaddr_in *to, long long end_ms) {
    struct sockaddr_in here;
    socklen_t size = sizeof here, error_size = sizeof(int);
    int error = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    (void)connect(fd, (const struct sockaddr *)to, sizeof *to); /* SO_ERROR says how it went */
    if (is_ready(fd, POLLOUT, end_ms) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 && error == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &size) == 0 && (here.sin_port != to->sin_port || here.sin_addr.s_addr != to->sin_addr.s_addr))
        return fd;
    close(fd);
    return -1;
}

static bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/* The status of "HTTP/1.x NNN…", at the beginning of what has come; NULL for any other line. */
static const char *status_of(const char *answer) {
    if (strncmp(answer, "HTTP/1.", 7) != 0 || !is_digit(answer[7]) || answer[8] != ' ') return NULL;
    for (int at = 9; at < 12; at++)
        if (!is_digit(answer[at])) return NULL;
    return strchr(" \r\n", answer[12]) && answer[12] ? answer + 9 : NULL;
}

/* Reads until a line is whole; false when none comes. */
static bool read_line(int fd, char line[STATUS_LINE_MAX + 1], long long end_ms) {
    for (size_t length = 0; length < STATUS_LINE_MAX && is_ready(fd, POLLIN, end_ms);) {
        ssize_t got = recv(fd, line + length, STATUS_LINE_MAX - length, 0);
        if (got <= 0) return false;
        length += (size_t)got;
        line[length] = '\0';
        if (memchr(line, '\n', length)) return true;
    }
    return false;
}

static void read_rest(int fd, long long end_ms) {
    char rest[4096];
    ssize_t got = 1;
    for (long total = 0; got > 0 && total < REST_MAX && is_ready(fd, POLLIN, end_ms); total += got) got = recv(fd, rest, sizeof rest, 0);
}

enum answer ask(const char *address, uint16_t port, const char *status, const char *path) {
    char request[REQUEST_MAX], line[STATUS_LINE_MAX + 1];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct linger reset = {.l_onoff = 1};
    enum answer answer = ANSWER_NONE;
    const char *found;
    int length =
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nUser-Agent: quickstart-init\r\n\r\n", path, address);
    if (length >= (int)sizeof request || inet_pton(AF_INET, address, &to.sin_addr) != 1) return ANSWER_NONE;
    long long end_ms = now_ms() + ANSWER_MS;
    int fd = connect_to(&to, end_ms);
    if (fd < 0) return ANSWER_NONE;
    /* The request fits into the buffer of a new socket. If it does not, this attempt has failed. */
    if (send(fd, request, (size_t)length, MSG_NOSIGNAL) == length && read_line(fd, line, end_ms) && (found = status_of(line)) != NULL) {
        answer = strncmp(found, status, 3) == 0 ? ANSWER_RIGHT : ANSWER_OTHER;
        read_rest(fd, now_ms() + REST_MS);
    }
    /* Otherwise reset the connection: after a close, TIME_WAIT could make the server's bind() fail. */
    if (answer == ANSWER_NONE) (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* if this fails, it is closed in order */
    close(fd);
    return answer;
}
