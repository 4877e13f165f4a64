// What our programs in part A have instead of a C library: a static glibc would make part A 0.8 MB larger for each, which every boot
// has to fetch.

#ifndef FREESTANDING_H
#define FREESTANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the kernel answers, negative for an error.
long system_call(long number, long a, long b, long c, long d, long e, long f);
// What mmap(2) answered as a pointer, NULL for an error.
void *mapped(long answer);
void *take_memory(size_t bytes);
void *map_file(int place, const char *name, size_t bytes);
size_t length_of(const char *text);
bool same_bytes(const void *left, const void *right, size_t bytes);

#endif
