/*
 * QuickStart's volume emulator: an NBD server that answers when the storage model says so. Arguments, model and log:
 * docs/users/storage.md. One thread; each instance has one client at a time. Data are read and written when a request arrives, so that the
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

enum { LOG_ROOM = 1024, TRIM_MIN = 256 << 20 };
enum { EARLY_NS = 30000 };  /* poll() tends to wake us that much too late: it is called again and again for the rest */
static const char LOG_MAGIC[] = "QSVOL  1";  /* 8 bytes without the last */

/* The log's record: 64 bytes, the byte order of the host. */
struct record {
    uint64_t sequence;
    int64_t arrival, due, done;
    uint64_t offset;
    uint32_t length, touched, client;
    uint16_t in_flight, instance;
    uint32_t error;
    uint16_t type, flags;
};
_Static_assert(sizeof(struct record) == 64, "docs/users/storage.md says so");

static struct instance *instances;
static size_t instance_count;
static int signals = -1, log_fd = -1;
static struct record records[LOG_ROOM];
static size_t record_count;
static uint64_t record_total;
static uint32_t client_total;

int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static void unlink_sockets(void) {
    for (size_t i = 0; i < instance_count; i++)
        if (instances[i].listener >= 0) unlink(instances[i].path);
}

_Noreturn void die(const char *what, const char *object) {
    dprintf(STDERR_FILENO, "volume: %s: %s%s%s\n", what, object, errno ? ": " : "", errno ? strerror(errno) : "");
    unlink_sockets();
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

void note(const struct request *request, int64_t done) {
    records[record_count++] = (struct record){
        request->sequence, request->arrival, request->due, done, request->offset, request->length, request->touched,
        request->client, (uint16_t)request->in_flight, request->from->number, request->error, request->type,
        request->flags};
    record_total++;
    if (record_count == LOG_ROOM) flush_log();
}

static void leave(struct instance *at) {
    client_drop(at);
    close(at->fd);
    at->fd = -1;
    flush_log();
}

_Noreturn void end(int status) {
    for (size_t i = 0; i < instance_count; i++) client_drop(&instances[i]);
    flush_log();
    unlink_sockets();
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

static void welcome(struct instance *at) {
    at->fd = accept4(at->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (at->fd < 0) return;  /* gone again */
    at->client = ++client_total;
    if (handshake_begin(&at->handshake, at->fd) == FAILED) leave(at);
}

/* Until one of them has something to say, or something is due. */
static void wait_for_all(void) {
    struct pollfd fds[INSTANCES_MAX + 1];
    int64_t until = model_next();
    if (until != NEVER) until -= EARLY_NS;
    for (size_t i = 0; i < instance_count; i++) {
        const struct instance *at = &instances[i];
        bool there = at->fd >= 0;
        fds[i] = (struct pollfd){.fd = there ? at->fd : at->listener, .events = there ? client_events(at) : POLLIN};
        if (there && !at->greeted && at->handshake.until < until) until = at->handshake.until;
        if (there && client_pending(at)) until = 0;
    }
    fds[instance_count] = (struct pollfd){.fd = signals, .events = POLLIN};
    int64_t left = until == NEVER ? NEVER : until - now();
    if (left < 0) left = 0;
    struct timespec timeout = {.tv_sec = (time_t)(left / SECOND), .tv_nsec = (long)(left % SECOND)};
    if (ppoll(fds, instance_count + 1, left == NEVER ? NULL : &timeout, NULL) <= 0) return;
    if (fds[instance_count].revents) obey_signals();
    for (size_t i = 0; i < instance_count; i++) {
        struct instance *at = &instances[i];
        if (at->fd < 0 && fds[i].revents) welcome(at);
        else if (fds[i].revents & POLLIN && !client_receive(at)) leave(at);
        else if (!(fds[i].revents & POLLIN) && fds[i].revents & (POLLHUP | POLLERR)) leave(at);
    }
}

/* ---- arguments */

uint64_t number(const char *text, uint64_t low, uint64_t high) {
    char *rest;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (rest == text || *rest != '\0' || *text == '-' || errno || value < low || value > high) {
        errno = 0;
        die("a number is malformed or out of range", text);
    }
    return value;
}

struct words { struct model model; uint64_t instances; const char *overlay; };

static struct words parse(int count, char **words) {
    struct words found = {.model = {.queue_depth = 1, .granule_bytes = 4096}};
    struct model *model = &found.model;
    const struct { const char *name; uint64_t *value, low, high; } figures[] = {
        {"read_latency_ns", &model->read_latency_ns, 0, 3600 * (uint64_t)SECOND},
        {"write_latency_ns", &model->write_latency_ns, 0, 3600 * (uint64_t)SECOND},
        {"bandwidth_bytes_s", &model->bandwidth_bytes_s, 0, INT64_MAX},
        {"queue_depth", &model->queue_depth, 1, INT32_MAX},
        {"granule_bytes", &model->granule_bytes, 512, INT64_MAX},
        {"first_touch_ns", &model->first_touch_ns, 0, 3600 * (uint64_t)SECOND},
        {"seek_ns", &model->seek_ns, 0, 3600 * (uint64_t)SECOND},
        {"instances", &found.instances, 1, INSTANCES_MAX},
    };
    for (int i = 0; i < count; i++) {
        char *value = strchr(words[i], '=');
        if (!value) die("not KEY=VALUE", words[i]);
        *value++ = '\0';
        size_t known = 0, figure_count = sizeof figures / sizeof *figures;
        while (known < figure_count && strcmp(words[i], figures[known].name) != 0) known++;
        if (known < figure_count) *figures[known].value = number(value, figures[known].low, figures[known].high);
        else if (strcmp(words[i], "overlay") == 0) found.overlay = value;
        else if (strcmp(words[i], "fault") == 0) fault_parse(value);
        else die("no such key", words[i]);
    }
    return found;
}

/* PATH, or PATH.NUMBER. */
static const char *numbered(const char *path, uint16_t number) {
    char *name = NULL;
    if (number == 0 || path == NULL) return path;
    if (asprintf(&name, "%s.%u", path, number) < 0) die("no memory", path);
    return name;
}

static int listen_on(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (snprintf(to.sun_path, sizeof to.sun_path, "%s", path) >= (int)sizeof to.sun_path)
        die("a socket's path has at most 107 bytes", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to) < 0) die("cannot listen", path);
    if (listen(fd, 8) < 0) {
        unlink(path);
        die("cannot listen", path);
    }
    return fd;
}

static void open_instances(const struct words *words, const char *socket_path, const char *scratch) {
    size_t count = words->instances > 0 ? words->instances : 1;
    instances = calloc(count, sizeof *instances);
    if (!instances) die("no memory", "instances");
    for (size_t i = 0; i < count; i++) {
        uint16_t number = words->instances > 0 ? (uint16_t)(i + 1) : 0;
        const char *overlay = numbered(words->overlay, number);
        instances[i] = (struct instance){
            .path = numbered(socket_path, number), .listener = -1, .fd = -1, .number = number};
        const char *failed = overlay_open(&instances[i].overlay, overlay, scratch);
        if (failed) die(failed, overlay ? overlay : scratch);
    }
    instance_count = count;
}

int main(int argc, char **argv) {
    sigset_t ours;
    if (argc < 4) die("usage", "volume IMAGE SOCKET LOG [KEY=VALUE ...]");
    struct words words = parse(argc - 4, argv + 4);
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
    mallopt(M_TRIM_THRESHOLD, TRIM_MIN);
    errno = 0;
    const char *failed = disk_open(argv[1]);
    if (failed) die(failed, argv[1]);
    open_instances(&words, argv[2], argv[3]);  /* beside the log: sockets may have to be elsewhere */
    if (!model_open(&words.model, disk_size())) die("no memory for granules", argv[1]);
    log_fd = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) die("cannot make the log", argv[3]);
    write_log(LOG_MAGIC, 8);
    for (size_t i = 0; i < instance_count; i++) instances[i].listener = listen_on(instances[i].path);
    dprintf(STDOUT_FILENO, "ready\n");
    for (;;) {
        for (size_t i = 0; i < instance_count; i++)
            if (instances[i].fd >= 0 && !client_tend(&instances[i])) leave(&instances[i]);
        wait_for_all();
    }
}
