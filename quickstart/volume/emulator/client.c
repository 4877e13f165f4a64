/* The transmission phase of the NBD protocol: it takes requests, gives them to disk and model, and answers them when they are due. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "volume.h"

enum { IN_FLIGHT_MAX = 256, BUFFERED_MAX = 256 << 20 };

static uint64_t request_total;
static uint32_t in_flight; /* of all instances */

static void forget(struct request *request, int64_t done) {
    note(request, done);
    in_flight--;
    request->from->in_flight--;
    request->from->buffered -= request->length;
    free(request);
}

/* ---- answers */

static void answer(struct request *request) {
    put_big_endian(request->reply, 4, NBD_REPLY_MAGIC);
    put_big_endian(request->reply + 4, 4, request->error);
    put_big_endian(request->reply + 8, 8, request->cookie);
    request->reply_length = REPLY_HEADER;
    if (request->type == READ && request->error == 0) request->reply_length += request->length;
    append(&request->from->answers, request);
}

static void answer_due(int64_t clock) {
    for (struct request *request; (request = model_answered(clock));) answer(request);
}

/* Send as much as the socket takes; false when the client has gone. */
static bool send_answers(struct instance *at) {
    for (struct request *request; (request = at->answers.first);) {
        ssize_t put = send(at->fd, request->reply + request->reply_sent, request->reply_length - request->reply_sent, MSG_NOSIGNAL);
        if (put < 0) return errno == EAGAIN || errno == EINTR;
        request->reply_sent += (size_t)put;
        if (request->reply_sent == request->reply_length) forget(take_first(&at->answers), now());
    }
    return true;
}

void client_drop(struct instance *at) {
    int64_t clock = now();
    answer_due(clock); /* requests of other instances may take the places that become free now */
    for (struct request *request; (request = take_first(&at->answers)) || (request = model_drop(at, clock));) forget(request, 0);
    free(at->incoming);
    at->incoming = NULL;
    at->in_start = at->in_end = at->buffered = 0;
    at->leaving = at->greeted = false;
}

/* ---- requests */

/* 0 for a valid request, or the errno that answers an invalid one. */
static uint32_t refusal(const struct request *request) {
    if (request->type == FLUSH) return request->offset || request->length || request->flags & ~FLAG_FUA ? EINVAL : 0;
    if (!is_modelled(request) && request->type != TRIM) return EINVAL; /* no such command */
    int allowed = request->type == WRITE_ZEROES ? FLAG_FUA | FLAG_NO_HOLE : FLAG_FUA;
    if (request->flags & ~allowed || request->length == 0) return EINVAL;
    if (request->type == READ && request->length > LENGTH_MAX) return EINVAL;
    if (request->offset > disk_size() || request->length > disk_size() - request->offset)
        return request->type == READ || request->type == TRIM ? EINVAL : ENOSPC;
    return 0;
}

static uint32_t do_work(struct request *request) {
    unsigned char *data = request->reply + REPLY_HEADER;
    const struct overlay *overlay = &request->from->overlay;
    int error = 0;
    if (request->type == READ) error = disk_read(overlay, data, request->offset, request->length);
    if (request->type == WRITE) error = disk_write(overlay, data, request->offset, request->length);
    if (request->type == WRITE_ZEROES) error = disk_zero(overlay, request->offset, request->length);
    return error == 0 || error == ENOSPC ? (uint32_t)error : EIO;
}

static void arrive(struct request *request, int64_t clock) {
    struct instance *at = request->from;
    request->sequence = ++request_total;
    request->arrival = request->not_before = clock;
    request->in_flight = ++in_flight;
    at->in_flight++;
    at->buffered += request->length;
    fault_apply(request);
    if (request->error == 0) request->error = refusal(request);
    if (request->error == 0) request->error = do_work(request);
    if (is_modelled(request) || request->not_before > clock) {
        model_arrive(request);
    } else {
        request->due = clock;
        answer(request);
    }
}

