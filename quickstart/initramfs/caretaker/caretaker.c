/*
 * The caretaker is the starter's file under another name. So the two programs share the code of the C library.
 *
 * caretaker take-away     unmounts the start set from every mount namespace of the machine
 * caretaker bind PID      binds the lines of stdin in the mount namespace of that process: ro|rw, required|optional, source, target, with tabs
 * caretaker confine PID DESCRIPTION  applies the unit's description to all that is in the namespace of that process, what came later too
 * caretaker remove        removes the files and trees that stdin names, each with a NUL after it
 * caretaker ask ADDRESS PORT STATUS PATH  asks the application by HTTP; its status is 3 for an answer with another status than STATUS
 * caretaker listen unit|all DESCRIPTION PROGRAM...  binds the unit's sockets, or journald's as well, and executes the program, which keeps them
 * caretaker leave-unit PROGRAM...  executes the program as PID 1 would, with nothing of the unit whose command it is
 * caretaker watch-bus SOCKET FILE  watches the message bus in the background until systemd is on it, and prints the process that does so
 * caretaker find-ipc USER    whether the user with that number has something in the System V or POSIX IPC; its status is 1 if not
 * caretaker remove-ipc USER|all  removes it, or that of all users; its status is 1 if there is nothing
 * caretaker find-unconfined FILE GROUP...  prints a program in these control groups that AppArmor confines in a stock boot, by the patterns in FILE
 *
 * Its status is 0, 1 when something could not be done, and 2 for a wrong call.
 */
#include "caretaker.h"
#include "starter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

bool complain(const char *what, const char *which) {
    fprintf(stderr, "caretaker: %s %s: %s\n", what, which, walk_fault());
    return false;
}

/* Whether it is our own user namespace. */
static bool is_our_user_namespace(int proc, int descriptor) {
    struct stat own, found;
    return fstatat(proc, "self/ns/user", &own, 0) == 0 && fstat(descriptor, &found) == 0 && own.st_dev == found.st_dev && own.st_ino == found.st_ino;
}

static bool is_live(int proc, const char *task) {
    char link[TASK_NAME + 8], target[64];
    return snprintf(link, sizeof link, "%s/ns/mnt", task) < (int)sizeof link && readlinkat(proc, link, target, sizeof target) >= 0;
}

const char *live_task(int proc, const char *pid, char name[TASK_NAME]) {
    char place[TASK_NAME];
    if (is_live(proc, pid)) return pid;
    if (snprintf(place, sizeof place, "%s/task", pid) >= (int)sizeof place) return NULL;
    int threads = openat(proc, place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = threads < 0 ? NULL : fdopendir(threads);
    bool found = false;
    for (const struct dirent *entry; entries && !found && (entry = readdir(entries));)
        found = *entry->d_name != '.' && snprintf(name, TASK_NAME, "%s/%s", place, entry->d_name) < TASK_NAME && is_live(proc, name);
    if (entries) closedir(entries);
    return found ? name : NULL;
}

int open_namespace(int proc, const char *pid, dev_t *device, ino_t *inode) {
    char task[TASK_NAME], name[TASK_NAME + 8];
    struct stat found;
    const char *process = live_task(proc, pid, task);
    if (!process || snprintf(name, sizeof name, "%s/ns/mnt", process) >= (int)sizeof name) {
        errno = ESRCH;
        return -1;
    }
    int space = openat(proc, name, O_RDONLY | O_CLOEXEC);
    /* The kernel does not even name the owner of a namespace that is not below our own (ioctl_ns(2), EPERM). */
    int owner = space < 0 ? -1 : ioctl(space, NS_GET_USERNS);
    bool ours = owner >= 0 && is_our_user_namespace(proc, owner) && fstat(space, &found) == 0;
    if (owner >= 0) close(owner);
    if (ours) {
        *device = found.st_dev;
        *inode = found.st_ino;
        return space;
    }
    if (space >= 0) close(space);
    errno = EPERM;
    return -1;
}

static bool is_port(const char *word) {
    char *end;
    long port = strtol(word, &end, 10);
    return *end == '\0' && port >= 1 && port <= 65535;
}

static int take_care(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "take-away") == 0) return take_fast_away() ? 0 : 1;
    if (argc == 3 && strcmp(argv[1], "bind") == 0) return bind_into(argv[2], stdin) ? 0 : 1;
    if (argc == 4 && strcmp(argv[1], "confine") == 0) return confine(argv[2], argv[3]) ? 0 : 1;
    if (argc == 2 && strcmp(argv[1], "remove") == 0) return remove_all(stdin) ? 0 : 1;
    if (argc == 2 && strcmp(argv[1], "set-aside") == 0) return set_aside() ? 0 : 1;
    if (argc == 2 && strcmp(argv[1], "look-at-tmp") == 0) return (int)look_at_tmp();
    if (argc == 6 && strcmp(argv[1], "ask") == 0 && is_port(argv[3]) && strlen(argv[4]) == 3)
        return (int)ask(argv[2], (uint16_t)atoi(argv[3]), argv[4], argv[5]);
    if (argc >= 5 && strcmp(argv[1], "listen") == 0 && (strcmp(argv[2], "unit") == 0 || strcmp(argv[2], "all") == 0))
        return listen_for(argv[3], strcmp(argv[2], "all") == 0, argv + 4) ? 0 : 1;
    if (argc >= 3 && strcmp(argv[1], "leave-unit") == 0) return leave_unit(argv + 2) ? 0 : 1;
    if (argc == 4 && strcmp(argv[1], "watch-bus") == 0) return watch_bus(argv[2], argv[3]) ? 0 : 1;
    if (argc == 3 && strcmp(argv[1], "find-ipc") == 0 && atoi(argv[2]) > 0) return count_ipc((unsigned)atoi(argv[2]), false) ? 0 : 1;
    if (argc == 3 && strcmp(argv[1], "remove-ipc") == 0 && strcmp(argv[2], "all") == 0) return count_ipc(EVERYBODY, true) ? 0 : 1;
    if (argc == 3 && strcmp(argv[1], "remove-ipc") == 0 && atoi(argv[2]) > 0) return count_ipc((unsigned)atoi(argv[2]), true) ? 0 : 1;
    if (argc >= 4 && strcmp(argv[1], "find-unconfined") == 0) return find_unconfined(argv[2], argv + 3) ? 0 : 1;
    fprintf(stderr, "usage: caretaker take-away | bind PID | confine PID DESCRIPTION | remove | set-aside | look-at-tmp |\n"
                    "       ask ADDRESS PORT STATUS PATH |\n"
                    "       listen unit|all DESCRIPTION PROGRAM... | watch-bus SOCKET FILE | find-ipc USER | remove-ipc USER|all |\n"
                    "       find-unconfined FILE GROUP... | leave-unit PROGRAM...\n");
    return 2;
}

static bool is_called(const char *path, const char *name) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return path && strcmp(slash ? slash + 1 : path, name) == 0;
}

/* It is here because the caretaker uses parts of the starter, but the starter uses none of the caretaker. */
int main(int argc, char **argv) { return is_called(argv[0], "caretaker") ? take_care(argc, argv) : start_unit(argc, argv); }
