/* What the fuzz targets share. libFuzzer calls the two functions; so does replay.c, where there is no clang. */
#ifndef FUZZ_H
#define FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the program under test that does not hold is a finding, as a wrong access is. */
#define DEMAND(what)          \
    do {                      \
        if (!(what)) abort(); \
    } while (0)

#endif
