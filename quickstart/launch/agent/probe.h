#pragma once
#include <stdbool.h>
#include <stdint.h>

enum kind { READY_NONE, READY_HTTP, READY_TCP, READY_MYSQL, READY_EXEC };
struct ready {
    enum kind kind;
    bool loopback;
    uint16_t port;
    char *status, *path, *account, *command;
};

/* Parse READY of the command line (docs/internals/agent.md). The program ends when it is malformed. */
struct ready parse_ready(int count, char **words);
/* The prober: it finds the address, asks until the answer is right, and writes whole messages to `out`, a pipe of packets. */
_Noreturn void probe(const struct ready *ready, int interval_ms, int out);
