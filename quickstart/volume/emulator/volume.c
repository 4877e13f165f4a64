/*
 * QuickStart's volume emulator: an NBD server that answers at the times of a storage model. docs/users/storage.md describes the arguments,
 * the model and the log. It has one thread, and each instance has one client at a time. Data are read and written when a request arrives,
 * so that the host's own disk works during the modelled time; the answer then waits until it is due.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "volume.h"

enum { LOG_ROOM = 1024, TRIM_MIN = 256 << 20 };
enum { RECORDS_MAX = 1 << 18 }; /* 16 MiB; a stock boot makes some thousand requests */
enum { EARLY_NS = 30000 };      /* poll() tends to return this much too late, so we poll without waiting for the rest */

/* A record of the log: 64 bytes in the byte order of the host. */
struct record {
    uint64_t sequence;
    int64_t arrival, due, done;
    uint64_t offset;
    uint32_t length, touched, client;
    uint16_t in_flight, instance;
    uint32_t error;
    uint16_t type, flags;
};
_Static_assert(sizeof(struct record) == VOLUME_RECORD_BYTES, "docs/users/storage.md says so");

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

/* dprintf(3) calls fstat(2), which the system call filter does not allow. */
void report(int fd, const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length >= (int)sizeof text) length = sizeof text - 1;
    if (length > 0 && write(fd, text, (size_t)length) < 0) errno = 0; /* nobody reads it */
}

_Noreturn void die(const char *what, const char *object) {
    report(STDERR_FILENO, "volume: %s: %s%s%s\n", what, object, errno ? ": " : "", errno ? strerror(errno) : "");
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
    if (record_total == RECORDS_MAX) {
        errno = 0;
        die("more requests than a log holds", "it ends here");
    }
    records[record_count++] = (struct record){request->sequence,
                                              request->arrival,
                                              request->due,
                                              done,
                                              request->offset,
                                              request->length,
                                              request->touched,
                                              request->client,
                                              (uint16_t)request->in_flight,
                                              request->from->number,
                                              request->error,
                                              request->type,
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
    _exit(status);
}

static void obey_signals(void) {
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo != SIGUSR1) end(0);
        flush_log();
        report(STDOUT_FILENO, "flushed %llu\n", (unsigned long long)record_total);
    }
}

static void welcome(struct instance *at) {
    at->fd = accept4(at->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (at->fd < 0) return; /* the client has gone */
    at->client = ++client_total;
    if (handshake_begin(&at->handshake, at->fd) == FAILED) leave(at);
}

/* Wait until a client sends something, or an answer is due. */
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

struct words {
    struct model model;
    uint64_t instances;
};

static struct words parse(int count, char **words) {
    struct words found = {.model = {.queue_depth = 1, .granule_bytes = 4096}};
    struct model *model = &found.model;
    const struct {
        const char *name;
        uint64_t *value, low, high;
    } figures[] = {
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
        else if (strcmp(words[i], "fault") == 0) fault_parse(value);
        else die("no such key", words[i]);
    }
    return found;
}

static int descriptor(const char *text) { return (int)number(text, 0, INT_MAX); }

/* Open every LISTENER:OVERLAY at the beginning of `words`; returns their number. */
static int open_instances(int count, char **words) {
    int found = 0;
    while (found < count && strchr(words[found], ':')) found++;
    if (found == 0) die("no LISTENER:OVERLAY", "usage");
    if (found > INSTANCES_MAX) die("more instances than there may be", words[INSTANCES_MAX]);
    instances = calloc((size_t)found, sizeof *instances);
    if (!instances) die("no memory", "instances");
    for (int i = 0; i < found; i++) {
        char *overlay = strchr(words[i], ':');
        *overlay++ = '\0';
        instances[i] = (struct instance){.listener = descriptor(words[i]), .fd = -1};
        const char *failed = overlay_open(&instances[i].overlay, descriptor(overlay));
        if (failed) die(failed, "overlay");
    }
    instance_count = (size_t)found;
    return found;
}

/* With the word `instances`, instances are numbered from 1. */
static void count_instances(uint64_t said) {
    if (said == 0 ? instance_count != 1 : instance_count != said) die("not as many sockets as instances", "usage");
    for (size_t i = 0; said > 0 && i < instance_count; i++) instances[i].number = (uint16_t)(i + 1);
}

static void heed_signals(void) {
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    sigaddset(&ours, SIGUSR1);
    /* When its parent ends, it gets a signal that leaves it time to write the log. */
    if (sigprocmask(SIG_BLOCK, &ours, NULL) < 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 ||
        (signals = signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC)) < 0)
        die("cannot set up", "signals");
}

int main(int argc, char **argv) {
    if (argc < 4) die("usage", "volume IMAGE LOG LISTENER:OVERLAY... [KEY=VALUE...]");
    heed_signals();
    /* We were started by the path of a descriptor, which would be our name. */
    prctl(PR_SET_NAME, "volume");
    prctl(PR_SET_TIMERSLACK, 1UL);
    mallopt(M_MMAP_THRESHOLD, LENGTH_MAX * 2); /* new pages for every request would cost more than the read */
    mallopt(M_TRIM_THRESHOLD, TRIM_MIN);
    errno = 0;
    log_fd = descriptor(argv[2]);
    const char *failed = disk_open(descriptor(argv[1]));
    if (failed) die(failed, "image");
    int taken = 3 + open_instances(argc - 3, argv + 3);
    struct words words = parse(argc - taken, argv + taken);
    count_instances(words.instances);
    if (!model_open(&words.model, disk_size())) die("no memory for granules", "model");
    write_log(VOLUME_LOG_MAGIC, VOLUME_LOG_MAGIC_BYTES);
    uint64_t log_length = VOLUME_LOG_MAGIC_BYTES + RECORDS_MAX * (uint64_t)sizeof(struct record);
    jail_shut(overlay_length() > log_length ? overlay_length() : log_length);
    report(STDOUT_FILENO, "ready\n");
    for (;;) {
        for (size_t i = 0; i < instance_count; i++)
            if (instances[i].fd >= 0 && !client_tend(&instances[i])) leave(&instances[i]);
        wait_for_all();
    }
}
