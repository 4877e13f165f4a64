/*
 * A user namespace in which every ID stays the same.
 *
 * Root of an image may become any user. Without the namespace, it would be that user of the host, and the host's user could open
 * /proc/PID/root of a process with his own ID. There he would reach the image's sockets, and could send root of the image a descriptor of
 * the host's root directory (SCM_RIGHTS). Processes of another user namespace can be opened only by processes with a capability there
 * (ptrace(2), access mode checking).
 */
#define _GNU_SOURCE
#include "confiner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* From linux/mount.h. musl's sys/mount.h does not have it. */
#define FSOPEN_CLOEXEC 1
#define FSMOUNT_CLOEXEC 1
#define FSCONFIG_CMD_CREATE 6

/* user_namespaces(7): a map is written with a single write of less than a page. */
struct map {
    char rows[4096];
    size_t length;
};

/* Our own map `name` (uid_map, gid_map), in the form that gives a child namespace the same IDs. `self` is our directory in /proc. */
static void read_map(struct map *map, int self, const char *name) {
    unsigned first, outside, count;
    FILE *file = fdopen(must(openat(self, name, O_RDONLY | O_CLOEXEC), name), "r");
    if (!file) fail(name);
    map->length = 0;
    while (fscanf(file, "%u %u %u", &first, &outside, &count) == 3) {
        size_t left = sizeof map->rows - map->length;
        map->length += (size_t)snprintf(map->rows + map->length, left, "%u %u %u\n", first, first, count);
        if (map->length >= sizeof map->rows) {
            errno = E2BIG;
            fail(name);
        }
    }
    fclose(file);
}

static void write_map(const struct map *map, int self, const char *name) {
    int fd = must(openat(self, name, O_WRONLY | O_CLOEXEC), name);
    must((int)write(fd, map->rows, map->length), name);
    close(fd);
}

void take_users(int self) {
    struct map users, groups;
    int begun[2], status;
    char byte;
    read_map(&users, self, "uid_map");
    read_map(&groups, self, "gid_map");
    must(pipe(begun), "a pipe");
    /* Only a process that stayed outside may map more than one ID. */
    pid_t helper = must(fork(), "fork");
    if (helper == 0) {
        close(begun[1]);
        if (read(begun[0], &byte, 1) != 1) _exit(NOT_CONFINED);
        write_map(&users, self, "uid_map");
        write_map(&groups, self, "gid_map");
        _exit(0);
    }
    close(begun[0]);
    if (unshare(CLONE_NEWUSER) < 0) {
        /* unshare(2) fails with ENOSPC here, which would be reported as a full disk. */
        if (errno == ENOSPC) errno = EUSERS;
        fail("a user namespace of its own (sysctl user.max_user_namespaces)");
    }
    must((int)write(begun[1], "", 1), "the user namespace");
    close(begun[1]);
    must(waitpid(helper, &status, 0), "waitpid");
    if (status != 0) _exit(NOT_CONFINED);
}

int list_interpreters(void) {
    int fs = (int)syscall(SYS_fsopen, "binfmt_misc", FSOPEN_CLOEXEC);
    if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        /* The kernel has no interpreters, or only the host's root may list them. We are then not that root, and cannot change its files. */
        return -1;
    int tree = must((int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0), "binfmt_misc");
    close(fs);
    return must(openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "binfmt_misc");
}

/* Whether the entry `name` of binfmt_misc has flag F and is in use (Documentation/admin-guide/binfmt-misc.rst). */
static bool is_kept_open(int list, const char *name) {
    char line[512];
    bool enabled = false, open_flag = false;
    int fd = openat(list, name, O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file) return false;
    while (fgets(line, sizeof line, file)) {
        enabled |= strcmp(line, "enabled\n") == 0;
        open_flag |= strncmp(line, "flags: ", 7) == 0 && strchr(line + 7, 'F') != NULL;
    }
    fclose(file);
    return enabled && open_flag;
}

static void demand_none_kept_open(int list) {
    DIR *directory = fdopendir(list);
    if (!directory) fail("binfmt_misc");
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!is_kept_open(list, entry->d_name)) continue;
        fprintf(stderr,
                "confiner: root of the image could change the host's interpreter %s (binfmt_misc, flag F). "
                "Build as an ordinary user, or switch it off meanwhile: echo 0 > /proc/sys/fs/binfmt_misc/%s\n",
                entry->d_name, entry->d_name);
        _exit(NOT_CONFINED);
    }
    closedir(directory);
}

void forget_interpreters(int list) {
    int status;
    /* The helper mounts in a mount namespace of its own, which ends with it. Only one of this user namespace allows mounts. */
    pid_t helper = must(fork(), "fork");
    if (helper == 0) {
        int fs = -1;
        if (unshare(CLONE_NEWNS) == 0) fs = (int)syscall(SYS_fsopen, "binfmt_misc", 0);
        _exit(fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0);
    }
    must(waitpid(helper, &status, 0), "waitpid");
    if (status != 0 && list >= 0) demand_none_kept_open(list);
}
