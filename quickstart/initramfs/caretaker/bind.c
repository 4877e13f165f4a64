/* Binds what did not exist when the application started into its namespace: each mount is made here and moved there (move_mount(2)). */
#include "caretaker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From linux/mount.h, which cannot be included together with sys/mount.h. */
enum { CLONE_TREE = 1, FROM_ITSELF = 4, TO_ITSELF = 0x40, READ_ONLY = 1, WHOLE_TREE = 0x8000, ITSELF = 0x1000 };
struct attributes {
    uint64_t set, clear, propagation, user_namespace;
};

struct row {
    char *how, *needed, *source, *target;
};

static bool is_required(const struct row *row) { return strcmp(row->needed, "optional") != 0; }

/* A detached mount of the source, with the options of the source; -1 when it cannot be made. */
static int detached(const struct row *row) {
    struct attributes wanted = {.set = READ_ONLY};
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, row->source, CLONE_TREE | WHOLE_TREE | O_CLOEXEC);
    if (tree >= 0 && strcmp(row->how, "ro") == 0 && syscall(SYS_mount_setattr, tree, "", ITSELF | WHOLE_TREE, &wanted, sizeof wanted) < 0) {
        close(tree);
        return -1;
    }
    return tree;
}

/* Make a mount point of the source's kind at the target. */
static bool make_place(int tree, const char *target) {
    struct stat source;
    char last[NAME_MAX + 1];
    if (fstat(tree, &source) < 0) return false;
    if (S_ISDIR(source.st_mode)) {
        int made = walk_directory(target, 0755);
        if (made >= 0) close(made);
        return made >= 0;
    }
    int holder = walk(target, true, ROOTS_LINKS, last);
    bool made = holder >= 0 && (mknodat(holder, last, S_IFREG | 0644, 0) == 0 || errno == EEXIST);
    if (holder >= 0) close(holder);
    return made;
}

static bool put(int tree, const char *target) {
    int place = walk_open(target, O_PATH, 0, ROOTS_LINKS);
    if (place < 0 && errno == ENOENT && make_place(tree, target)) place = walk_open(target, O_PATH, 0, ROOTS_LINKS);
    bool done = place >= 0 && syscall(SYS_move_mount, tree, "", place, "", FROM_ITSELF | TO_ITSELF) == 0;
    int error = errno;
    if (place >= 0) close(place);
    errno = error;
    return done;
}

/* Go from our own namespace to the other one and back. `here` and `there` are their descriptors. */
static bool bind_one(const struct row *row, int there, int here) {
    int tree = detached(row);
    if (tree < 0) return !is_required(row) || complain("cannot bind", row->source);
    /* The application may not be able to write there, so the mount point is made from here. */
    make_place(tree, row->target);
    bool done = setns(there, CLONE_NEWNS) == 0 && put(tree, row->target);
    int error = errno;
    close(tree);
    errno = error;
    if (!done && is_required(row)) complain("cannot bind to", row->target);
    return (setns(here, CLONE_NEWNS) == 0 || complain("cannot go back to", "our own namespace")) && (done || !is_required(row));
}

bool bind_into(const char *pid, FILE *rows) {
    dev_t device;
    ino_t inode;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool done = true;
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC), here = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int there = proc < 0 || here < 0 ? -1 : open_namespace(proc, pid, &device, &inode);
    if (there < 0) return complain("not a mount namespace of this machine's own: that of process", pid);
    while (done && (length = getline(&line, &room, rows)) > 0) {
        if (line[length - 1] == '\n') line[length - 1] = '\0';
        char *rest = line;
        struct row row = {.how = strsep(&rest, "\t")};
        row.needed = strsep(&rest, "\t");
        row.source = strsep(&rest, "\t");
        row.target = rest;
        errno = EINVAL;
        done = row.target ? bind_one(&row, there, here) : complain("cannot be understood:", line);
    }
    free(line);
    return done;
}
