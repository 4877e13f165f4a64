/*
 * QuickStart's volume emulator: an NBD server that answers when the storage model says so. Arguments, model and log:
 * docs/storage.md. One thread, one client at a time. Data are read and written when a request arrives, so that the
 * host's own disk hides behind the modelled time; the answer then waits until it is due.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "volume.h"

enum { IN_FLIGHT_MAX = 256, BUFFERED_MAX = 256 << 20, LOG_ROOM = 1024 };
enum { EARLY_NS = 30000 };  /* poll() tends to wake us that much too late: it is called again and again for the rest */
static const uint32_t REQUEST_MAGIC = 0x25609513, REPLY_MAGIC = 0x67446698;
static const char LOG_MAGIC[] = "QSVOL  1";  /* 8 bytes without the last */

/* The log's record: 64 bytes, the byte order of the host. */
struct record {
    uint64_t sequence;
    int64_t arrival, due, done;
    uint64_t offset;
    uint32_t length, touched, client, in_flight, error;
    uint16_t type, flags;
};
_Static_assert(sizeof(struct record) == 64, "docs/storage.md says so");

static struct { enum { NONE, FAIL, STALL, DEATH } kind; uint64_t first, amount; int64_t until; } fault;
static const char *socket_path;
static int signals = -1, log_fd = -1;
static struct record records[LOG_ROOM];
static size_t record_count;
static uint64_t record_total, request_total;
static uint32_t client_total;
/* This client's. */
static unsigned char in[65536];
static size_t in_start, in_end;
static struct request *incoming;  /* a write whose payload is not all there yet */
static size_t incoming_got;
static struct list answers;  /* due, to be sent */
static uint32_t in_flight;
static size_t buffered;
static bool leaving;

int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static _Noreturn void die(const char *what, const char *object) {
    dprintf(STDERR_FILENO, "volume: %s: %s%s%s\n", what, object, errno ? ": " : "", errno ? strerror(errno) : "");
    if (signals >= 0 && socket_path) unlink(socket_path);
    _exit(2);
}

static void write_log(const void *data, size_t length) {
    errno = 0;
    if (write(log_fd, data, length) != (ssize_t)length) die("the log cannot be written", "a disk that is full?");
}

static void flush_log(void) {
    write_log(records, record_count * sizeof *records);
    record_count = 0;
}

static void note(const struct request *request, int64_t done) {
    records[record_count++] = (struct record){
        request->sequence, request->arrival, request->due, done, request->offset, request->length, request->touched,
        request->client, request->in_flight, request->error, request->type, request->flags};
    record_total++;
    if (record_count == LOG_ROOM) flush_log();
}

static void forget(struct request *request, int64_t done) {
    note(request, done);
    in_flight--;
    buffered -= request->length;
    free(request);
}

static void drop_client(void) {
    for (struct request *request; (request = take_first(&answers)) || (request = model_drop());) forget(request, 0);
    free(incoming);
    incoming = NULL;
    in_start = in_end = buffered = 0;
    leaving = false;
    flush_log();
}

static _Noreturn void end(int status) {
    drop_client();
    unlink(socket_path);
    _exit(status);
}

static void obey_signals(void) {
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo != SIGUSR1) end(0);
        flush_log();
        dprintf(STDOUT_FILENO, "flushed %llu\n", (unsigned long long)record_total);
    }
}

short wait_for(int fd, short events, int64_t until) {
    struct pollfd fds[] = {{.fd = fd, .events = events}, {.fd = signals, .events = POLLIN}};
    int64_t left = until == NEVER ? NEVER : until - now();
    if (left < 0) left = 0;
    struct timespec timeout = {.tv_sec = (time_t)(left / SECOND), .tv_nsec = (long)(left % SECOND)};
    if (ppoll(fds, 2, left == NEVER ? NULL : &timeout, NULL) <= 0) return 0;
    if (fds[1].revents) obey_signals();
    return fds[0].revents;
}

/* ---- answers */

