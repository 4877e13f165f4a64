#ifndef PREFETCHER_H
#define PREFETCHER_H

#include "text.h"

struct io_uring_sqe;

struct batch {
    long ring;
    struct io_uring_sqe *entries;
    void *buffer;
    // Of one read, at most.
    size_t read_bytes;
    unsigned *tail, *places, *answered, *answers;
    // The number of reads since the last submit.
    unsigned count;
};

enum { READ_BYTES = 512 * 1024 };

// False when the kernel has no io_uring, or does not let us use it. No read of the batch is larger than `read_bytes`.
bool begin_batch(struct batch *batch, size_t read_bytes);
// Reads so many bytes of the file, from `offset` on. False when that is nothing, or the batch has no room for it.
bool add_read(struct batch *batch, long file, size_t offset, size_t bytes);
// Closes the file to which the last reads were added, once they are done. Closes it now when the batch has no read of it.
void close_after(struct batch *batch, long file);
// Begins all reads together, waits for their end, and closes their files. The batch is empty afterwards.
void submit(struct batch *batch);

#endif
