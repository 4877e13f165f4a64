// SHA-256 (FIPS 180-4): constants, the end of a message, and the plain way for a CPU that has nothing better.

#include "checker.h"

const uint32_t sha256_start[8] = {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

// Aligned for the loads of four at a time.
_Alignas(32) const uint32_t sha256_k[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t big_endian(const uint8_t *at)
{
	uint32_t word;
	__builtin_memcpy(&word, at, sizeof word);
	return __builtin_bswap32(word);
}

// What is behind the last full block of a chunk, padded (section 5.1.1); 1 or 2 blocks.
uint32_t last_blocks(const uint8_t *data, uint32_t bytes, uint8_t end[2 * BLOCK_BYTES])
{
	uint32_t rest = bytes % BLOCK_BYTES;
	uint32_t blocks = rest < BLOCK_BYTES - 8 ? 1 : 2;
	uint8_t *length = end + blocks * BLOCK_BYTES - 4;
	__builtin_memcpy(end, data + (bytes - rest), rest);
	end[rest] = 0x80;
	__builtin_memset(end + rest + 1, 0, blocks * BLOCK_BYTES - rest - 1);
	for (uint32_t at = 0, bits = bytes * 8; at < 4; at++, bits <<= 8)
		length[at] = (uint8_t)(bits >> 24);
	return blocks;
}

bool same_digest(const uint32_t state[8], const uint8_t *digest)
{
	for (uint32_t word = 0; word < 8; word++)
		if (state[word] != big_endian(digest + 4 * word))
			return false;
	return true;
}

static uint32_t right(uint32_t word, int by)
{
	return word >> by | word << (32 - by);
}

// x turned right by a, by b and by c, all three added: nested it is two copies of x less.
static inline uint32_t turns(uint32_t x, int a, int b, int c)
{
	return right(right(right(x, c - b) ^ x, b - a) ^ x, a);
}

static inline uint32_t turns_and_shift(uint32_t x, int a, int b, int shift)
{
	return right(right(x, b - a) ^ x, a) ^ x >> shift;
}

// Maj(a, b, c) is b ^ ((a ^ b) & (b ^ c)), and b ^ c is the a ^ b of the round before.
#define ROUND(a, b, c, d, e, f, g, h, t)                                                         \
	do {                                                                                     \
		h += w[t] + sha256_k[t] + (((f ^ g) & e) ^ g) + turns(e, 6, 11, 25);             \
		d += h;                                                                          \
		const uint32_t ab = a ^ b;                                                       \
		h += ((ab & bc) ^ b) + turns(a, 2, 13, 22);                                      \
		bc = ab;                                                                         \
	} while (0)

static void compress(uint32_t state[8], const uint8_t *data, uint32_t blocks)
{
	uint32_t w[64];
	for (; blocks; blocks--, data += BLOCK_BYTES) {
#pragma GCC unroll 4
		for (uint32_t t = 0; t < 16; t++)
			w[t] = big_endian(data + 4 * t);
#pragma GCC unroll 4
		for (uint32_t t = 16; t < 64; t++)
			w[t] = w[t - 16] + w[t - 7] + turns_and_shift(w[t - 15], 7, 18, 3) + turns_and_shift(w[t - 2], 17, 19, 10);
		uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
		uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
		uint32_t bc = b ^ c;
#pragma GCC unroll 1
		for (uint32_t t = 0; t < 64; t += 8) {
			ROUND(a, b, c, d, e, f, g, h, t);
			ROUND(h, a, b, c, d, e, f, g, t + 1);
			ROUND(g, h, a, b, c, d, e, f, t + 2);
			ROUND(f, g, h, a, b, c, d, e, t + 3);
			ROUND(e, f, g, h, a, b, c, d, t + 4);
			ROUND(d, e, f, g, h, a, b, c, t + 5);
			ROUND(c, d, e, f, g, h, a, b, t + 6);
			ROUND(b, c, d, e, f, g, h, a, t + 7);
		}
		state[0] += a, state[1] += b, state[2] += c, state[3] += d;
		state[4] += e, state[5] += f, state[6] += g, state[7] += h;
	}
}

const struct chunk *difference_plain(const struct chunk *chunks, uint32_t count)
{
	for (const struct chunk *chunk = chunks; chunk < chunks + count; chunk++) {
		uint8_t end[2 * BLOCK_BYTES];
		uint32_t state[8];
		__builtin_memcpy(state, sha256_start, sizeof state);
		compress(state, chunk->data, chunk->bytes / BLOCK_BYTES);
		compress(state, end, last_blocks(chunk->data, chunk->bytes, end));
		if (!same_digest(state, chunk->digest))
			return chunk;
	}
	return NULL;
}
