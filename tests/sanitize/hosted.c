/*
 * Our freestanding programs on a C library, so that AddressSanitizer sees what they read: instead of freestanding/system.c. A mapped
 * file is a piece of the heap of exactly its size, where the real one ends with its page; so is memory that is taken.
 */
#include "freestanding.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

long system_call(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_fork) return fork();
    long result = syscall(number, a, b, c, d, e, f);
    return result < 0 ? -errno : result;
}

void *mapped(long answer) { return (unsigned long)answer > -4096UL ? NULL : (void *)answer; }

void *take_memory(size_t bytes) { return calloc(1, bytes); }

void *map_file(int place, const char *name, size_t bytes) {
    int file = openat(place, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char *data = NULL;
    if (file < 0) return NULL;
    if (posix_memalign((void **)&data, PAGE, bytes) != 0) abort();
    size_t have = 0;
    for (ssize_t got; have < bytes && (got = read(file, data + have, bytes - have)) > 0;) have += (size_t)got;
    close(file);
    return data;
}

size_t length_of(const char *text) { return strlen(text); }

bool same_bytes(const void *left, const void *right, size_t bytes) {
    const uint8_t *l = left, *r = right;
    while (bytes && *l == *r) l++, r++, bytes--;
    return bytes == 0;
}
