/* A small client of the system's message bus (dbus.freedesktop.org, "D-Bus Specification"). It sends requests only to the bus itself. The bus
   and its clients may be hostile, so time and lengths are limited. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a message may have in its header, and how much of its body is kept. The bus allows more; nothing that we ask for needs it. */
enum { BUS_HEADER_MAX = 8192, BUS_BODY_KEPT = 4096 };
enum bus_kind { BUS_CALL = 1, BUS_RETURN, BUS_ERROR, BUS_SIGNAL };

struct bus_message {
    uint8_t kind;
    uint32_t reply_to;
    const char *member, *destination; /* "" when there is none */
    size_t body_size;                 /* of what is kept */
    bool swapped;
    uint8_t header[BUS_HEADER_MAX], body[BUS_BODY_KEPT];
};

/* Each of these fails (fail.c) when the bus does not answer in time, or says something else than a bus. */
int bus_connect(const char *path, int64_t deadline);
/* A method of the bus itself, with one string as its argument, or none (NULL). Returns false for an error in place of an answer. */
bool bus_ask(int bus, const char *interface, const char *member, const char *argument, struct bus_message *answer, int64_t deadline);
/* From now on, the connection gets copies of the messages that match one of the rules. */
void bus_watch(int bus, const char *const *rules, int64_t deadline);
/* The next message; false when none begins before `deadline`. */
bool bus_next(int bus, struct bus_message *message, int64_t deadline);
/* The string, or the number, at `*at` of the body; `*at` is behind it then. */
const char *bus_string(struct bus_message *message, size_t *at);
uint32_t bus_number(const struct bus_message *message, size_t *at);
