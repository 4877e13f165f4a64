/* The messages of D-Bus: "Message Protocol" and "Authentication Protocol" of its specification. */
#include "bus.h"
#include "starter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* REST_MS: for what is left of a message that has begun. */
enum { LINE_MAX_BYTES = 512, REQUEST_MAX = 2048, REST_MS = 5000, FIXED = 16, MOST_BODY = 128 << 20, SERIAL = 1 };
/* The codes of the header's fields, and the types of their values. */
enum { PATH = 1, INTERFACE, MEMBER, ERROR_NAME, REPLY_SERIAL, DESTINATION, SENDER, SIGNATURE, UNIX_FDS };
static const char TYPES[] = {0, 'o', 's', 's', 's', 'u', 's', 's', 'g', 'u'};
static const char OWN_NAME[] = "org.freedesktop.DBus";

static size_t aligned(size_t at, size_t to) { return (at + to - 1) / to * to; }

static bool read_all(int bus, void *to, size_t size, int64_t deadline) {
    for (size_t have = 0; have < size;) {
        if (!wait_for(bus, deadline)) return false;
        ssize_t got = recv(bus, (char *)to + have, size - have, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) fail("the bus has closed the connection");
        have += (size_t)got;
    }
    return true;
}

static void read_rest(int bus, void *to, size_t size) {
    if (!read_all(bus, to, size, now_ms() + REST_MS)) fail("the bus has not sent the whole of a message");
}

static void send_all(int bus, const void *what, size_t size) {
    /* The bus reads it at once, or never: it fits into the buffer of the socket, which has a time limit besides. */
    if (send(bus, what, size, MSG_NOSIGNAL) != (ssize_t)size) fail("the bus takes no message");
}

/* EXTERNAL: the bus knows us by the credentials of the socket. */
static void authenticate(int bus, int64_t deadline) {
    char hello[64], line[LINE_MAX_BYTES] = "", user[16];
    int digits = snprintf(user, sizeof user, "%u", (unsigned)geteuid());
    int length = snprintf(hello, sizeof hello, "%cAUTH EXTERNAL ", 0);
    for (int i = 0; i < digits; i++) length += snprintf(hello + length, sizeof hello - (size_t)length, "%02x", (unsigned char)user[i]);
    length += snprintf(hello + length, sizeof hello - (size_t)length, "\r\n");
    send_all(bus, hello, (size_t)length);
    for (size_t have = 0; !strchr(line, '\n'); have++)
        if (have + 1 >= sizeof line || !read_all(bus, line + have, 1, deadline)) fail("the bus does not greet");
    if (strncmp(line, "OK ", 3) != 0) fail("the bus does not know us");
    send_all(bus, "BEGIN\r\n", 7);
}

struct request {
    size_t size;
    uint8_t bytes[REQUEST_MAX];
};

/* Without room, the size goes beyond REQUEST_MAX, and `call` fails. */
static void put(struct request *r, const void *what, size_t size, size_t align) {
    size_t at = aligned(r->size, align);
    r->size = at + size;
    if (r->size <= sizeof r->bytes) memcpy(r->bytes + at, what, size);
}

static void put_number(struct request *r, uint32_t value) { put(r, &value, sizeof value, 4); }

static void put_string(struct request *r, const char *value) {
    put_number(r, (uint32_t)strlen(value));
    put(r, value, strlen(value) + 1, 1);
}

static void put_field(struct request *r, uint8_t code, const char *value) {
    const char head[] = {(char)code, 1, TYPES[code], 0};
    put(r, head, sizeof head, 8);
    if (code != SIGNATURE) {
        put_string(r, value);
        return;
    }
    uint8_t length = (uint8_t)strlen(value);
    put(r, &length, 1, 1);
    put(r, value, (size_t)length + 1, 1);
}

/* A call of the bus itself. It is in the machine's byte order. */
static void call(int bus, const char *interface, const char *member, const char *signature, const struct request *body) {
    static const uint16_t one = 1;
    struct request r = {0};
    uint8_t fixed[] = {*(const uint8_t *)&one ? 'l' : 'B', BUS_CALL, 0, 1};
    put(&r, fixed, sizeof fixed, 1);
    put_number(&r, (uint32_t)body->size);
    put_number(&r, SERIAL);
    put_number(&r, 0);
    put_field(&r, PATH, "/org/freedesktop/DBus");
    put_field(&r, INTERFACE, interface);
    put_field(&r, MEMBER, member);
    put_field(&r, DESTINATION, OWN_NAME);
    if (*signature) put_field(&r, SIGNATURE, signature);
    uint32_t fields = (uint32_t)(r.size - FIXED);
    memcpy(r.bytes + FIXED - sizeof fields, &fields, sizeof fields);
    if (body->size > sizeof body->bytes) fail("the request to the bus is too long");
    put(&r, body->bytes, body->size, 8);
    if (r.size > sizeof r.bytes) fail("the request to the bus is too long");
    send_all(bus, r.bytes, r.size);
}

static uint32_t number_at(const uint8_t *at, bool swapped) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return swapped ? __builtin_bswap32(value) : value;
}

