// usage: resident FILE...
// Prints which parts of the files are in the page cache (mincore(2)). A file has a line "== SIZE NAME", and then a line "OFFSET LENGTH" for
// every part, in bytes. A file that cannot be opened has no lines. The last line says that all files were examined.

#define _GNU_SOURCE

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void close_file(const int *file) {
    if (*file >= 0) close(*file);
}

static void print_parts(const unsigned char *pages, size_t count, size_t page_bytes) {
    for (size_t begin = 0, end; begin < count; begin = end) {
        const bool is_resident = pages[begin] & 1;
        for (end = begin; end < count && (pages[end] & 1) == is_resident;) end++;
        if (is_resident) printf("%zu %zu\n", begin * page_bytes, (end - begin) * page_bytes);
    }
}

static bool print_resident(const char *name, size_t page_bytes) {
    __attribute__((cleanup(close_file))) int file = open(name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) return true;
    const size_t bytes = (size_t)status.st_size, count = (bytes + page_bytes - 1) / page_bytes;
    // The mapping itself reads nothing.
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    unsigned char *pages = malloc(count);
    const bool is_known = memory != MAP_FAILED && pages && mincore(memory, bytes, pages) == 0;
    if (is_known) {
        printf("== %zu %s\n", bytes, name);
        print_parts(pages, count, page_bytes);
    }
    free(pages);
    if (memory != MAP_FAILED) munmap(memory, bytes);
    return is_known;
}

int main(int argc, char **argv) {
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (int each = 1; each < argc; each++)
        if (!print_resident(argv[each], page_bytes)) return 1;
    puts("== end");
    return fflush(stdout) == 0 ? 0 : 1;
}
