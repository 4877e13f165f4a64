/* Unmounts /fast, and its files that are bound over the volume's, in every mount namespace that has them. New processes then load from the volume; running ones keep what they have mapped. */
#include "caretaker.h"
#include "protocol.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

/* A line of mountinfo (proc(5)), in which the kernel writes blanks and backslashes as octal numbers. */
struct mounted {
    char device[16];
    char root[PATH_MAX], point[PATH_MAX], type[32];
};

static bool parse(const char *line, struct mounted *found) {
    const char *behind = strstr(line, " - ");
    return behind && sscanf(line, "%*s %*s %15s %4095s %4095s", found->device, found->root, found->point) == 3 &&
           sscanf(behind, " - %31s", found->type) == 1;
}

static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++)
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    *to = 0;
}

static bool is_memory(const char *type) { return strcmp(type, "rootfs") == 0 || strcmp(type, "tmpfs") == 0 || strcmp(type, "ramfs") == 0; }

static FILE *mountinfo(int proc) {
    int descriptor = openat(proc, "self/mountinfo", O_RDONLY | O_CLOEXEC);
    return descriptor < 0 ? NULL : fdopen(descriptor, "r");
}

/* Whether the last mount at /fast is ours: the directory /fast of the initramfs, or an image that contains the directory
   /fast/quickstart of the initramfs. No other /fast looks like this. `shown` is that mount. */
static bool shows_fast(int proc, struct mounted *shown) {
    FILE *lines = mountinfo(proc);
    struct mounted mount;
    char *line = NULL;
    bool directory = false, image = false, ours_inside = false;
    size_t room = 0;
    if (!lines) return complain("cannot read", "mountinfo");
    while (getline(&line, &room, lines) > 0) {
        if (!parse(line, &mount)) continue;
        if (strcmp(mount.point, FAST) == 0) {
            directory = strcmp(mount.root, FAST) == 0 && is_memory(mount.type);
            image = strcmp(mount.root, "/") == 0 && strcmp(mount.type, "squashfs") == 0;
            ours_inside = false;
            *shown = mount;
        } else if (strcmp(mount.point, FAST_OURS) == 0) {
            ours_inside = strcmp(mount.root, FAST_OURS) == 0 && is_memory(mount.type);
        }
    }
    free(line);
    fclose(lines);
    return directory || (image && ours_inside);
}

/* Whether the mount shows a file of /fast in another place, as the binds of an early start do. */
static bool shows_file_of(const struct mounted *fast, const struct mounted *mount) {
    size_t length = strlen(FAST);
    if (strcmp(mount->device, fast->device) != 0 || strncmp(mount->point, FAST "/", length + 1) == 0) return false;
    return strcmp(fast->root, "/") == 0 ? strcmp(mount->root, "/") != 0 : strncmp(mount->root, FAST "/", length + 1) == 0;
}

/* Unmounts the files of /fast that lie over the volume's in the present namespace: the last mount first, in a few passes. */
static void take_binds_away(int proc, const struct mounted *fast) {
    for (int layer = 0; layer < LAYERS_MAX; layer++) {
        FILE *lines = mountinfo(proc);
        struct mounted mount;
        char *line = NULL;
        size_t room = 0, taken = 0;
        if (!lines) return;
        while (getline(&line, &room, lines) > 0) {
            if (!parse(line, &mount) || !shows_file_of(fast, &mount)) continue;
            unescape(mount.point);
            if (umount2(mount.point, MNT_DETACH | UMOUNT_NOFOLLOW) == 0) taken++;
        }
        free(line);
        fclose(lines);
        if (taken == 0) return;
    }
}

/* Unmounts /fast and what is bound from it in the present namespace; returns whether there was something to unmount. */
static bool take_away_here(int proc) {
    struct mounted fast;
    int taken = 0;
    while (taken < LAYERS_MAX && shows_fast(proc, &fast)) {
        take_binds_away(proc, &fast);
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
    struct mounted fast;
    if (proc < 0) return complain("cannot open", "/proc");
    if (shows_fast(proc, &fast)) keep_programs_names(FAST);
    for (int passes = 0; passes < PASSES_MAX; passes++)
        if (!pass(proc)) return true;
    errno = EAGAIN;
    return complain("namespaces are made faster than seen to:", FAST);
}
