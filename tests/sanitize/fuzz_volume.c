/*
 * The volume emulator's NBD server, from handshake to answers, without its loop: bytes of a client in pieces, by a clock of our own.
 * Of the input the first byte says how: bit 0 leaves the handshake to the target, the others say in what pieces the rest comes.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "volume.h"

enum { IMAGE_BYTES = (1 << 20) + 512, TICKS = 64 };
static const uint8_t HELLO[] = "\0\0\0\1IHAVEOPT\0\0\0\7\0\0\0\6\0\0\0\0\0"; /* NBD_OPT_GO; the 0 at its end is the last byte */
_Static_assert(sizeof HELLO == 4 + 16 + 6, "flags, header, data");

static int64_t clock_ns;
static uint64_t noted;
static struct overlay overlay;

int64_t now(void) { return clock_ns; }
void note(const struct request *request, int64_t done) {
    noted++;
    DEMAND(request->due == 0 || request->due >= request->arrival);
    DEMAND(done == 0 || request->due > 0);
}
_Noreturn void die(const char *what, const char *object) {
    fprintf(stderr, "die: %s: %s\n", what, object);
    abort();
}
_Noreturn void end(int status) {
    fprintf(stderr, "end %d\n", status);
    abort();
}
void report(int fd, const char *format, ...) { (void)fd, (void)format; }
uint64_t number(const char *text, uint64_t low, uint64_t high) {
    (void)text, (void)high;
    return low;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    int fd = memfd_create("image", 0), written = memfd_create("overlay", 0);
    DEMAND(fd >= 0 && ftruncate(fd, IMAGE_BYTES) == 0 && pwrite(fd, "image", 5, 4093) == 5);
    DEMAND(disk_open(fd) == NULL && overlay_open(&overlay, written) == NULL);
    const struct model model = {.read_latency_ns = 800000,
                                .write_latency_ns = 900000,
                                .bandwidth_bytes_s = 128 << 20,
                                .queue_depth = 4,
                                .granule_bytes = 4096,
                                .first_touch_ns = 20000000,
                                .seek_ns = 5000000};
    DEMAND(model_open(&model, disk_size()));
    return 0;
}

static void drain(int peer) {
    static uint8_t sink[1 << 16];
    while (recv(peer, sink, sizeof sink, MSG_DONTWAIT) > 0) {}
}

/* What volume.c does with one client between two looks at its clock; false when the client is to be closed. */
static bool once(struct instance *at, int peer, int64_t step_ns) {
    clock_ns += step_ns;
    bool stays = (!(client_events(at) & 1) || client_receive(at)) && client_tend(at);
    drain(peer);
    return stays;
}

static bool send_all(struct instance *at, int peer, const uint8_t *data, size_t size, size_t piece) {
    for (size_t sent = 0, put; sent < size; sent += put) {
        put = size - sent < piece ? size - sent : piece;
        ssize_t done = send(peer, data + sent, put, MSG_DONTWAIT | MSG_NOSIGNAL);
        put = done > 0 ? (size_t)done : 0;
        if (!once(at, peer, 100000)) return false;
        DEMAND(at->in_start <= at->in_end && at->in_end <= sizeof at->in);
        if (put == 0 && !(client_events(at) & 1) && model_next() == NEVER) return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t PIECES[] = {65536, 1, 3, 28, 29, 4096};
    static struct instance at;
    int ends[2];
    if (size == 0) return 0;
    DEMAND(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    at = (struct instance){.listener = -1, .fd = ends[0], .overlay = overlay, .client = 1};
    noted = 0;
    bool stays = handshake_begin(&at.handshake, at.fd) != FAILED;
    if (stays && !(data[0] & 1)) stays = send_all(&at, ends[1], HELLO, sizeof HELLO, 65536);
    if (stays) stays = send_all(&at, ends[1], data + 1, size - 1, PIECES[(data[0] >> 1) % (sizeof PIECES / sizeof *PIECES)]);
    for (int tick = 0; stays && tick < TICKS; tick++) stays = once(&at, ends[1], SECOND);
    client_drop(&at);
    DEMAND(at.in_flight == 0 && at.buffered == 0 && at.incoming == NULL && model_next() == NEVER);
    close(ends[0]);
    close(ends[1]);
    return 0;
}
