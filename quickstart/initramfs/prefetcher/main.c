// usage: prefetcher DEVICE ROOT RANGES NAMES PARTS KIB
// Asks DEVICE for all of RANGES at once, and does not wait. Its child then asks for the content of all files of NAMES below ROOT, and another
// child for the parts of files of PARTS (docs/internals/prefetch.md). KIB is the volume's largest request. A useless request costs only
// one read, so the program's only error status is 2, for a wrong call.

// O_NOATIME
#define _GNU_SOURCE

#include "prefetcher.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MOST_BYTES = 16 * 1024 * 1024 };

static bool map_whole(const char *name, struct text *text) {
    struct stat status;
    text->at = text->end = NULL;
    if (system_call(SYS_stat, (long)name, (long)&status, 0, 0, 0, 0) < 0) return false;
    if (status.st_size == 0) return true;
    text->at = map_file(AT_FDCWD, name, (size_t)status.st_size);
    text->end = text->at + status.st_size;
    return text->at != NULL;
}

// The kernel begins to read and returns (posix_fadvise(2), POSIX_FADV_WILLNEED). It takes only the first `request_bytes` of a call.
static void ask_for(long file, long offset_bytes, long length_bytes, long request_bytes) {
    long end_bytes;
    // Of a volume as well as of a file. Nothing is behind it.
    const long size_bytes = system_call(SYS_lseek, file, 0, SEEK_END, 0, 0, 0);
    if (__builtin_add_overflow(offset_bytes, length_bytes, &end_bytes) || end_bytes > size_bytes) end_bytes = size_bytes;
    for (; offset_bytes < end_bytes; offset_bytes += request_bytes) {
        const long rest_bytes = end_bytes - offset_bytes;
        const long bytes = rest_bytes < request_bytes ? rest_bytes : request_bytes;
        if (system_call(SYS_fadvise64, file, offset_bytes, bytes, POSIX_FADV_WILLNEED, 0, 0) < 0 || rest_bytes <= request_bytes) return;
    }
}

static bool read_number(struct text *text, long *number) {
    const char *begin = text->at;
    for (*number = 0; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++)
        if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, *text->at - '0', number)) return false;
    return text->at > begin && text->at < text->end;
}

// Lines of two decimal numbers: offset and length in bytes.
static void ask_for_ranges(long device, struct text ranges, long request_bytes) {
    long offset_bytes, length_bytes;
    while (read_number(&ranges, &offset_bytes) && *ranges.at++ == ' ' && read_number(&ranges, &length_bytes) && *ranges.at++ == '\n')
        ask_for(device, offset_bytes, length_bytes, request_bytes);
}

// Opening a file waits for its metadata, which have been requested already. Negative for anything but a regular file.
static long open_regular(long root, const char *name, struct stat *status) {
    const int flags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOATIME | O_CLOEXEC;
    long file = system_call(SYS_openat, root, (long)name, flags, 0, 0, 0);
    if (file < 0 || (system_call(SYS_fstat, file, (long)status, 0, 0, 0, 0) == 0 && S_ISREG(status->st_mode))) return file;
    system_call(SYS_close, file, 0, 0, 0, 0, 0);
    return -1;
}

// The files of a batch stay open until it is submitted. When there are too many of them, the batch ends here.
static long open_for(struct batch *batch, long root, const char *name, struct stat *status) {
    const long file = open_regular(root, name, status);
    if (file != -EMFILE || !batch) return file;
    submit(batch);
    return open_regular(root, name, status);
}

// Without a batch, or without room in it, the kernel is asked at once.
static void ask_or_add(struct batch *batch, long file, size_t offset_bytes, size_t bytes, long request_bytes) {
    if (!batch || !add_read(batch, file, offset_bytes, bytes)) ask_for(file, (long)offset_bytes, (long)bytes, request_bytes);
}

static void done_with(struct batch *batch, long file) {
    if (batch) close_after(batch, file);
    else system_call(SYS_close, file, 0, 0, 0, 0, 0);
}

// Names relative to the root, each with a NUL at the end.
static void ask_for_files(struct batch *batch, long root, struct text names, long request_bytes) {
    for (; names.at < names.end; names.at += length_of(names.at) + 1) {
        struct stat status;
        const long file = open_for(batch, root, names.at, &status);
        if (file < 0) continue;
        // A file may have grown since the build.
        const long bytes = status.st_size < MOST_BYTES ? status.st_size : MOST_BYTES;
        ask_or_add(batch, file, 0, (size_t)bytes, request_bytes);
        done_with(batch, file);
    }
}

// Offset, length and name, each with a NUL at the end. The parts of a file follow each other, so that it is opened once.
static void ask_for_parts(struct batch *batch, long root, struct text parts, long request_bytes) {
    const char *opened = NULL;
    long file = -1, offset_bytes, length_bytes;
    while (read_number(&parts, &offset_bytes) && *parts.at++ == ' ' && read_number(&parts, &length_bytes) && *parts.at++ == ' ') {
        const char *name = parts.at;
        parts.at += length_of(name) + 1;
        if (!opened || !is_same(whole(opened), name)) {
            struct stat status;
            if (file >= 0) done_with(batch, file);
            file = open_for(batch, root, name, &status);
            opened = name;
            // Of a long read, and of one from the file's beginning, the kernel would read ahead otherwise.
            if (batch && file >= 0) system_call(SYS_fadvise64, file, 0, 0, POSIX_FADV_RANDOM, 0, 0);
        }
        if (file >= 0) ask_or_add(batch, file, (size_t)offset_bytes, (size_t)length_bytes, request_bytes);
    }
}

// Whether a list of texts that end with a NUL is whole.
static bool is_whole(const struct text *list) { return !list->at || list->end[-1] == 0; }

int main(int argc, char **argv) {
    struct text ranges, names, parts;
    if (argc != 7 || !map_whole(argv[3], &ranges) || !map_whole(argv[4], &names) || !map_whole(argv[5], &parts)) return 2;
    if (!is_whole(&names) || !is_whole(&parts)) return 2;
    // With the NUL at its end, where the number has to end, too.
    struct text kib = {argv[6], argv[6] + length_of(argv[6]) + 1};
    long request_bytes;
    if (!read_number(&kib, &request_bytes) || *kib.at || request_bytes < 4 || request_bytes > 65536) return 2;
    request_bytes *= 1024;
    long device = system_call(SYS_openat, AT_FDCWD, (long)argv[1], O_RDONLY | O_CLOEXEC, 0, 0, 0);
    long root = system_call(SYS_openat, AT_FDCWD, (long)argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    if (device < 0 || root < 0) return 2;
    ask_for_ranges(device, ranges, request_bytes);
    // The ranges came first: they have what init reads next, and the directories and inodes that lead to the files.
    const bool for_files = system_call(SYS_fork, 0, 0, 0, 0, 0, 0) == 0;
    if (!for_files && (!parts.at || system_call(SYS_fork, 0, 0, 0, 0, 0, 0) != 0)) return 0;
    // Without read-ahead (POSIX_FADV_RANDOM), a larger read would wait for one request after the other.
    const size_t read_bytes = for_files || request_bytes > READ_BYTES ? READ_BYTES : (size_t)request_bytes;
    struct batch reads, *batch = begin_batch(&reads, read_bytes) ? &reads : NULL;
    if (for_files) ask_for_files(batch, root, names, request_bytes);
    else ask_for_parts(batch, root, parts, request_bytes);
    if (batch) submit(batch);
    return 0;
}
