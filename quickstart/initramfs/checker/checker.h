// The checker compares the files below ROOT with the list of digests (docs/internals/integrity.md).

#ifndef CHECKER_H
#define CHECKER_H

#include "freestanding.h"

// An entry of the list: the facts of one file. All pointers lead into the list.
struct entry {
    const char *name;
    const uint8_t *text;
    uint32_t mode, uid, gid;
    uint32_t size_bytes;
    // 0, or 1 + the number of the earlier entry for the same file.
    uint32_t same_as;
    uint32_t crc;
    uint32_t text_bytes;
    bool has_content;
    uint64_t inode;
};

struct list {
    struct entry *entries;
    uint32_t count;
};

// The CRC-32 of `data`, which begins at a multiple of 16. It is 0 for no data.
typedef uint32_t crc_of(const uint8_t *data, size_t bytes);

// list.c
bool read_list(const uint8_t *data, size_t bytes, struct list *list);

// files.c: what is wrong with the file of the entry `*wrong`, or NULL.
const char *find_difference(int root, struct list *list, crc_of *crc, const struct entry **wrong);

// The two implementations. Each is prepared once, before its first use.

// plain.c
void prepare_plain(void);
crc_of crc_plain;
// x to the power of `exponent`, as the state of a CRC.
uint32_t power_of_x(uint32_t exponent);
// The state of the CRC after `bytes` more bytes. The CRC is its complement.
uint32_t after_plain(uint32_t state, const uint8_t *data, size_t bytes);

// pclmul.c
bool has_pclmul(void);
void prepare_pclmul(void);
crc_of crc_pclmul;

#endif
