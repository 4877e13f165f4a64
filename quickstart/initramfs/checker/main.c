// usage: checker ROOT LIST DAMAGE [pclmul|plain]
// The status is 0 when all files below ROOT agree with LIST. It is 1 when a file does not agree, and the file DAMAGE then names this file:
// "/NAME (what)". It is 2 for a wrong call, and for an implementation that the CPU does not support. One line goes to the kernel's log.

#include "checker.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define MAX_LINE_BYTES 600

struct line {
    char text[MAX_LINE_BYTES];
    size_t bytes;
};

static void add(struct line *line, const char *text) {
    while (*text && line->bytes < MAX_LINE_BYTES) line->text[line->bytes++] = *text++;
}

static void add_number(struct line *line, uint64_t number) {
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    do digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    add(line, digits + at);
}

// A console obeys bytes that are not printable ASCII.
static void add_name(struct line *line, const char *name) {
    const char hex[] = "0123456789abcdef";
    for (; *name && line->bytes < MAX_LINE_BYTES - 40; name++) {
        uint8_t byte = (uint8_t)*name;
        char escape[] = {'\\', 'x', hex[byte >> 4], hex[byte & 15], 0}, plain[] = {*name, 0};
        add(line, byte < 0x20 || byte > 0x7e ? escape : plain);
    }
}

static void write_line(const char *path, int flags, const struct line *line) {
    long file = system_call(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CLOEXEC | flags, 0644, 0, 0);
    if (file >= 0) system_call(SYS_write, file, (long)line->text, (long)line->bytes, 0, 0, 0);
}

static int damaged(const char *place, const char *name, const char *what) {
    struct line line = {.bytes = 0};
    add(&line, "/");
    add_name(&line, name);
    add(&line, " (");
    add(&line, what);
    add(&line, ")\n");
    write_line(place, O_CREAT | O_TRUNC, &line);
    return 1;
}

static void tell_kernel(const char *way, const struct list *list) {
    struct line line = {.bytes = 0};
    struct timespec spent = {0, 0};
    uint64_t bytes = 0;
    for (uint32_t number = 0; number < list->count; number++)
        if (list->entries[number].has_content) bytes += list->entries[number].size_bytes;
    system_call(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, (long)&spent, 0, 0, 0, 0);
    add(&line, "<7>quickstart: integrity ");
    add(&line, way);
    add(&line, " ");
    add_number(&line, bytes);
    add(&line, " bytes ");
    add_number(&line, (uint64_t)spent.tv_sec * 1000000 + (uint64_t)spent.tv_nsec / 1000);
    add(&line, " us\n");
    write_line("/dev/kmsg", 0, &line);
}

static bool is_word(const char *left, const char *right) { return length_of(left) == length_of(right) && same_bytes(left, right, length_of(left)); }

// The implementation that was asked for, or the first one that the CPU supports; NULL when there is none.
static crc_of *prepare(const char *asked, const char **way) {
    const struct {
        const char *name;
        bool there;
        void (*prepare)(void);
        crc_of *crc;
    } ways[] = {
        {"pclmul", has_pclmul(), prepare_pclmul, crc_pclmul},
        {"plain", true, prepare_plain, crc_plain},
    };
    for (size_t number = 0; number < sizeof ways / sizeof ways[0]; number++) {
        *way = ways[number].name;
        if (ways[number].there && (!asked || is_word(asked, *way))) {
            ways[number].prepare();
            return ways[number].crc;
        }
    }
    return NULL;
}

static int check(const char *root_name, const char *list_name, const char *place, crc_of *crc, const char *way) {
    struct stat found;
    struct list list;
    const uint8_t *data = NULL;
    if (system_call(SYS_newfstatat, AT_FDCWD, (long)list_name, (long)&found, 0, 0, 0) == 0 && found.st_size > 0)
        data = map_file(AT_FDCWD, list_name, (size_t)found.st_size);
    if (!data || !read_list(data, (size_t)found.st_size, &list)) return damaged(place, list_name + (list_name[0] == '/'), "no list of digests");
    long root = system_call(SYS_openat, AT_FDCWD, (long)root_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    if (root < 0) return damaged(place, root_name + (root_name[0] == '/'), "no directory");
    const struct entry *wrong = NULL;
    const char *what = find_difference((int)root, &list, crc, &wrong);
    if (what) return damaged(place, wrong->name, what);
    tell_kernel(way, &list);
    return 0;
}

int main(int argc, char **argv) {
    const int priority = 0;
    const char *way;
    if (argc < 4 || argc > 5) return 2;
    // All other processes go first: on a single CPU, the check should run while init waits.
    system_call(SYS_sched_setscheduler, 0, SCHED_IDLE, (long)&priority, 0, 0, 0);
    crc_of *crc = prepare(argc == 5 ? argv[4] : NULL, &way);
    return crc ? check(argv[1], argv[2], argv[3], crc, way) : 2;
}
