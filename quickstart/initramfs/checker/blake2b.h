// BLAKE2b (RFC 7693, sections 2.7 and 3), one text for both ways: WORD is a 64-bit word, or a vector with one of each lane; TURN32 to
// TURN63 turn it right, EACH makes one of a number, WAY is what the function is compiled for.

#define G(a, b, c, d, x, y)                                                        \
	v[a] += v[b] + m[x], v[d] = TURN32(v[d] ^ v[a]);                           \
	v[c] += v[d], v[b] = TURN24(v[b] ^ v[c]);                                  \
	v[a] += v[b] + m[y], v[d] = TURN16(v[d] ^ v[a]);                           \
	v[c] += v[d], v[b] = TURN63(v[b] ^ v[c]);

#define ROUND(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15) \
	G(0, 4, 8, 12, s0, s1)                                                      \
	G(1, 5, 9, 13, s2, s3)                                                      \
	G(2, 6, 10, 14, s4, s5)                                                     \
	G(3, 7, 11, 15, s6, s7)                                                     \
	G(0, 5, 10, 15, s8, s9)                                                     \
	G(1, 6, 11, 12, s10, s11)                                                   \
	G(2, 7, 8, 13, s12, s13)                                                    \
	G(3, 4, 9, 14, s14, s15)

// One block `m` into the state `h`: `count` bytes with this one, `last` is all ones for the last block, else 0.
WAY static inline void mix(WORD h[8], const WORD m[16], WORD count, WORD last)
{
	const uint64_t *iv = blake2b_iv;
	WORD v[16] = {
		h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], EACH(iv[0]), EACH(iv[1]), EACH(iv[2]), EACH(iv[3]),
		EACH(iv[4]) ^ count, EACH(iv[5]), EACH(iv[6]) ^ last, EACH(iv[7]),
	};
	// The words' order (2.7): written out, for each index that is looked up is an instruction more.
	ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
	ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4)
	ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8)
	ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13)
	ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9)
	ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11)
	ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10)
	ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5)
	ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0)
	ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
#pragma GCC unroll 8
	for (uint32_t word = 0; word < 8; word++)
		h[word] ^= v[word] ^ v[word + 8];
}
