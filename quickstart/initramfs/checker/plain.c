// For a CPU that has nothing better: one chunk after the other; and what both ways share.

#include "checker.h"

const uint64_t blake2b_iv[8] = {
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static inline uint64_t right(uint64_t word, int by)
{
	return word >> by | word << (64 - by);
}

#define WAY
#define WORD uint64_t
#define EACH(number) (number)
#define TURN32(word) right(word, 32)
#define TURN24(word) right(word, 24)
#define TURN16(word) right(word, 16)
#define TURN63(word) right(word, 63)
#include "blake2b.h"

uint64_t start_word(uint32_t word)
{
	// The parameter block's first word (2.5): fanout 1, depth 1, no key, length of the digest.
	return blake2b_iv[word] ^ (word == 0 ? 0x01010000 | DIGEST_BYTES : 0);
}

uint32_t blocks_before_last(uint32_t bytes)
{
	return bytes ? (bytes - 1) / BLOCK_BYTES : 0;
}

void last_block(const struct chunk *chunk, uint8_t end[BLOCK_BYTES])
{
	uint32_t before = blocks_before_last(chunk->bytes) * BLOCK_BYTES, rest = chunk->bytes - before;
	__builtin_memcpy(end, chunk->data + before, rest);
	__builtin_memset(end + rest, 0, BLOCK_BYTES - rest);
}

const struct chunk *difference_plain(const struct chunk *chunks, uint32_t count)
{
	for (const struct chunk *chunk = chunks; chunk < chunks + count; chunk++) {
		uint32_t before = blocks_before_last(chunk->bytes);
		uint64_t state[8], words[BLOCK_BYTES / sizeof(uint64_t)];
		for (uint32_t word = 0; word < 8; word++)
			state[word] = start_word(word);
		for (uint32_t block = 0; block <= before; block++) {
			if (block == before)
				last_block(chunk, (uint8_t *)words);
			else
				__builtin_memcpy(words, chunk->data + (size_t)block * BLOCK_BYTES, sizeof words);
			mix(state, words, block == before ? chunk->bytes : (block + 1) * BLOCK_BYTES, block == before ? UINT64_MAX : 0);
		}
		if (!same_bytes(state, chunk->digest, DIGEST_BYTES))
			return chunk;
	}
	return NULL;
}
