/* The agent's times: nanoseconds of a clock, and milliseconds for poll(). */
#pragma once
#include <stdint.h>
#include <time.h>

#define MS INT64_C(1000000)

static inline int64_t now(clockid_t clock) {
    struct timespec t = {0};
    clock_gettime(clock, &t); /* cannot fail: both clocks exist in every Linux since 2.6.39 */
    return (int64_t)t.tv_sec * 1000 * MS + t.tv_nsec;
}

/* For poll(): milliseconds until a CLOCK_MONOTONIC time, rounded up so that poll never returns too early. */
static inline int ms_until(int64_t when) {
    int64_t left = when - now(CLOCK_MONOTONIC);
    return left <= 0 ? 0 : (int)((left + MS - 1) / MS);
}
