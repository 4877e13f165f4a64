// Eight chunks side by side: word by word, each in a lane of its own. A lane that ends takes the next chunk.

#include "checker.h"

#include <immintrin.h>

#define WITH_AVX2 __attribute__((target("avx2")))
#define LANES 8

// Written for few instructions: that is what the virtual clock counts.
#define XOR _mm256_xor_si256
#define ADD _mm256_add_epi32
#define LEFT _mm256_slli_epi32
#define RIGHT _mm256_srli_epi32
#define TURN(x, by) XOR(RIGHT(x, by), LEFT(x, 32 - (by)))
#define BIG0(x) XOR(XOR(TURN(x, 2), TURN(x, 13)), TURN(x, 22))
#define BIG1(x) XOR(XOR(TURN(x, 6), TURN(x, 11)), TURN(x, 25))
#define SMALL0(x) XOR(XOR(TURN(x, 7), TURN(x, 18)), RIGHT(x, 3))
#define SMALL1(x) XOR(XOR(TURN(x, 17), TURN(x, 19)), RIGHT(x, 10))

// Maj(a, b, c) is b ^ ((a ^ b) & (b ^ c)), and b ^ c is the a ^ b of the round before.
#define ROUND(a, b, c, d, e, f, g, h, word, k)                          \
	do {                                                            \
		h = ADD(h, ADD(word, k));                               \
		h = ADD(h, XOR(_mm256_and_si256(XOR(f, g), e), g));     \
		h = ADD(h, BIG1(e));                                    \
		d = ADD(d, h);                                          \
		const __m256i ab = XOR(a, b);                           \
		h = ADD(h, XOR(_mm256_and_si256(ab, bc), b));           \
		h = ADD(h, BIG0(a));                                    \
		bc = ab;                                                \
	} while (0)

#define ROUNDS8(WORD, t)                                  \
	ROUND(a, b, c, d, e, f, g, h, WORD(t), k[t]);     \
	ROUND(h, a, b, c, d, e, f, g, WORD(t + 1), k[t + 1]); \
	ROUND(g, h, a, b, c, d, e, f, WORD(t + 2), k[t + 2]); \
	ROUND(f, g, h, a, b, c, d, e, WORD(t + 3), k[t + 3]); \
	ROUND(e, f, g, h, a, b, c, d, WORD(t + 4), k[t + 4]); \
	ROUND(d, e, f, g, h, a, b, c, WORD(t + 5), k[t + 5]); \
	ROUND(c, d, e, f, g, h, a, b, WORD(t + 6), k[t + 6]); \
	ROUND(b, c, d, e, f, g, h, a, WORD(t + 7), k[t + 7])

#define FIRST(t) w[t]
#define LATER(t) (w[(t) & 15] = ADD(ADD(w[(t) & 15], SMALL0(w[((t) + 1) & 15])), \
				    ADD(w[((t) + 9) & 15], SMALL1(w[((t) + 14) & 15]))))

struct lane {
	const struct chunk *chunk;
	// What is left of the full blocks, then of the last ones.
	uint32_t blocks;
	bool last;
	uint8_t end[2 * BLOCK_BYTES];
};

// Sixteen words of eight lanes at `offset`: 4 x 4 words are turned in each half, in which the lanes 0 to 3 and 4 to 7 lie.
WITH_AVX2 static inline void load_words(__m256i w[16], const uint8_t *const at[LANES], size_t offset)
{
	const __m256i swap = _mm256_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL, 0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
#pragma GCC unroll 4
	for (size_t part = 0; part < 4; part++) {
		__m256i row[4];
#pragma GCC unroll 4
		for (size_t lane = 0; lane < 4; lane++) {
			const __m128i *low = (const __m128i *)(at[lane] + offset) + part;
			const __m128i *high = (const __m128i *)(at[lane + 4] + offset) + part;
			row[lane] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
		}
		__m256i a = _mm256_unpacklo_epi32(row[0], row[1]), b = _mm256_unpackhi_epi32(row[0], row[1]);
		__m256i c = _mm256_unpacklo_epi32(row[2], row[3]), d = _mm256_unpackhi_epi32(row[2], row[3]);
		w[4 * part] = _mm256_shuffle_epi8(_mm256_unpacklo_epi64(a, c), swap);
		w[4 * part + 1] = _mm256_shuffle_epi8(_mm256_unpackhi_epi64(a, c), swap);
		w[4 * part + 2] = _mm256_shuffle_epi8(_mm256_unpacklo_epi64(b, d), swap);
		w[4 * part + 3] = _mm256_shuffle_epi8(_mm256_unpackhi_epi64(b, d), swap);
	}
}