static void answer(struct request *request) {
    put_big_endian(request->reply, 4, REPLY_MAGIC);
    put_big_endian(request->reply + 4, 4, request->error);
    put_big_endian(request->reply + 8, 8, request->cookie);
    request->reply_length = REPLY_HEADER;
    if (request->type == READ && request->error == 0) request->reply_length += request->length;
    append(&answers, request);
}

static void answer_due(int64_t clock) {
    for (struct request *request; (request = model_answered(clock));) answer(request);
}

/* As much as the socket takes; false when the client is gone. */
static bool send_answers(int client) {
    for (struct request *request; (request = answers.first);) {
        ssize_t put = send(client, request->reply + request->reply_sent, request->reply_length - request->reply_sent,
                           MSG_NOSIGNAL);
        if (put < 0) return errno == EAGAIN || errno == EINTR;
        request->reply_sent += (size_t)put;
        if (request->reply_sent == request->reply_length) forget(take_first(&answers), now());
    }
    return true;
}

/* ---- requests */

/* 0, or the errno that the request deserves for what it asks. */
static uint32_t refusal(const struct request *request) {
    if (request->type == FLUSH) return request->offset || request->length || request->flags & ~FLAG_FUA ? EINVAL : 0;
    if (!is_modelled(request) && request->type != TRIM) return EINVAL;  /* no such command */
    int allowed = request->type == WRITE_ZEROES ? FLAG_FUA | FLAG_NO_HOLE : FLAG_FUA;
    if (request->flags & ~allowed || request->length == 0) return EINVAL;
    if (request->type == READ && request->length > LENGTH_MAX) return EINVAL;
    if (request->offset > disk_size() || request->length > disk_size() - request->offset)
        return request->type == READ || request->type == TRIM ? EINVAL : ENOSPC;
    return 0;
}

static uint32_t do_work(struct request *request) {
    unsigned char *data = request->reply + REPLY_HEADER;
    int error = 0;
    if (request->type == READ) error = disk_read(data, request->offset, request->length);
    if (request->type == WRITE) error = disk_write(data, request->offset, request->length);
    if (request->type == WRITE_ZEROES) error = disk_zero(request->offset, request->length);
    return error == 0 || error == ENOSPC ? (uint32_t)error : EIO;
}

static void apply_fault(int client, struct request *request) {
    uint64_t number = request->sequence;
    if (fault.kind == NONE || number < fault.first) return;
    if (fault.kind == FAIL && (fault.amount == 0 || number - fault.first < fault.amount)) request->error = EIO;
    if (fault.kind == STALL) {
        if (number == fault.first && fault.amount > 0)
            fault.until = request->arrival + (int64_t)fault.amount * (SECOND / 1000);
        request->not_before = fault.until > request->arrival ? fault.until : request->arrival;
    }
    if (fault.kind == DEATH) {
        unsigned char half[REPLY_HEADER / 2] = {0};
        put_big_endian(half, 4, REPLY_MAGIC);
        if (send(client, half, sizeof half, MSG_NOSIGNAL) < 0) errno = 0;  /* gone already: nobody misses it */
        dprintf(STDERR_FILENO, "volume: fault death at request %llu\n", (unsigned long long)number);
        append(&answers, request);
        end(3);
    }
}

static void arrive(int client, struct request *request, int64_t clock) {
    request->sequence = ++request_total;
    request->client = client_total;
    request->arrival = request->not_before = clock;
    request->in_flight = ++in_flight;
    buffered += request->length;
    apply_fault(client, request);
    if (request->error == 0) request->error = refusal(request);
    if (request->error == 0) request->error = do_work(request);
    if (is_modelled(request) || request->not_before > clock) {
        model_arrive(request);
    } else {
        request->due = clock;
        answer(request);
    }
}

