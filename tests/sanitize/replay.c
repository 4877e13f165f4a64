/*
 * usage: replay ROUNDS FILE...
 * Gives a fuzz target each file, then ROUNDS inputs that are made of the files by a fixed series of numbers: the same inputs each time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

enum { SIZE_MAX_BYTES = 1 << 16 };

static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

/* xorshift64 (Marsaglia, "Xorshift RNGs", 2003). */
static uint64_t random_below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

static size_t read_file(const char *path, uint8_t *to) {
    int fd = open(path, O_RDONLY);
    size_t length = 0;
    for (ssize_t got; fd >= 0 && (got = read(fd, to + length, SIZE_MAX_BYTES - length)) > 0;) length += (size_t)got;
    if (fd < 0) {
        perror(path);
        exit(2);
    }
    close(fd);
    return length;
}

/* A copy of exactly that size, so that AddressSanitizer sees what is read behind it. */
static void give(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static const uint8_t ODD[] = {0, 1, 2, 9, 10, 13, 32, 34, 36, 39, 42, 45, 58, 61, 91, 92, 93, 127, 128, 250, 251, 252, 253, 254, 255};

static size_t changed(uint8_t *data, size_t size) {
    for (uint64_t changes = 1 + random_below(8); changes > 0 && size > 0; changes--) {
        size_t at = (size_t)random_below(size), span = 1 + (size_t)random_below(size - at);
        switch (random_below(6)) {
        case 0:
            data[at] ^= (uint8_t)(1 << random_below(8));
            break;
        case 1:
            data[at] = ODD[random_below(sizeof ODD)];
            break;
        case 2:
            memset(data + at, ODD[random_below(sizeof ODD)], span < 8 ? span : 8);
            break;
        case 3:
            size = at + 1;
            break;
        case 4:
            memmove(data + at, data + at + span, size - at - span);
            size -= span;
            break;
        default:
            if (size + span <= SIZE_MAX_BYTES) {
                memmove(data + at + span, data + at, size - at);
                size += span;
            }
        }
    }
    return size;
}

int main(int argc, char **argv) {
    static uint8_t data[SIZE_MAX_BYTES];
    if (argc < 3) return 2;
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 2; i < argc; i++) give(data, read_file(argv[i], data));
    long rounds = strtol(argv[1], NULL, 10);
    for (long round = 0; round < rounds; round++) {
        size_t size = read_file(argv[2 + random_below((uint64_t)argc - 2)], data);
        give(data, changed(data, size));
    }
    printf("%ld\n", rounds + argc - 2);
    return 0;
}
