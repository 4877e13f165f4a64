// Four chunks side by side: word by word, each in a lane of its own. A lane that ends takes the next chunk.

#include "checker.h"

#include <immintrin.h>

#define LANES 4

typedef uint64_t vector __attribute__((vector_size(LANES * sizeof(uint64_t))));

// Written for few instructions: that is what the virtual clock counts. All sixteen registers hold words of the state: told that a mask
// may have changed, GCC takes it from memory each time, which is no instruction more; two registers for masks are 3 % more.
static __m256i turn24 = {0x0201000706050403, 0x0a09080f0e0d0c0b, 0x0201000706050403, 0x0a09080f0e0d0c0b};
static __m256i turn16 = {0x0100070605040302, 0x09080f0e0d0c0b0a, 0x0100070605040302, 0x09080f0e0d0c0b0a};
#define SHUFFLED(x, mask) (__extension__({ __asm__("" : "+m"(mask)); (vector)_mm256_shuffle_epi8((__m256i)(x), mask); }))

#define WAY __attribute__((target("avx2")))
#define WORD vector
#define EACH(number) ((vector)_mm256_set1_epi64x((long long)(number)))
#define TURN32(x) ((vector)_mm256_shuffle_epi32((__m256i)(x), 0xb1))
#define TURN24(x) SHUFFLED(x, turn24)
#define TURN16(x) SHUFFLED(x, turn16)
#define TURN63(x) (__extension__({ const vector once = (x); once >> 63 ^ (once + once); }))
#include "blake2b.h"

struct lane {
	const struct chunk *chunk;
	// What is left before the last one, or of the last one.
	uint32_t blocks;
	bool last;
	uint8_t end[BLOCK_BYTES];
};

struct states {
	union {
		vector vectors[8];
		uint64_t words[8][LANES];
	};
	union {
		vector counts;
		uint64_t count[LANES];
	};
	union {
		vector lasts;
		uint64_t last[LANES];
	};
};

// Sixteen words of four lanes at `offset`: 2 x 2 words are turned in each half, in which the lanes 0 and 1, 2 and 3 lie.
WAY static inline void load_words(vector m[16], const uint8_t *const at[LANES], size_t offset)
{
#pragma GCC unroll 8
	for (size_t part = 0; part < 8; part++) {
		__m256i row[2];
#pragma GCC unroll 2
		for (size_t lane = 0; lane < 2; lane++) {
			const __m128i *low = (const __m128i *)(at[lane] + offset) + part;
			const __m128i *high = (const __m128i *)(at[lane + 2] + offset) + part;
			row[lane] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
		}
		m[2 * part] = (vector)_mm256_unpacklo_epi64(row[0], row[1]);
		m[2 * part + 1] = (vector)_mm256_unpackhi_epi64(row[0], row[1]);
	}
}

WAY static void compress(struct states *states, const uint8_t *const at[LANES], uint32_t blocks)
{
	for (size_t offset = 0; blocks; blocks--, offset += BLOCK_BYTES) {
		vector m[16];
		load_words(m, at, offset);
		states->counts += EACH(BLOCK_BYTES);
		mix(states->vectors, m, states->counts, states->lasts);
	}
}

static void begin(struct lane *lane, const uint8_t **at, struct states *states, uint32_t number, const struct chunk *chunk)
{
	lane->chunk = chunk;
	lane->blocks = blocks_before_last(chunk->bytes);
	lane->last = false;
	*at = chunk->data;
	for (uint32_t word = 0; word < 8; word++)
		states->words[word][number] = start_word(word);
	states->count[number] = states->last[number] = 0;
}

static void begin_last(struct lane *lane, const uint8_t **at, struct states *states, uint32_t number)
{
	last_block(lane->chunk, lane->end);
	lane->blocks = 1;
	lane->last = true;
	*at = lane->end;
	// With the block that compress adds it is the chunk's length.
	states->count[number] = (uint64_t)lane->chunk->bytes - BLOCK_BYTES;
	states->last[number] = UINT64_MAX;
}

static bool is_right(const struct lane *lane, const struct states *states, uint32_t number)
{
	uint64_t found[DIGEST_BYTES / sizeof(uint64_t)];
	for (uint32_t word = 0; word < DIGEST_BYTES / sizeof(uint64_t); word++)
		found[word] = states->words[word][number];
	return same_bytes(found, lane->chunk->digest, DIGEST_BYTES);
}

const struct chunk *difference_avx2(const struct chunk *chunks, uint32_t count)
{
	static struct lane lanes[LANES];
	static struct states states;
	const uint8_t *at[LANES];
	const struct chunk *next = chunks, *end = chunks + count;
	for (uint32_t number = 0; number < LANES && next < end; number++)
		begin(&lanes[number], &at[number], &states, number, next++);
	for (;;) {
		uint32_t blocks = UINT32_MAX;
		const uint8_t *some = NULL;
		for (uint32_t number = 0; number < LANES; number++) {
			struct lane *lane = &lanes[number];
			while (lane->chunk && lane->blocks == 0) {
				if (!lane->last)
					begin_last(lane, &at[number], &states, number);
				else if (!is_right(lane, &states, number))
					return lane->chunk;
				else if (next < end)
					begin(lane, &at[number], &states, number, next++);
				else
					lane->chunk = NULL;
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
		compress(&states, at, blocks);
		for (uint32_t number = 0; number < LANES; number++) {
			at[number] += (size_t)blocks * BLOCK_BYTES;
			lanes[number].blocks -= blocks;
		}
	}
}
