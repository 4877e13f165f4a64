#ifndef PREFETCHER_H
#define PREFETCHER_H

#include "text.h"

struct io_uring_sqe;

struct batch {
    long ring;
    struct io_uring_sqe *entries;
    void *buffer;
    unsigned *tail, *places, count;
};

// False when the kernel has no io_uring, or does not let us use it.
bool begin_batch(struct batch *batch);
// Reads the whole file. False when the batch has no room for it.
bool add_read(struct batch *batch, long file, size_t bytes);
// Begins all reads together, and waits for their end.
void submit(struct batch *batch);

#endif
