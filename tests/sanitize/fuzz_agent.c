/*
 * What the agent reads: requests from the host, answers of the application to the HTTP and the MySQL request, the two READY forms.
 * The first byte of the input chooses.
 */
#define main agent_main
#include "agent.c"
#undef main
#include "probe.c"

#include "fuzz.h"
#include "mysql.h"

static int out = -1;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    proc_dir = open("/proc", O_PATH | O_DIRECTORY);
    dev_dir = open("/dev", O_PATH | O_DIRECTORY);
    out = open("/dev/null", O_WRONLY);
    DEMAND(proc_dir >= 0 && dev_dir >= 0 && out >= 0);
    return 0;
}

/* A connection on which the application has said all that, and closed. */
static int said(const uint8_t *data, size_t size) {
    int ends[2], room = 1 << 20;
    DEMAND(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    DEMAND(setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    while (size > 0) {
        ssize_t put = send(ends[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put <= 0) break;
        data += put;
        size -= (size_t)put;
    }
    shutdown(ends[1], SHUT_WR);
    /* The other end stays open until we are done with this one: what we send is no error. */
    DEMAND(dup2(ends[1], 100) == 100);
    close(ends[1]);
    return ends[0];
}

static void take_requests(const uint8_t *data, size_t size) {
    request_length = 0;
    while (size > 0 || request_length > 0) {
        size_t room = sizeof request - 1 - request_length, more = size < room ? size : room, length = 0;
        memcpy(request + request_length, data, more);
        request_length += more;
        data += more;
        size -= more;
        int header = parse_request(&length);
        if (header == 0 && size == 0) return;
        DEMAND(header <= REQUEST_LINE_MAX && (header != 0 || request_length < sizeof request - 1));
        size_t used = header > 0 ? (size_t)header + length : header < 0 ? request_length : 0;
        DEMAND(used <= request_length && (header <= 0 || (size_t)header + length < sizeof request));
        request_length -= used;
        memmove(request, request + used, request_length);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    int kind = data[0] % 4;
    if (kind == 0) {
        take_requests(data + 1, size - 1);
        return 0;
    }
    if (kind == 3) {
        char line[STATUS_LINE_MAX * 2] = "";
        memcpy(line, data + 1, size - 1 < sizeof line - 1 ? size - 1 : sizeof line - 1);
        if (is_correct(line, "200"))
            for (const char *c = line; *c; c++) DEMAND(*c >= ' ' && *c <= '~');
        DEMAND(strlen(line) < sizeof line);
        return 0;
    }
    int fd = said(data + 1, size - 1);
    if (kind == 1) (void)read_answer(fd, "200", out);
    else DEMAND(list_databases(fd, "quickstart", now(CLOCK_MONOTONIC) + 100 * MS) >= 0);
    close(fd);
    return 0;
}
