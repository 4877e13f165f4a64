/*
 * Resolves a path name by name, by descriptors (path_resolution(7)). A link is followed only if it belongs to root and is in a directory that
 * only root can write to, because then only root can have made the link. The model is systemd's CHASE_SAFE, but this is stricter.
 */
#define _GNU_SOURCE
#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The same limit as the kernel's (path_resolution(7)). */
enum { LINKS_MAX = 40 };

static bool is_roots(int directory, const struct stat *link) {
    struct stat holder;
    if (link->st_uid != 0 || fstat(directory, &holder) < 0) return false;
    return holder.st_uid == 0 && !(holder.st_mode & (S_IWGRP | S_IWOTH));
}

static int without(int descriptor, int error) {
    if (descriptor >= 0) close(descriptor);
    errno = error;
    return -1;
}

/* Replaces `pending` by `target` and the rest of the path after the link; false when that is too long. */
static bool put_before(char *target, const char *rest, char *pending) {
    if (strlen(target) + strlen(rest) + 2 > PATH_MAX) return false;
    strcat(target, "/");
    strcat(target, rest);
    strcpy(pending, target);
    return true;
}

/* The directory that holds the last name of `path`; the name goes to `last`, which has NAME_MAX + 1 bytes. With `make`, missing
   directories of the path are made, with mode 0755. */
int walk(const char *path, bool make, enum links links, char *last) {
    char pending[PATH_MAX], target[PATH_MAX];
    struct stat found;
    if (*path != '/') return without(-1, EINVAL);
    if (strlen(path) >= sizeof pending) return without(-1, ENAMETOOLONG);
    strcpy(pending, path);
    int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), followed = 0;
    while (at >= 0) {
        const char *name = pending + strspn(pending, "/");
        size_t length = strcspn(name, "/");
        const char *rest = name + length + strspn(name + length, "/");
        if (length > NAME_MAX) return without(at, ENAMETOOLONG);
        memcpy(last, length ? name : ".", length ? length : 1);
        last[length ? length : 1] = '\0';
        int missing = fstatat(at, last, &found, AT_SYMLINK_NOFOLLOW);
        if (missing && errno != ENOENT) return without(at, errno);
        if (!missing && S_ISLNK(found.st_mode) && (*rest || links == ROOTS_LINKS)) {
            if (++followed > LINKS_MAX || !is_roots(at, &found)) return without(at, ELOOP);
            ssize_t bytes = readlinkat(at, last, target, sizeof target - 1);
            if (bytes < 0) return without(at, errno);
            target[bytes] = '\0';
            if (!put_before(target, rest, pending)) return without(at, ENAMETOOLONG);
            if (*target != '/') continue;
            close(at);
            at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
            continue;
        }
        if (!*rest) return at;
        if (missing && make && mkdirat(at, last, 0755) < 0 && errno != EEXIST) return without(at, errno);
        int next = openat(at, last, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0) return without(at, errno);
        close(at);
        at = next;
        memmove(pending, rest, strlen(rest) + 1);
    }
    return -1;
}

int walk_open(const char *path, int flags, mode_t mode, enum links links) {
    char last[NAME_MAX + 1];
    int holder = walk(path, false, links, last);
    if (holder < 0) return -1;
    int found = openat(holder, last, flags | O_NOFOLLOW | O_CLOEXEC, mode), error = errno;
    close(holder);
    errno = error;
    return found;
}

/* The directory, made with that mode when it is missing; directories above it get 0755. Existing ones stay as they are. */
int walk_directory(const char *path, mode_t mode) {
    char last[NAME_MAX + 1];
    int holder = walk(path, true, ROOTS_LINKS, last);
    if (holder < 0) return -1;
    if (mkdirat(holder, last, mode) < 0 && errno != EEXIST) return without(holder, errno);
    int found = openat(holder, last, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = errno;
    close(holder);
    errno = error;
    return found;
}

const char *walk_fault(void) { return errno == ELOOP ? "there is a link on the way that is not followed" : strerror(errno); }
