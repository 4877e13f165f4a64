/* Strings, whole files, numbers. */
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* systemd reads at most as much of a file. A device has no end. */
enum { CHUNK = 4096, WHOLE_MAX = 4 << 20 };

void *must(void *allocated) {
    if (!allocated) fail("no memory");
    return allocated;
}

char *text(const char *format, ...) {
    char *made;
    va_list values;
    va_start(values, format);
    if (vasprintf(&made, format, values) < 0) fail("no memory");
    va_end(values);
    return made;
}

void append(struct list *list, char *item) {
    list->items = must(realloc(list->items, (list->count + 2) * sizeof *list->items));
    list->items[list->count++] = item;
    list->items[list->count] = NULL;
}

/* The file's content with a NUL added, or NULL with errno. Files of /proc have no size, so it reads to the end. */
char *read_whole(const char *path, size_t *length) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    char *content = must(malloc(CHUNK + 1));
    size_t have = 0, room = CHUNK;
    ssize_t got;
    while ((got = read(fd, content + have, room - have)) > 0)
        if ((have += (size_t)got) == room) {
            if (room >= WHOLE_MAX) break;
            content = must(realloc(content, (room *= 2) + 1));
        }
    int error = got > 0 ? EFBIG : errno;
    close(fd);
    errno = error;
    if (got != 0) {
        free(content);
        return NULL;
    }
    content[have] = '\0';
    if (length) *length = have;
    return content;
}

/* Reads a short file that a service writes (its PID file), at most `room` - 1 bytes, and adds a NUL. Anything else in its place, such as
   a FIFO or a link, counts as a missing file. */
bool read_small(const char *path, char *content, size_t room) {
    struct stat found;
    int fd = walk_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, ROOTS_LINKS);
    ssize_t got = fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) ? read(fd, content, room - 1) : -1;
    if (fd >= 0) close(fd);
    content[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* Write to an existing file (of /proc, of a cgroup). */
void write_whole(const char *path, const char *content) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, content, strlen(content)) < 0) fail("%s cannot be written: %m", path);
    close(fd);
}

long long number(const char *word) {
    char *end;
    errno = 0;
    long long value = word ? strtoll(word, &end, 0) : 0;
    if (!word || errno || end == word || *end) fail("`%s` in the description is no number", word ? word : "");
    return value;
}

uint64_t hex(const char *word) {
    char *end;
    errno = 0;
    unsigned long long value = word ? strtoull(word, &end, 16) : 0;
    if (!word || errno || end == word || *end) fail("`%s` in the description is no hexadecimal number", word ? word : "");
    return value;
}

/* Make the directory and those above it. Existing ones stay as they are. */
void make_directories(const char *path, mode_t mode) {
    int fd = walk_directory(path, mode);
    if (fd < 0) fail("%s cannot be made: %s", path, walk_fault());
    close(fd);
}

int64_t now_ms(void) {
    struct timespec t = {0};
    clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail: the clock is in every Linux */
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
