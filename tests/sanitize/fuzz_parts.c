/*
 * The freestanding programs of part A, whole but for the kernel, which refuses nearly everything: the checker's list, the modloader's
 * table and devices, the mounter's table, the prefetcher's ranges and names. The first byte of the input chooses.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <errno.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "freestanding.h"

int checker_main(int argc, char **argv);
int modloader_main(int argc, char **argv);
int mounter_main(int argc, char **argv);
int prefetcher_main(int argc, char **argv);

enum { TAKEN_MAX = 64, FILES_MAX = 2, PAGE = 4096, DIRECTORY = 77 };

static void *taken_memory[TAKEN_MAX];
static size_t taken_count;
static const uint8_t *input; /* parts[0], then parts[1] */
static size_t parts[FILES_MAX], stdin_read;
static int device_reads;
/* What the first fork(2) answers: 0 to go on with the names as the child, 1 to come to the parts. */
static long first_fork;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void *keep(void *memory) {
    DEMAND(memory && taken_count < TAKEN_MAX);
    return taken_memory[taken_count++] = memory;
}

void *mapped(long answer) { return (unsigned long)answer > -4096UL ? NULL : (void *)answer; }
void *take_memory(size_t bytes) { return keep(calloc(1, bytes)); }
size_t length_of(const char *text) { return strlen(text); }

bool same_bytes(const void *left, const void *right, size_t bytes) {
    const uint8_t *l = left, *r = right;
    for (; bytes && *l == *r; bytes--) l++, r++;
    return bytes == 0;
}

/* Files "0" and "1" are the input's parts; every other one is 8 bytes long. */
static int part_of(const char *name) { return name[0] == '0' ? 0 : name[0] == '1' ? 1 : -1; }

void *map_file(int place, const char *name, size_t bytes) {
    (void)place;
    int part = part_of(name);
    void *data = NULL;
    DEMAND(strlen(name) < SIZE_MAX);
    if (part < 0 || parts[part] != bytes) return bytes > PAGE ? NULL : keep(calloc(1, bytes));
    DEMAND(posix_memalign(&data, PAGE, bytes) == 0);
    memcpy(keep(data), input + (part ? parts[0] : 0), bytes);
    return data;
}

static long status_of(const char *name, struct stat *status) {
    DEMAND(strlen(name) < SIZE_MAX);
    int part = part_of(name);
    memset(status, 0, sizeof *status);
    status->st_mode = S_IFREG | 0644;
    status->st_size = part < 0 ? 8 : (off_t)parts[part];
    return 0;
}

static long read_from(long file, char *to, size_t room) {
    size_t size = parts[0] + parts[1], more = size - stdin_read < room ? size - stdin_read : room;
    if (file != 0) { /* a device's alias: the input's second part */
        if (device_reads++ > 4) return -EIO;
        more = parts[1] < room ? parts[1] : room;
        memcpy(to, input + parts[0], more);
        return (long)more;
    }
    memcpy(to, input + stdin_read, more);
    stdin_read += more;
    return (long)more;
}

long system_call(long number, long a, long b, long c, long d, long e, long f) {
    (void)c, (void)d, (void)e, (void)f;
    switch (number) {
    case SYS_read:
        return read_from(a, (char *)b, (size_t)c);
    case SYS_stat:
        return status_of((const char *)a, (struct stat *)b);
    case SYS_newfstatat:
        return status_of((const char *)b, (struct stat *)c);
    case SYS_fstat:
        return status_of("x", (struct stat *)b);
    case SYS_openat:
        DEMAND(strlen((const char *)b) < SIZE_MAX);
        return DIRECTORY;
    case SYS_mount:
        for (int i = 0; i < 3; i++) DEMAND(strlen((const char *)(i == 0 ? a : i == 1 ? b : c)) < SIZE_MAX);
        DEMAND(strlen((const char *)e) < 512);
        return 0;
    case SYS_faccessat:
        return -ENOENT;
    case SYS_finit_module:
        return -EEXIST;
    case SYS_write: {
        volatile char last = c > 0 ? ((const char *)b)[c - 1] : 0;
        (void)last;
        return c;
    }
    case SYS_readlinkat:
        return -EINVAL;
    case SYS_fork: {
        long answer = first_fork;
        first_fork = 0;
        return answer;
    }
    default:
        return -ENOSYS;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const WHAT[] = {"disks", "present", "late", "again", "image", "all"};
    if (size < 2) return 0;
    uint8_t kind = data[0];
    input = data + 2;
    parts[0] = (size - 2) * data[1] / 255;
    parts[1] = size - 2 - parts[0];
    stdin_read = 0;
    device_reads = 0;
    first_fork = 0;
    switch (kind % 4) {
    case 0:
        checker_main(4 + (kind & 4 ? 1 : 0), (char *[]){"checker", "x", "0", "x", kind & 8 ? "plain" : "pclmul", NULL});
        break;
    case 1:
        modloader_main(5, (char *[]){"modloader", "x", "0", "x", (char *)WHAT[kind / 4 % 6], NULL});
        break;
    case 2:
        mounter_main(1, (char *[]){"mounter", NULL});
        break;
    default: {
        first_fork = kind & 4 ? 1 : 0;
        int ended = prefetcher_main(7, (char *[]){"prefetcher", "x", "x", "0", "1", "1", "128", NULL});
        /* It looks at every list whose last text is whole; a call with other arguments would look at none. */
        DEMAND(ended == 0 || (parts[1] > 0 && data[size - 1] != 0));
        break;
    }
    }
    while (taken_count > 0) free(taken_memory[--taken_count]);
    return 0;
}