/* A request of the header in `in`; NULL when that is none, or longer than we have promised to take. */
static struct request *new_request(void) {
    const unsigned char *header = in + in_start;
    uint32_t length = (uint32_t)big_endian(header + 24, 4);
    uint16_t type = (uint16_t)big_endian(header + 6, 2);
    if (big_endian(header, 4) != REQUEST_MAGIC || (type == WRITE && length > LENGTH_MAX)) return NULL;
    bool has_data = (type == READ || type == WRITE) && length <= LENGTH_MAX;
    struct request *request = malloc(sizeof *request + REPLY_HEADER + (has_data ? length : 0));
    if (!request) die("no memory", "request");
    *request = (struct request){.cookie = big_endian(header + 8, 8), .offset = big_endian(header + 16, 8), .length = length,
                                .type = type, .flags = (uint16_t)big_endian(header + 4, 2)};
    in_start += REQUEST_HEADER;
    return request;
}

/* Takes requests out of `in`, as long as there is room for them; false when what is there is not the protocol. */
static bool take_requests(int client, int64_t clock) {
    while (!leaving && !incoming && in_end - in_start >= REQUEST_HEADER && in_flight < IN_FLIGHT_MAX &&
           buffered < BUFFERED_MAX) {
        struct request *request = new_request();
        if (!request) return false;
        if (request->type == DISCONNECT) {
            leaving = true;
            free(request);
        } else if (request->type == WRITE) {
            size_t there = in_end - in_start;
            incoming_got = there < request->length ? there : request->length;
            memcpy(request->reply + REPLY_HEADER, in + in_start, incoming_got);
            in_start += incoming_got;
            if (incoming_got < request->length) incoming = request;
            else arrive(client, request, clock);
        } else {
            arrive(client, request, clock);
        }
    }
    memmove(in, in + in_start, in_end - in_start);
    in_end -= in_start;
    in_start = 0;
    return true;
}

/* One read from the socket; false when the client is gone. */
static bool receive(int client) {
    unsigned char *to = incoming ? incoming->reply + REPLY_HEADER + incoming_got : in + in_end;
    size_t room = incoming ? incoming->length - incoming_got : sizeof in - in_end;
    ssize_t got = room > 0 ? recv(client, to, room, 0) : -1;
    if (got < 0) return room == 0 || errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    int64_t clock = now();
    answer_due(clock);
    if (incoming) incoming_got += (size_t)got;
    else in_end += (size_t)got;
    if (incoming && incoming_got == incoming->length) {
        struct request *request = incoming;
        incoming = NULL;
        arrive(client, request, clock);
    }
    return true;
}

static void serve(int client) {
    bool good = true;
    while (good && !(leaving && in_flight == 0)) {
        int64_t clock = now();
        answer_due(clock);
        good = take_requests(client, clock) && send_answers(client);
        if (!good || (leaving && in_flight == 0)) break;
        answer_due(clock);  /* what has arrived and costs nothing */
        if (answers.first && !send_answers(client)) break;
        bool room = !leaving && in_flight < IN_FLIGHT_MAX && buffered < BUFFERED_MAX;
        int64_t next = model_next();
        short seen = wait_for(client, (short)((room ? POLLIN : 0) | (answers.first ? POLLOUT : 0)),
                              next == NEVER ? NEVER : next - EARLY_NS);
        if (seen & POLLIN) good = receive(client);
        else if (seen & (POLLHUP | POLLERR)) good = false;
    }
    drop_client();
}

/* ---- arguments */

static uint64_t number(const char *text, uint64_t low, uint64_t high) {
    char *rest;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (rest == text || *rest != '\0' || *text == '-' || errno || value < low || value > high) {
        errno = 0;
        die("a number is malformed or out of range", text);
    }
    return value;
}

static void parse_fault(char *text) {
    char *kind = strtok(text, ":"), *first = strtok(NULL, ":"), *amount = strtok(NULL, ":");
    if (!kind || !first || strtok(NULL, ":")) die("fault= is error:N[:COUNT], stall:N[:MS] or death:N", text);
    if (strcmp(kind, "error") == 0) fault.kind = FAIL;
    else if (strcmp(kind, "stall") == 0) fault.kind = STALL;
    else if (strcmp(kind, "death") == 0 && !amount) fault.kind = DEATH;
    else die("fault= is error:N[:COUNT], stall:N[:MS] or death:N", text);
    fault.first = number(first, 1, UINT32_MAX);
    fault.amount = amount ? number(amount, 1, UINT32_MAX) : 0;
    fault.until = NEVER;
}

