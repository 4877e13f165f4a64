/* Removes trees while others may change them: each name is removed in the directory that was opened, and no link is followed. */
#include "caretaker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* DEPTH_MAX limits the open descriptors; what is deeper is moved up to the top and removed there. PASSES_MAX limits how often a directory
   is read, so that a process that adds files faster than we remove them does not hold up the boot. */
enum { DEPTH_MAX = 200, PASSES_MAX = 1000, MOVES_MAX = 1 << 20 };
/* RENAME_NOREPLACE of renameat2(2), which musl does not declare. */
enum { RENAME_NO_REPLACE = 1 };

struct top {
    int directory;
    unsigned moved;
};

static bool empty(int directory, struct top *top, int depth);

/* Opens the directory itself, on the same mount. A bind mount in it belongs to somebody elsewhere. */
static int open_directory(int holder, const char *name) {
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, holder, name, &how, sizeof how);
}

/* Somebody may have taken a name: then the next one. */
static bool move_up(int directory, const char *name, struct top *top) {
    char made[32];
    while (top->moved < MOVES_MAX) {
        snprintf(made, sizeof made, ".quickstart-%u", top->moved++);
        if (syscall(SYS_renameat2, directory, name, top->directory, made, RENAME_NO_REPLACE) == 0) return true;
        if (errno != EEXIST) return false;
    }
    return false;
}

/* Removes `name` in `directory`. A mount stays, and so do the directories above it. */
static bool remove_entry(int directory, const char *name, struct top *top, int depth) {
    if (unlinkat(directory, name, 0) == 0 || errno == ENOENT) return true;
    if (errno != EISDIR && errno != EPERM) return complain("cannot remove", name);
    if (depth >= DEPTH_MAX) return move_up(directory, name, top) || complain("cannot remove", name);
    int below = open_directory(directory, name);
    if (below < 0) return complain("cannot remove", name);
    bool done = empty(below, top, depth + 1);
    close(below);
    return done && (unlinkat(directory, name, AT_REMOVEDIR) == 0 || errno == ENOENT || complain("cannot remove", name));
}

/* Repeats until nothing is left, or nothing more can be removed: somebody may add files meanwhile, and what was moved up arrives late. What
   cannot be removed does not keep the rest. */
static bool empty(int directory, struct top *top, int depth) {
    DIR *entries = fdopendir(dup(directory));
    bool done = false, progress = entries != NULL;
    for (int passes = 0; progress && !done; passes++) {
        progress = false;
        done = true;
        if (passes == PASSES_MAX) {
            errno = EBUSY;
            done = complain("somebody else works", "in a directory that is to go");
            break;
        }
        rewinddir(entries);
        for (struct dirent *entry; (entry = readdir(entries));) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            done = false;
            progress |= remove_entry(directory, entry->d_name, top, depth);
        }
    }
    if (entries) closedir(entries);
    return done;
}

/* Removes the tree or file at `path`. All directories above it belong to root. */
static bool remove_path(const char *path) {
    char last[NAME_MAX + 1];
    struct top top = {0};
    int holder = walk(path, false, NO_LINK_AT_THE_END, last);
    if (holder < 0) return errno == ENOENT || complain("cannot remove", path);
    bool done = unlinkat(holder, last, 0) == 0 || errno == ENOENT;
    if (!done && (errno == EISDIR || errno == EPERM)) {
        top.directory = open_directory(holder, last);
        done = top.directory >= 0 && empty(top.directory, &top, 0) && (unlinkat(holder, last, AT_REMOVEDIR) == 0 || errno == ENOENT);
        if (top.directory >= 0) close(top.directory);
    }
    close(holder);
    return done || complain("cannot remove", path);
}

bool remove_all(FILE *names) {
    char *name = NULL;
    size_t room = 0;
    bool done = true;
    while (getdelim(&name, &room, '\0', names) > 0) done &= remove_path(name);
    free(name);
    return done;
}
