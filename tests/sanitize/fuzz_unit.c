/*
 * What the starter reads: the unit's description, an environment file, /etc/passwd and /etc/group, notify messages, the words of a
 * command, messages of the bus. The first byte of the input chooses. Compiled with -Dmalloc=held_malloc and so on: the starter never gives memory back.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bus.h"
#include "fuzz.h"
#include "starter.h"

/* The parts that are static. */
#include "description.c"
#include "users.c"
#include "sockets.c"
#undef MESSAGE_MAX
#include "notify.c"

#undef malloc
#undef calloc
#undef realloc
#undef free
#undef vasprintf
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *old, size_t bytes);
void free(void *old);

enum { HELD_MAX = 1 << 20 };
static void *held[HELD_MAX];
static size_t held_count;
static jmp_buf failed;
static char file[] = "/dev/shm/fuzz-unit.XXXXXX";
static int file_fd, bus_fd = -1;

static void *hold(void *made) {
    DEMAND(made && held_count < HELD_MAX);
    return held[held_count++] = made;
}
static size_t place_of(const void *old) {
    for (size_t i = held_count; i > 0; i--)
        if (held[i - 1] == old) return i - 1;
    abort();
}
void *held_malloc(size_t bytes);
void *held_calloc(size_t count, size_t bytes);
void *held_realloc(void *old, size_t bytes);
void held_free(void *old);
int held_vasprintf(char **to, const char *format, va_list values);
int(vasprintf)(char **to, const char *format, va_list values);

void *held_malloc(size_t bytes) { return hold(malloc(bytes)); }
void *held_calloc(size_t count, size_t bytes) { return hold(calloc(count, bytes)); }
void *held_realloc(void *old, size_t bytes) {
    if (!old) return hold(malloc(bytes));
    size_t place = place_of(old);
    return held[place] = realloc(old, bytes);
}
void held_free(void *old) {
    if (!old) return;
    size_t place = place_of(old);
    free(old);
    held[place] = held[--held_count];
}
int held_vasprintf(char **to, const char *format, va_list values) {
    int length = (vasprintf)(to, format, values);
    if (length >= 0) hold(*to);
    return length;
}

/* Instead of dynamic.c, which looks at directories and at the IPC. */
uid_t made_up_number(void) { return 61184; }

/* Instead of fail.c. */
_Noreturn void fail(const char *format, ...) {
    char reason[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    longjmp(failed, 1);
}

/* Instead of main.c, group.c, journal.c and process.c. */
const char *journal_stream(void) { return NULL; }
enum { LATEST_MS = 2000 };
const char *limit_of(int64_t deadline) {
    (void)deadline;
    return "the time";
}
bool in_group(pid_t pid) { return pid % 2 == 0; }
bool wait_for(int fd, int64_t deadline) {
    (void)deadline;
    return fd == bus_fd;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    file_fd = mkstemp(file);
    DEMAND(file_fd >= 0);
    return 0;
}

static void put(const uint8_t *data, size_t size) { DEMAND(ftruncate(file_fd, 0) == 0 && pwrite(file_fd, data, size, 0) == (ssize_t)size); }

static void look_at_description(void) {
    read_description(file);
    for (const struct record *r = NULL; (r = next_record(r, NULL));) {
        DEMAND(r->key && r->words[r->count] == NULL);
        for (size_t i = 0; i < r->count; i++) DEMAND(strlen(r->words[i]) < SIZE_MAX);
    }
    (void)fact("type", "none");
    (void)number(fact("start-timeout-ms", "90000"));
    if (socket_count() > 0) DEMAND(strlen(socket_names()) < SIZE_MAX);
    DEMAND(first_socket() >= FIRST_SOCKET && first_socket() + socket_count() <= FIRST_SOCKET + MOST_SOCKETS);
    (void)count_of("companion-socket", MOST_SOCKETS - socket_count());
    for (const struct record *r = NULL; (r = next_record(r, "socket"));) {
        union address address;
        DEMAND(address_of(r, &address) <= sizeof address);
        (void)type_of(r);
    }
    const struct record *command = next_record(NULL, "command");
    if (!command || command->count < 4) return;
    struct list environment = {0};
    append(&environment, text("A=one  'two three'"));
    append(&environment, text("B="));
    char **argv = expand(command->words + 3, &environment);
    while (argv && *argv) DEMAND(strlen(*argv++) < SIZE_MAX);
}

/* They come on a socket, and then the bus closes it. What is longer than the buffer of a socket is cut. */
static void look_at_bus(const uint8_t *data, size_t size) {
    struct bus_message message;
    int ends[2];
    DEMAND(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    bus_fd = ends[0];
    if (size > 0) (void)send(ends[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(ends[1]);
    while (bus_next(bus_fd, &message, 0)) {
        size_t at = 0;
        DEMAND(strlen(message.member) < BUS_HEADER_MAX && strlen(message.destination) < BUS_HEADER_MAX);
        DEMAND(message.body_size <= BUS_BODY_KEPT);
        if (message.kind == BUS_SIGNAL)
            for (int i = 0; i < 3; i++) DEMAND(strlen(bus_string(&message, &at)) < BUS_BODY_KEPT);
        else (void)bus_number(&message, &at);
        DEMAND(at <= message.body_size);
    }
}

static void take(int kind, const uint8_t *data, size_t size) {
    struct list environment = {0};
    char *fields[PASSWD_FIELDS], *rest;
    pid_t main_pid = 2;
    int64_t deadline = 1000;
    switch (kind) {
    case 0:
        look_at_description();
        break;
    case 1:
        read_variables(file, false, &environment);
        for (size_t i = 0; i < environment.count; i++) DEMAND(strchr(environment.items[i], '='));
        break;
    case 2:
        look_up(file, "1000", fields, PASSWD_FIELDS);
        (void)number(fields[2]);
        break;
    case 3:
        rest = load(file);
        while (next_line(&rest, fields, GROUP_FIELDS)) (void)lists_member(fields[3], "adm");
        break;
    case 4:
        look_at_bus(data, size);
        break;
    default:
        rest = load(file);
        (void)says_ready(rest, &main_pid, &deadline, LATEST_MS);
        DEMAND(deadline >= 1000 && deadline <= LATEST_MS);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    put(data + 1, size - 1);
    if (setjmp(failed) == 0) take(data[0] % 6, data + 1, size - 1);
    if (bus_fd >= 0) close(bus_fd);
    bus_fd = -1;
    records = NULL;
    record_count = 0;
    while (held_count > 0) free(held[--held_count]);
    return 0;
}
