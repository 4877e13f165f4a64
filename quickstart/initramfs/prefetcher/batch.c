// Reads several files as one batch of io_uring(7). The reads begin under one plug of the block layer, so files that are
// side by side on the volume are read by one request. posix_fadvise(2) would make a request for each file.

#include "prefetcher.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { ENTRIES = 1024 };
// Of the last read of a file (user_data, which the kernel only copies).
enum { CLOSE = 1 };

static void *mapped_ring(long ring, size_t bytes, long offset) {
    return mapped(system_call(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset));
}

static unsigned *at(void *ring, unsigned offset) { return (unsigned *)(void *)((char *)ring + offset); }

bool begin_batch(struct batch *batch, size_t read_bytes) {
    struct io_uring_params params = {0};
    batch->ring = system_call(SYS_io_uring_setup, ENTRIES, (long)&params, 0, 0, 0, 0);
    if (batch->ring < 0) return false;
    void *queue = mapped_ring(batch->ring, params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    void *answers = mapped_ring(batch->ring, params.cq_off.cqes, IORING_OFF_CQ_RING);
    batch->entries = mapped_ring(batch->ring, params.sq_entries * sizeof *batch->entries, IORING_OFF_SQES);
    // All reads may write to the same buffer, because nobody uses the data.
    batch->buffer = take_memory(read_bytes);
    batch->read_bytes = read_bytes;
    if (!queue || !answers || !batch->entries || !batch->buffer) return false;
    batch->tail = at(queue, params.sq_off.tail);
    batch->places = at(queue, params.sq_off.array);
    batch->answered = at(answers, params.cq_off.head);
    batch->answers = at(answers, params.cq_off.tail);
    batch->count = 0;
    return true;
}

static void add_entry(struct batch *batch, long file, size_t offset, size_t bytes) {
    struct io_uring_sqe *entry = &batch->entries[batch->count];
    *entry = (struct io_uring_sqe){0};
    entry->opcode = IORING_OP_READ;
    entry->fd = (int)file;
    entry->off = offset;
    entry->addr = (unsigned long)batch->buffer;
    entry->len = (unsigned)bytes;
    batch->places[(*batch->tail + batch->count) % ENTRIES] = batch->count;
    batch->count++;
}

bool add_read(struct batch *batch, long file, size_t offset, size_t bytes) {
    const size_t most = batch->read_bytes;
    if (bytes == 0 || bytes / most >= ENTRIES - batch->count) return false;
    for (size_t done = 0; done < bytes; done += most) add_entry(batch, file, offset + done, bytes - done < most ? bytes - done : most);
    return true;
}

void close_after(struct batch *batch, long file) {
    struct io_uring_sqe *last = batch->count ? &batch->entries[batch->count - 1] : NULL;
    if (last && last->fd == (int)file) last->user_data = CLOSE;
    else system_call(SYS_close, file, 0, 0, 0, 0, 0);
}

void submit(struct batch *batch) {
    __atomic_store_n(batch->tail, *batch->tail + batch->count, __ATOMIC_RELEASE);
    // If this process ended earlier, the kernel would cancel the reads that none of its workers has begun.
    system_call(SYS_io_uring_enter, batch->ring, batch->count, batch->count, IORING_ENTER_GETEVENTS, 0, 0);
    // Nobody reads the answers. This gives their places back to the kernel.
    __atomic_store_n(batch->answered, __atomic_load_n(batch->answers, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    for (unsigned each = 0; each < batch->count; each++)
        if (batch->entries[each].user_data == CLOSE) system_call(SYS_close, batch->entries[each].fd, 0, 0, 0, 0, 0);
    batch->count = 0;
}
