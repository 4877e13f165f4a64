// The checker: is what lies below ROOT what the list of digests says (docs/integrity.md)?

#ifndef CHECKER_H
#define CHECKER_H

#include "freestanding.h"

// A file's content is hashed in pieces of this size, each by itself: pieces of equal length are equal work for parallel lanes.
#define CHUNK_BYTES 65536u
#define BLOCK_BYTES 128u
#define CHUNK_BLOCKS (CHUNK_BYTES / BLOCK_BYTES)
#define DIGEST_BYTES 32u

// What the list says of one file; all pointers lead into the list.
struct entry {
	const char *name;
	const uint8_t *text;
	const uint8_t *digests;
	uint32_t mode, uid, gid;
	uint32_t size_bytes;
	// 0, or 1 + the number of the earlier entry that this is another name of.
	uint32_t same_as;
	uint32_t text_bytes;
	uint32_t chunks;
	uint64_t inode;
};

// A piece of a file, and what it is to have.
struct chunk {
	const uint8_t *data;
	const uint8_t *digest;
	const struct entry *entry;
	uint32_t bytes;
};

struct list {
	struct entry *entries;
	uint32_t count;
	uint32_t chunks;
};

// list.c
bool read_list(const uint8_t *data, size_t bytes, struct list *list);

// files.c: what is wrong, or NULL; `*wrong` is then the entry.
const char *find_chunks(int root, struct list *list, struct chunk *chunks, const struct entry **wrong);
void sort_chunks(const struct chunk *chunks, struct chunk *sorted, uint32_t count);

// plain.c
extern const uint64_t blake2b_iv[8];
uint64_t start_word(uint32_t word);
uint32_t blocks_before_last(uint32_t bytes);
void last_block(const struct chunk *chunk, uint8_t end[BLOCK_BYTES]);

// The two ways: the first chunk that has another digest, or NULL.
typedef const struct chunk *find_difference(const struct chunk *chunks, uint32_t count);
find_difference difference_plain, difference_avx2;

// cpu.c
bool cpu_has_avx2(void);

#endif
