/* Unmounts /fast in every mount namespace that has it. New processes then load from the volume; running ones keep what they have mapped. */
#include "caretaker.h"
#include "protocol.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* A namespace that is made meanwhile may be a copy of one that still has /fast. The next pass finds it. */
enum { PASSES_MAX = 8, LAYERS_MAX = 64 };

struct space {
    dev_t device;
    ino_t inode;
};

static struct space *seen;
static size_t seen_count;

/* Whether the namespace is new. From now on it counts as seen. */
static bool is_new(dev_t device, ino_t inode) {
    for (size_t i = 0; i < seen_count; i++)
        if (seen[i].device == device && seen[i].inode == inode) return false;
    struct space *longer = realloc(seen, (seen_count + 1) * sizeof *seen);
    if (!longer) return complain("no memory for", "the list of namespaces");
    seen = longer;
    seen[seen_count++] = (struct space){device, inode};
    return true;
}

static bool is_memory(const char *type) { return strcmp(type, "rootfs") == 0 || strcmp(type, "tmpfs") == 0 || strcmp(type, "ramfs") == 0; }

/* Whether the last mount at /fast is ours: the directory /fast of the initramfs, or an image that contains the directory
   /fast/quickstart of the initramfs (proc(5), mountinfo). No other /fast looks like this. */
static bool shows_fast(int proc) {
    int descriptor = openat(proc, "self/mountinfo", O_RDONLY | O_CLOEXEC);
    FILE *lines = descriptor < 0 ? NULL : fdopen(descriptor, "r");
    char *line = NULL, root[32], point[32], type[32];
    bool directory = false, image = false, ours_inside = false;
    size_t room = 0;
    if (!lines) return complain("cannot read", "mountinfo");
    while (getline(&line, &room, lines) > 0) {
        const char *behind = strstr(line, " - ");
        if (!behind || sscanf(line, "%*s %*s %*s %31s %31s", root, point) != 2 || sscanf(behind, " - %31s", type) != 1) continue;
        if (strcmp(point, FAST) == 0) {
            directory = strcmp(root, FAST) == 0 && is_memory(type);
            image = strcmp(root, "/") == 0 && strcmp(type, "squashfs") == 0;
            ours_inside = false;
        } else if (strcmp(point, FAST_OURS) == 0) {
            ours_inside = strcmp(root, FAST_OURS) == 0 && is_memory(type);
        }
    }
    free(line);
    fclose(lines);
    return directory || (image && ours_inside);
}

/* Unmounts /fast in the present namespace; returns whether there was something to unmount. */
static bool take_away_here(int proc) {
    int taken = 0;
    while (taken < LAYERS_MAX && shows_fast(proc)) {
        if (umount2(FAST, MNT_DETACH | UMOUNT_NOFOLLOW) < 0) return complain("cannot unmount", FAST);
        taken++;
    }
    return taken > 0;
}

/* Goes through all mount namespaces of processes that our own user namespace owns; returns whether there was something to unmount. */
static bool pass(int proc) {
    int again = openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *processes = again < 0 ? NULL : fdopendir(again);
    bool taken = false;
    if (!processes) return complain("cannot read", "/proc");
    seen_count = 0;
    for (struct dirent *entry; (entry = readdir(processes));) {
        dev_t device;
        ino_t inode;
        int space = isdigit((unsigned char)*entry->d_name) ? open_namespace(proc, entry->d_name, &device, &inode) : -1;
        if (space < 0) continue;
        /* setns(2) puts us at the root of the namespace, and /fast is looked up from there. */
        if (is_new(device, inode) && setns(space, CLONE_NEWNS) == 0) taken |= take_away_here(proc);
        close(space);
    }
    closedir(processes);
    return taken;
}

bool take_fast_away(void) {
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0) return complain("cannot open", "/proc");
    for (int passes = 0; passes < PASSES_MAX; passes++)
        if (!pass(proc)) return true;
    errno = EAGAIN;
    return complain("namespaces are made faster than seen to:", FAST);
}
