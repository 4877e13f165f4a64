/*
 * The model as a simulation of discrete events. A request waits for a place, is in service (its granules are pulled, then
 * the latency passes), crosses the link, and is answered. Then the next request gets its place. tests/queueing.py has
 * exactly the same integer arithmetic.
 */
#include <stdlib.h>

#include "volume.h"

static struct model is;
static int64_t *pulled; /* for each granule: 0 while it is cold, else the time at which it is pulled */
static struct list waiting, link_queue;
static struct request *serving; /* sorted by end of service, then by arrival */
static uint64_t places_taken;
static int64_t link_free;
static uint64_t head; /* the end of the request whose service began last */

void append(struct list *list, struct request *request) {
    request->next = NULL;
    *(list->first ? list->end : &list->first) = request;
    list->end = &request->next;
}

struct request *take_first(struct list *list) {
    struct request *first = list->first;
    if (first) list->first = first->next;
    return first;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* Saturates, because a client can make a slow model take centuries. Such a request is never due. */
static int64_t plus(int64_t instant, int64_t span_ns) {
    int64_t sum;
    return __builtin_add_overflow(instant, span_ns, &sum) || sum == NEVER ? NEVER - 1 : sum;
}

bool model_open(const struct model *model, uint64_t size_bytes) {
    is = *model;
    pulled = calloc(size_bytes / is.granule_bytes + 1, sizeof *pulled);
    return pulled != NULL;
}

bool is_modelled(const struct request *request) {
    return request->error == 0 && (request->type == READ || request->type == WRITE || request->type == WRITE_ZEROES);
}

/* Where it is faster than a seek, the head passes over the data between the last request and this one. */
static int64_t move_head(const struct request *request) {
    uint64_t seek_ns = is.seek_ns;
    if (request->offset == head) {
        seek_ns = 0;
    } else if (request->offset > head && is.bandwidth_bytes_s > 0) {
        /* With a large volume, bytes times nanoseconds overflow 64 bits. */
        unsigned __int128 passed = (unsigned __int128)(request->offset - head) * (uint64_t)SECOND;
        unsigned __int128 pass_ns = (passed + is.bandwidth_bytes_s - 1) / is.bandwidth_bytes_s;
        if (pass_ns < seek_ns) seek_ns = (uint64_t)pass_ns;
    }
    head = request->offset + request->length;
    return (int64_t)seek_ns;
}

/* A request pulls its cold granules one after another. It only waits for those that other requests are pulling. */
static void start(struct request *request, int64_t at) {
    int64_t own = at, others = at;
    uint64_t granule = request->offset / is.granule_bytes;
    uint64_t end = is_modelled(request) ? (request->offset + request->length - 1) / is.granule_bytes + 1 : granule;
    for (; granule < end; granule++) {
        if (pulled[granule] == 0) {
            own = plus(own, (int64_t)is.first_touch_ns);
            pulled[granule] = own;
            request->touched++;
        } else {
            others = later(others, pulled[granule]);
        }
    }
    uint64_t latency_ns = request->type == READ ? is.read_latency_ns : is.write_latency_ns;
    request->ready = later(own, others);
    if (is_modelled(request)) request->ready = plus(request->ready, move_head(request) + (int64_t)latency_ns);
    struct request **place = &serving;
    while (*place && (*place)->ready <= request->ready) place = &(*place)->next;
    request->next = *place;
    *place = request;
    places_taken++;
}

static void fill_places(int64_t at) {
    while (waiting.first && waiting.first->not_before != NEVER && places_taken < is.queue_depth) {
        struct request *request = take_first(&waiting);
        start(request, later(at, request->not_before));
    }
}

void model_arrive(struct request *request) {
    append(&waiting, request);
    fill_places(request->arrival);
}

static int64_t transfer_ns(const struct request *request) {
    if (is.bandwidth_bytes_s == 0 || !is_modelled(request) || request->type == WRITE_ZEROES) return 0;
    return (int64_t)((request->length * (uint64_t)SECOND + is.bandwidth_bytes_s - 1) / is.bandwidth_bytes_s);
}

struct request *model_answered(int64_t now_ns) {
    while (model_next() <= now_ns) {
        if (link_queue.first && link_queue.first->due <= (serving ? serving->ready : NEVER)) {
            struct request *request = take_first(&link_queue);
            places_taken--;
            fill_places(request->due);
            return request;
        }
        struct request *request = serving;
        serving = request->next;
        request->due = link_free = plus(later(request->ready, link_free), transfer_ns(request));
        append(&link_queue, request);
    }
    return NULL;
}

int64_t model_next(void) {
    int64_t crossed = link_queue.first ? link_queue.first->due : NEVER, served = serving ? serving->ready : NEVER;
    return crossed < served ? crossed : served;
}

/* Take out the first request of that instance. */
static struct request *pick(struct request **place, const struct instance *from) {
    while (*place && (*place)->from != from) place = &(*place)->next;
    struct request *found = *place;
    if (found) *place = found->next;
    return found;
}

static struct request *pick_of(struct list *list, const struct instance *from) {
    struct request *found = pick(&list->first, from);
    if (found)
        for (list->end = &list->first; *list->end;) list->end = &(*list->end)->next;
    return found;
}

/* Payloads of other instances that are already on the link keep their times. Behind them, the link is free. */
struct request *model_drop(const struct instance *from, int64_t now_ns) {
    struct request *request = pick(&serving, from);
    if (!request) request = pick_of(&link_queue, from);
    if (request) {
        places_taken--;
        return request;
    }
    if ((request = pick_of(&waiting, from))) return request;
    link_free = 0;
    for (const struct request *each = link_queue.first; each; each = each->next) link_free = each->due;
    fill_places(now_ns);
    return NULL;
}
