// What the CPU has, and the kernel lets programs use (Intel SDM volume 1, 14.3 and 14.7).

#include "checker.h"

#include <cpuid.h>

static uint32_t features_1(void)
{
	uint32_t a, b, c, d;
	return __get_cpuid(1, &a, &b, &c, &d) ? c : 0;
}

static uint32_t features_7(void)
{
	uint32_t a, b, c, d;
	return __get_cpuid_count(7, 0, &a, &b, &c, &d) ? b : 0;
}

bool cpu_has_avx2(void)
{
	uint32_t low, high;
	if (~features_1() & (bit_AVX | bit_OSXSAVE) || ~features_7() & bit_AVX2)
		return false;
	// XCR0: the kernel keeps xmm and ymm registers.
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (low & 6) == 6;
}
