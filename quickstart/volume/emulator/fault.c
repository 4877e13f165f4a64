/* Faults on request, for tests (docs/users/storage.md). */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "volume.h"

static struct {
    enum { NONE, FAIL, STALL, DEATH } kind;
    uint64_t first, amount;
    int64_t until;
} fault;

void fault_parse(char *text) {
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

void fault_apply(struct request *request) {
    uint64_t number = request->sequence;
    if (fault.kind == NONE || number < fault.first) return;
    if (fault.kind == FAIL && (fault.amount == 0 || number - fault.first < fault.amount)) request->error = EIO;
    if (fault.kind == STALL) {
        if (number == fault.first && fault.amount > 0) fault.until = request->arrival + (int64_t)fault.amount * (SECOND / 1000);
        request->not_before = fault.until > request->arrival ? fault.until : request->arrival;
    }
    if (fault.kind == DEATH) {
        unsigned char half[REPLY_HEADER / 2] = {0};
        put_big_endian(half, 4, NBD_REPLY_MAGIC);
        if (send(request->from->fd, half, sizeof half, MSG_NOSIGNAL) < 0) errno = 0; /* the client has gone already */
        report(STDERR_FILENO, "volume: fault death at request %llu\n", (unsigned long long)number);
        append(&request->from->answers, request);
        end(3);
    }
}
