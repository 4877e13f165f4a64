#ifndef PREFETCHER_H
#define PREFETCHER_H

#include "text.h"

struct io_uring_sqe;

struct batch {
    long ring;
    struct io_uring_sqe *entries;
    void *buffer;
    unsigned *tail, *places, *answered, *answers;
    // The number of reads since the last submit.
    unsigned count;
};

// False when the kernel has no io_uring, or does not let us use it.
bool begin_batch(struct batch *batch);
// Reads the whole file, and closes it at the next submit. False when the file is empty, or the batch has no room for it.
bool add_read(struct batch *batch, long file, size_t bytes);
// Begins all reads together, waits for their end, and closes their files. The batch is empty afterwards.
void submit(struct batch *batch);

#endif
