// CRC-32 of zlib, gzip and IEEE 802.3, for a CPU without PCLMULQDQ. It takes eight bytes a step ("slicing by 8": Kounavis and Berry,
// "Novel Table Lookup-Based Algorithms for High-Performance CRC Generation", 2008).
//
// In a word, the highest power of a polynomial over GF(2) is the lowest bit, which is the first bit of a byte.

#include "checker.h"

// x^32 + x^26 + x^23 + x^22 + x^16 + x^12 + x^11 + x^10 + x^8 + x^7 + x^5 + x^4 + x^2 + x + 1, without x^32.
#define POLYNOMIAL 0xedb88320u

// after[n][byte]: the state in which `byte` and n zero bytes leave a state of 0.
static uint32_t after[8][256];

static uint32_t times_x(uint32_t state) { return state >> 1 ^ (state & 1 ? POLYNOMIAL : 0); }

uint32_t power_of_x(uint32_t exponent) {
    uint32_t power = 0x80000000;
    while (exponent--) power = times_x(power);
    return power;
}

static uint32_t after_byte(uint32_t state, uint8_t byte) { return state >> 8 ^ after[0][(state ^ byte) & 255]; }

// The tables are computed here. As constants, they would add 8 KB to a program that every boot has to fetch.
void prepare_plain(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        after[0][byte] = byte;
        for (uint32_t bit = 0; bit < 8; bit++) after[0][byte] = times_x(after[0][byte]);
    }
    for (uint32_t zeros = 1; zeros < 8; zeros++)
        for (uint32_t byte = 0; byte < 256; byte++) after[zeros][byte] = after_byte(after[zeros - 1][byte], 0);
}

uint32_t after_plain(uint32_t state, const uint8_t *data, size_t bytes) {
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t word;
        __builtin_memcpy(&word, data, sizeof word);
        word ^= state;
        state = 0;
#pragma GCC unroll 8
        for (uint32_t byte = 0; byte < 8; byte++) state ^= after[7 - byte][word >> 8 * byte & 255];
    }
    while (bytes--) state = after_byte(state, *data++);
    return state;
}

uint32_t crc_plain(const uint8_t *data, size_t bytes) { return ~after_plain(~0u, data, bytes); }