WITH_AVX2 static void compress(__m256i state[8], const uint8_t *const at[LANES], uint32_t blocks, const __m256i all[64])
{
	__m256i a = state[0], b = state[1], c = state[2], d = state[3];
	__m256i e = state[4], f = state[5], g = state[6], h = state[7];
	for (size_t offset = 0; blocks; blocks--, offset += BLOCK_BYTES) {
		__m256i w[16], bc = XOR(b, c);
		load_words(w, at, offset);
		const __m256i *k = all;
		ROUNDS8(FIRST, 0);
		ROUNDS8(FIRST, 8);
#pragma GCC unroll 1
		for (k += 16; k < all + 64; k += 16) {
			ROUNDS8(LATER, 0);
			ROUNDS8(LATER, 8);
		}
		a = state[0] = ADD(a, state[0]), b = state[1] = ADD(b, state[1]);
		c = state[2] = ADD(c, state[2]), d = state[3] = ADD(d, state[3]);
		e = state[4] = ADD(e, state[4]), f = state[5] = ADD(f, state[5]);
		g = state[6] = ADD(g, state[6]), h = state[7] = ADD(h, state[7]);
	}
}

static void begin(struct lane *lane, const uint8_t **at, uint32_t state[8][LANES], uint32_t number, const struct chunk *chunk)
{
	lane->chunk = chunk;
	lane->blocks = chunk->bytes / BLOCK_BYTES;
	lane->last = false;
	*at = chunk->data;
	for (uint32_t word = 0; word < 8; word++)
		state[word][number] = sha256_start[word];
}

static bool is_right(const struct lane *lane, uint32_t state[8][LANES], uint32_t number)
{
	uint32_t found[8];
	for (uint32_t word = 0; word < 8; word++)
		found[word] = state[word][number];
	return same_digest(found, lane->chunk->digest);
}

WITH_AVX2 const struct chunk *difference_avx2(const struct chunk *chunks, uint32_t count)
{
	static struct lane lanes[LANES];
	static union {
		__m256i vectors[8];
		uint32_t words[8][LANES];
	} state;
	static __m256i k[64];
	const uint8_t *at[LANES];
	const struct chunk *next = chunks, *end = chunks + count;
	for (uint32_t t = 0; t < 64; t++)
		k[t] = _mm256_set1_epi32((int)sha256_k[t]);
	for (uint32_t number = 0; number < LANES && next < end; number++)
		begin(&lanes[number], &at[number], state.words, number, next++);
	for (;;) {
		uint32_t blocks = UINT32_MAX;
		const uint8_t *some = NULL;
		for (uint32_t number = 0; number < LANES; number++) {
			struct lane *lane = &lanes[number];
			while (lane->chunk && lane->blocks == 0) {
				if (!lane->last) {
					lane->blocks = last_blocks(lane->chunk->data, lane->chunk->bytes, lane->end);
					lane->last = true;
					at[number] = lane->end;
				} else if (!is_right(lane, state.words, number)) {
					return lane->chunk;
				} else if (next < end) {
					begin(lane, &at[number], state.words, number, next++);
				} else {
					lane->chunk = NULL;
				}
			}
			if (lane->chunk) {
				some = at[number];
				blocks = lane->blocks < blocks ? lane->blocks : blocks;
			}
		}
		if (!some)
			return NULL;
		for (uint32_t number = 0; number < LANES; number++)
			// A lane with nothing left to do does what another one does.
			if (!lanes[number].chunk)
				at[number] = some;
		compress(state.vectors, at, blocks, k);
		for (uint32_t number = 0; number < LANES; number++) {
			at[number] += (size_t)blocks * BLOCK_BYTES;
			lanes[number].blocks -= blocks;
		}
	}
}