static struct model parse(int count, char **words, const char **overlay) {
    struct model model = {.queue_depth = 1, .granule_bytes = 4096};
    const struct { const char *name; uint64_t *value, low, high; } figures[] = {
        {"read_latency_ns", &model.read_latency_ns, 0, 3600 * (uint64_t)SECOND},
        {"write_latency_ns", &model.write_latency_ns, 0, 3600 * (uint64_t)SECOND},
        {"bandwidth_bytes_s", &model.bandwidth_bytes_s, 0, INT64_MAX},
        {"queue_depth", &model.queue_depth, 1, INT32_MAX},
        {"granule_bytes", &model.granule_bytes, 512, INT64_MAX},
        {"first_touch_ns", &model.first_touch_ns, 0, 3600 * (uint64_t)SECOND},
        {"seek_ns", &model.seek_ns, 0, 3600 * (uint64_t)SECOND},
    };
    for (int i = 0; i < count; i++) {
        char *value = strchr(words[i], '=');
        if (!value) die("not KEY=VALUE", words[i]);
        *value++ = '\0';
        size_t known = 0, figure_count = sizeof figures / sizeof *figures;
        while (known < figure_count && strcmp(words[i], figures[known].name) != 0) known++;
        if (known < figure_count) *figures[known].value = number(value, figures[known].low, figures[known].high);
        else if (strcmp(words[i], "overlay") == 0) *overlay = value;
        else if (strcmp(words[i], "fault") == 0) parse_fault(value);
        else die("no such key", words[i]);
    }
    return model;
}

static int listen_on(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (snprintf(to.sun_path, sizeof to.sun_path, "%s", path) >= (int)sizeof to.sun_path)
        die("a socket's path has at most 107 bytes", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to) < 0) die("cannot listen", path);
    socket_path = path;
    if (listen(fd, 8) < 0) die("cannot listen", path);
    return fd;
}

int main(int argc, char **argv) {
    const char *overlay = NULL;
    sigset_t ours;
    if (argc < 4) die("usage", "volume IMAGE SOCKET LOG [KEY=VALUE ...]");
    struct model model = parse(argc - 4, argv + 4, &overlay);
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    sigaddset(&ours, SIGUSR1);
    /* With its parent it ends by a signal that leaves time to remove the socket. */
    if (sigprocmask(SIG_BLOCK, &ours, NULL) < 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 ||
        (signals = signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC)) < 0)
        die("cannot set up", "signals");
    prctl(PR_SET_TIMERSLACK, 1UL);
    /* A real volume does not compete with its host's processes. We sleep nearly always; without the right we are just later. */
    sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &(struct sched_param){.sched_priority = 1});
    mallopt(M_MMAP_THRESHOLD, LENGTH_MAX * 2);  /* fresh pages for every request would cost more than reading it */
    mallopt(M_TRIM_THRESHOLD, BUFFERED_MAX);
    errno = 0;
    const char *failed = disk_open(argv[1], overlay, argv[2]);
    if (failed) die(failed, strstr(failed, "overlay") && overlay ? overlay : argv[1]);
    if (!model_open(&model, disk_size())) die("no memory for granules", argv[1]);
    log_fd = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) die("cannot make the log", argv[3]);
    write_log(LOG_MAGIC, 8);
    int listener = listen_on(argv[2]);
    dprintf(STDOUT_FILENO, "ready\n");
    for (;;) {
        if (!wait_for(listener, POLLIN, NEVER)) continue;
        int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client < 0) continue;  /* gone again */
        client_total++;
        if (handshake(client, disk_size())) serve(client);
        close(client);
    }
}