/* A request from the header in `in`; NULL when it is no request header, or when its payload is longer than we allow. */
static struct request *new_request(struct instance *at) {
    const unsigned char *header = at->in + at->in_start;
    uint32_t length = (uint32_t)big_endian(header + 24, 4);
    uint16_t type = (uint16_t)big_endian(header + 6, 2);
    if (big_endian(header, 4) != NBD_REQUEST_MAGIC || (type == WRITE && length > LENGTH_MAX)) return NULL;
    bool has_data = (type == READ || type == WRITE) && length <= LENGTH_MAX;
    struct request *request = malloc(sizeof *request + REPLY_HEADER + (has_data ? length : 0));
    if (!request) die("no memory", "request");
    *request = (struct request){.cookie = big_endian(header + 8, 8),
                                .offset = big_endian(header + 16, 8),
                                .length = length,
                                .from = at,
                                .client = at->client,
                                .type = type,
                                .flags = (uint16_t)big_endian(header + 4, 2)};
    at->in_start += REQUEST_HEADER;
    return request;
}

static bool has_room(const struct instance *at) { return !at->leaving && at->in_flight < IN_FLIGHT_MAX && at->buffered < BUFFERED_MAX; }

bool client_pending(const struct instance *at) { return at->greeted && has_room(at) && !at->incoming && at->in_end - at->in_start >= REQUEST_HEADER; }

/* Take requests from `in` while there is room for them; false when the bytes violate the protocol. */
static bool take_requests(struct instance *at, int64_t clock) {
    while (client_pending(at)) {
        struct request *request = new_request(at);
        if (!request) return false;
        if (request->type == DISCONNECT) {
            at->leaving = true;
            free(request);
        } else if (request->type == WRITE) {
            size_t there = at->in_end - at->in_start;
            at->incoming_got = there < request->length ? there : request->length;
            memcpy(request->reply + REPLY_HEADER, at->in + at->in_start, at->incoming_got);
            at->in_start += at->incoming_got;
            if (at->incoming_got < request->length) at->incoming = request;
            else arrive(request, clock);
        } else {
            arrive(request, clock);
        }
    }
    return true;
}

static bool shake_hands(struct instance *at) {
    enum step step = AGAIN;
    while (step == AGAIN) {
        size_t used;
        step = handshake_step(&at->handshake, at->fd, at->in + at->in_start, at->in_end - at->in_start, &used);
        at->in_start += used;
    }
    at->greeted = step == DONE;
    return step != FAILED && (at->greeted || now() < at->handshake.until);
}

bool client_tend(struct instance *at) {
    if (!at->greeted && !shake_hands(at)) return false;
    int64_t clock = now();
    answer_due(clock);
    if (!take_requests(at, clock)) return false;
    memmove(at->in, at->in + at->in_start, at->in_end - at->in_start);
    at->in_end -= at->in_start;
    at->in_start = 0;
    answer_due(clock); /* new requests that cost no time */
    return send_answers(at) && !(at->leaving && at->in_flight == 0);
}

short client_events(const struct instance *at) { return (short)((has_room(at) ? POLLIN : 0) | (at->answers.first ? POLLOUT : 0)); }

bool client_receive(struct instance *at) {
    unsigned char *to = at->incoming ? at->incoming->reply + REPLY_HEADER + at->incoming_got : at->in + at->in_end;
    size_t room = at->incoming ? at->incoming->length - at->incoming_got : sizeof at->in - at->in_end;
    ssize_t got = room > 0 ? recv(at->fd, to, room, 0) : -1;
    if (got < 0) return room == 0 || errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    int64_t clock = now();
    answer_due(clock);
    if (at->incoming) at->incoming_got += (size_t)got;
    else at->in_end += (size_t)got;
    if (at->incoming && at->incoming_got == at->incoming->length) {
        struct request *request = at->incoming;
        at->incoming = NULL;
        arrive(request, clock);
    }
    return true;
}
