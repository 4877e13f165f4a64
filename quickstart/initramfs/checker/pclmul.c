// CRC-32 by PCLMULQDQ, the product of two polynomials ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Gopal et al., Intel, 2009). At the next 64 bytes, the previous 64 are a polynomial times x^512. Instead of dividing it, we multiply
// its parts by the remainder of x^512, and add the product to the next 64. The tables reduce the last 16 bytes.

#include "checker.h"

#include <cpuid.h>
#include <immintrin.h>

#define WAY __attribute__((target("pclmul")))
#define STEP_BYTES 64u

// A factor for each half of 16 bytes, which moves it on by that many bytes.
static __m128i by_64, by_16;

bool has_pclmul(void) {
    uint32_t a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_PCLMUL;
}

// The first half is 64 powers higher than the second. 33 powers come by themselves: 32 because the factor is in the lower half of a word,
// where the higher powers are; and one because the product of two words has 127 bits, so the last of 128 stays free. The factors in the
// paper have an exponent that is one higher, and are shifted by that: 0x154442bd4 and 0x1c6e41596, 0x1751997d0 and 0x0ccaa009e.
static __m128i factors(uint32_t bytes) { return _mm_set_epi64x(power_of_x(8 * bytes - 33), power_of_x(8 * bytes + 64 - 33)); }

void prepare_pclmul(void) {
    prepare_plain();
    by_64 = factors(64);
    by_16 = factors(16);
}

WAY static inline __m128i carried(__m128i from, __m128i by, __m128i to) {
    return _mm_clmulepi64_si128(from, by, 0x00) ^ _mm_clmulepi64_si128(from, by, 0x11) ^ to;
}

WAY uint32_t crc_pclmul(const uint8_t *data, size_t bytes) {
    if (bytes < STEP_BYTES) return crc_plain(data, bytes);
    const __m128i *at = (const __m128i *)data, far = by_64, near = by_16;
    __m128i a = at[0] ^ _mm_cvtsi32_si128(-1), b = at[1], c = at[2], d = at[3];
    for (bytes -= STEP_BYTES, at += 4; bytes >= STEP_BYTES; bytes -= STEP_BYTES, at += 4) {
        a = carried(a, far, at[0]);
        b = carried(b, far, at[1]);
        c = carried(c, far, at[2]);
        d = carried(d, far, at[3]);
    }
    const __m128i last = carried(carried(carried(a, near, b), near, c), near, d);
    uint32_t state = after_plain(0, (const uint8_t *)&last, sizeof last);
    return ~after_plain(state, (const uint8_t *)at, bytes);
}
