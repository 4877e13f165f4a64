/*
 * Copy-on-write. The overlay is a sparse file. It has the image's length in whole blocks, then OVERLAY_MAGIC and the
 * image's size (8 bytes each), and one byte for each block: 1 when the block is in the overlay.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "volume.h"

enum { BLOCK = 4096, MARK = 16 };
static const char OVERLAY_MAGIC[] = "QSCOW  1"; /* 8 bytes without the terminating zero */

static int image = -1;
static uint64_t size;

uint64_t disk_size(void) { return size; }

static int read_all(int fd, unsigned char *to, uint64_t offset, size_t length) {
    while (length > 0) {
        ssize_t got = pread(fd, to, length, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : EIO; /* 0: somebody has truncated the file */
        to += got;
        offset += (uint64_t)got;
        length -= (size_t)got;
    }
    return 0;
}

static int write_all(int fd, const unsigned char *from, uint64_t offset, size_t length) {
    while (length > 0) {
        ssize_t put = pwrite(fd, from, length, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return put < 0 ? errno : EIO;
        from += put;
        offset += (uint64_t)put;
        length -= (size_t)put;
    }
    return 0;
}

const char *disk_open(int fd) {
    struct stat status;
    image = fd;
    if (fstat(image, &status) < 0) return "the image is not open";
    if (!S_ISREG(status.st_mode) || status.st_size == 0) return "the image is no file, or empty";
    size = (uint64_t)status.st_size;
    return NULL;
}

static uint64_t block_count(void) { return (size + BLOCK - 1) / BLOCK; }

uint64_t overlay_length(void) { return block_count() * BLOCK + MARK + block_count(); }

const char *overlay_open(struct overlay *overlay, int fd) {
    struct stat status;
    uint64_t blocks = block_count();
    overlay->fd = fd;
    if (fstat(overlay->fd, &status) < 0) return "the overlay is not open";
    bool fresh = status.st_size == 0;
    off_t length = (off_t)overlay_length();
    if (fresh && ftruncate(overlay->fd, length) < 0) return "the overlay cannot be made";
    if (!fresh && status.st_size != length) return "the overlay is not one of this image";
    unsigned char *mark = mmap(NULL, MARK + blocks, PROT_READ | PROT_WRITE, MAP_SHARED, overlay->fd, (off_t)(blocks * BLOCK));
    if (mark == MAP_FAILED) return "the overlay cannot be mapped";
    if (fresh) {
        memcpy(mark, OVERLAY_MAGIC, 8);
        memcpy(mark + 8, &size, 8);
    } else if (memcmp(mark, OVERLAY_MAGIC, 8) != 0 || memcmp(mark + 8, &size, 8) != 0) {
        return "the overlay is not one of this image";
    }
    overlay->owned = mark + MARK;
    return NULL;
}

int disk_read(const struct overlay *overlay, void *to, uint64_t offset, size_t length) {
    unsigned char *place = to;
    int error = 0;
    for (uint64_t end = offset + length, next; offset < end && error == 0; offset = next) {
        unsigned char owner = overlay->owned[offset / BLOCK];
        for (next = offset; next < end && overlay->owned[next / BLOCK] == owner;) next = (next / BLOCK + 1) * BLOCK;
        if (next > end) next = end;
        error = read_all(owner ? overlay->fd : image, place, offset, (size_t)(next - offset));
        place += next - offset;
    }
    return error;
}

/* Copy a block into the overlay before a part of it is changed. */
static int own(const struct overlay *overlay, uint64_t block) {
    unsigned char copy[BLOCK];
    if (overlay->owned[block]) return 0;
    uint64_t offset = block * BLOCK;
    size_t length = size - offset < BLOCK ? (size_t)(size - offset) : BLOCK;
    int error = read_all(image, copy, offset, length);
    if (error == 0) error = write_all(overlay->fd, copy, offset, length);
    if (error == 0) overlay->owned[block] = 1;
    return error;
}

static int own_borders(const struct overlay *overlay, uint64_t offset, uint64_t end) {
    int error = offset % BLOCK != 0 ? own(overlay, offset / BLOCK) : 0;
    return error == 0 && end % BLOCK != 0 && end != size ? own(overlay, end / BLOCK) : error;
}

static void own_blocks(const struct overlay *overlay, uint64_t offset, uint64_t end) {
    memset(overlay->owned + offset / BLOCK, 1, (size_t)((end - 1) / BLOCK - offset / BLOCK + 1));
}

int disk_write(const struct overlay *overlay, const void *from, uint64_t offset, size_t length) {
    int error = own_borders(overlay, offset, offset + length);
    if (error == 0) error = write_all(overlay->fd, from, offset, length);
    if (error == 0) own_blocks(overlay, offset, offset + length);
    return error;
}

int disk_zero(const struct overlay *overlay, uint64_t offset, uint64_t length) {
    int error = own_borders(overlay, offset, offset + length);
    if (error == 0 && fallocate(overlay->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) < 0) error = errno;
    if (error == 0) own_blocks(overlay, offset, offset + length);
    return error;
}
