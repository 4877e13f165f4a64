// Our programs in part A use this instead of a C library. With a static glibc, each would make part A 0.8 MB larger, and every boot has to
// fetch part A.

#ifndef FREESTANDING_H
#define FREESTANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The kernel's answer; negative for an error.
long system_call(long number, long a, long b, long c, long d, long e, long f);
// The answer of mmap(2) as a pointer; NULL for an error.
void *mapped(long answer);
void *take_memory(size_t bytes);
void *map_file(int place, const char *name, size_t bytes);
size_t length_of(const char *text);
bool same_bytes(const void *left, const void *right, size_t bytes);

#endif
