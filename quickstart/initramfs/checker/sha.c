// One chunk after the other by the CPU's SHA extensions (Intel SDM, SHA256RNDS2, SHA256MSG1, SHA256MSG2).

#include "checker.h"

#include <immintrin.h>

#define WITH_SHA __attribute__((target("sha,sse4.1,ssse3")))

// The words A, B, E, F and C, D, G, H, the first of each on top.
struct halves {
	__m128i abef, cdgh;
};

WITH_SHA static void compress(struct halves *state, const uint8_t *data, uint32_t blocks)
{
	const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
	__m128i abef = state->abef, cdgh = state->cdgh;
	for (; blocks; blocks--, data += BLOCK_BYTES) {
		const __m128i abef_before = abef, cdgh_before = cdgh;
		__m128i w[4];
#pragma GCC unroll 4
		for (int part = 0; part < 4; part++)
			w[part] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + part), swap);
#pragma GCC unroll 16
		for (int four = 0; four < 16; four++) {
			__m128i *now = &w[four & 3], next = w[(four + 1) & 3], third = w[(four + 2) & 3], last = w[(four + 3) & 3];
			__m128i sum = _mm_add_epi32(*now, _mm_load_si128((const __m128i *)sha256_k + four));
			cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
			abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
			if (four < 12)
				*now = _mm_sha256msg2_epu32(
					_mm_add_epi32(_mm_sha256msg1_epu32(*now, next), _mm_alignr_epi8(last, third, 4)), last);
		}
		abef = _mm_add_epi32(abef, abef_before);
		cdgh = _mm_add_epi32(cdgh, cdgh_before);
	}
	state->abef = abef;
	state->cdgh = cdgh;
}

WITH_SHA const struct chunk *difference_sha(const struct chunk *chunks, uint32_t count)
{
	const uint32_t *s = sha256_start;
	for (const struct chunk *chunk = chunks; chunk < chunks + count; chunk++) {
		uint8_t end[2 * BLOCK_BYTES];
		uint32_t x[4], y[4];
		struct halves state = {
			_mm_set_epi32((int)s[0], (int)s[1], (int)s[4], (int)s[5]),
			_mm_set_epi32((int)s[2], (int)s[3], (int)s[6], (int)s[7]),
		};
		compress(&state, chunk->data, chunk->bytes / BLOCK_BYTES);
		compress(&state, end, last_blocks(chunk->data, chunk->bytes, end));
		_mm_storeu_si128((__m128i *)x, state.abef);
		_mm_storeu_si128((__m128i *)y, state.cdgh);
		const uint32_t found[8] = {x[3], x[2], y[3], y[2], x[1], x[0], y[1], y[0]};
		if (!same_digest(found, chunk->digest))
			return chunk;
	}
	return NULL;
}