/* The string of that length at `at`, with the NUL behind it; NULL if there is none. */
static const char *string_at(const uint8_t *bytes, size_t size, size_t at, size_t length) {
    if (at > size || length >= size - at || bytes[at + length] || memchr(bytes + at, 0, length)) return NULL;
    return (const char *)bytes + at;
}

/* The fields of the header, which the message's own bytes hold. */
static void read_fields(struct bus_message *m, size_t size) {
    m->member = m->destination = "";
    m->reply_to = 0;
    for (size_t at = 0; (at = aligned(at, 8)) < size;) {
        if (size - at < 4) fail("the bus has sent a broken message");
        uint8_t code = m->header[at];
        if (code == 0 || code > UNIX_FDS || m->header[at + 1] != 1 || m->header[at + 2] != TYPES[code] || m->header[at + 3])
            fail("the bus has sent an unknown field");
        bool is_number = TYPES[code] == 'u', is_short = TYPES[code] == 'g';
        at += 4;
        if (size - at < (is_short ? 1 : 4)) fail("the bus has sent a broken message");
        uint32_t value = is_short ? m->header[at] : number_at(m->header + at, m->swapped);
        at += is_short ? 1 : 4;
        if (is_number) {
            if (code == REPLY_SERIAL) m->reply_to = value;
            continue;
        }
        const char *string = string_at(m->header, size, at, value);
        if (!string) fail("the bus has sent a broken message");
        at += (size_t)value + 1;
        if (code == MEMBER) m->member = string;
        if (code == DESTINATION) m->destination = string;
    }
}

bool bus_next(int bus, struct bus_message *m, int64_t deadline) {
    static const uint16_t one = 1;
    uint8_t fixed[FIXED], rest[1024];
    if (!wait_for(bus, deadline)) return false;
    read_rest(bus, fixed, sizeof fixed);
    if ((fixed[0] != 'l' && fixed[0] != 'B') || fixed[3] != 1) fail("the bus has sent no message");
    m->swapped = (fixed[0] == 'l') != *(const uint8_t *)&one;
    m->kind = fixed[1];
    size_t body = number_at(fixed + 4, m->swapped), fields = number_at(fixed + 12, m->swapped);
    if (fields > sizeof m->header - 8 || body > MOST_BODY) fail("the bus has sent a message that is too long");
    read_rest(bus, m->header, aligned(fields, 8));
    read_fields(m, fields);
    m->body_size = body < sizeof m->body ? body : sizeof m->body;
    read_rest(bus, m->body, m->body_size);
    for (size_t left = body - m->body_size, part; left; left -= part) {
        part = left < sizeof rest ? left : sizeof rest;
        read_rest(bus, rest, part);
    }
    return true;
}

/* The answer to the one call that is under way. What else comes meanwhile is for nobody. */
static bool answer_of(int bus, struct bus_message *answer, int64_t deadline) {
    while (bus_next(bus, answer, deadline))
        if ((answer->kind == BUS_RETURN || answer->kind == BUS_ERROR) && answer->reply_to == SERIAL) return answer->kind == BUS_RETURN;
    fail("the bus does not answer");
}

bool bus_ask(int bus, const char *interface, const char *member, const char *argument, struct bus_message *answer, int64_t deadline) {
    struct request body = {0};
    if (argument) put_string(&body, argument);
    call(bus, interface, member, argument ? "s" : "", &body);
    return answer_of(bus, answer, deadline);
}

void bus_watch(int bus, const char *const *rules, int64_t deadline) {
    struct request body = {0};
    struct bus_message answer;
    put_number(&body, 0);
    for (const char *const *rule = rules; *rule; rule++) put_string(&body, *rule);
    uint32_t size = (uint32_t)(body.size - 4);
    memcpy(body.bytes, &size, sizeof size);
    put_number(&body, 0);
    call(bus, "org.freedesktop.DBus.Monitoring", "BecomeMonitor", "asu", &body);
    if (!answer_of(bus, &answer, deadline)) fail("the bus does not let us watch it");
}

int bus_connect(const char *path, int64_t deadline) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = REST_MS / 1000};
    struct bus_message answer;
    int bus = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bus < 0 || setsockopt(bus, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) < 0) fail("a socket for the bus: %m");
    if (strlen(path) >= sizeof place.sun_path) fail("%s is too long", path);
    memcpy(place.sun_path, path, strlen(path) + 1);
    if (connect(bus, (const struct sockaddr *)&place, sizeof place) < 0) fail("%s: %m", path);
    authenticate(bus, deadline);
    if (!bus_ask(bus, OWN_NAME, "Hello", NULL, &answer, deadline)) fail("the bus does not take us");
    return bus;
}

const char *bus_string(struct bus_message *m, size_t *at) {
    uint32_t length = bus_number(m, at);
    const char *found = string_at(m->body, m->body_size, *at, length);
    if (!found) fail("the bus has sent a broken message");
    *at += (size_t)length + 1;
    return found;
}

uint32_t bus_number(const struct bus_message *m, size_t *at) {
    *at = aligned(*at, 4);
    if (*at > m->body_size || m->body_size - *at < 4) fail("the bus has sent a broken message");
    uint32_t value = number_at(m->body + *at, m->swapped);
    *at += 4;
    return value;
}
