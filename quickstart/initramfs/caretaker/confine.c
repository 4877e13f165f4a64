/* Confines the mounts and files that arrived in the application's namespaces after its start. When systemd starts a unit, it applies the unit's
   directives to all that exists then (systemd.exec(5), ProtectSystem=, ReadOnlyPaths=, InaccessiblePaths=, NoExecPaths= ...). */
#include "caretaker.h"
#include "starter.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct space {
    dev_t device;
    ino_t inode;
};

/* The namespaces that need nothing more. */
struct spaces {
    int proc;
    struct space *done;
    size_t count;
};

static bool is_done(const struct spaces *spaces, const struct space *space) {
    for (size_t i = 0; i < spaces->count; i++)
        if (spaces->done[i].device == space->device && spaces->done[i].inode == space->inode) return true;
    return false;
}

static void remember(struct spaces *spaces, struct space space) {
    spaces->done = must(realloc(spaces->done, (spaces->count + 1) * sizeof *spaces->done));
    spaces->done[spaces->count++] = space;
}

/* In a child, which ends in that namespace, and executes nothing before its end. */
static bool confine_in(int there, const char *pid) {
    pid_t child = fork();
    if (child == 0) {
        if (setns(there, CLONE_NEWNS) < 0) _exit(complain("cannot enter the namespace of process", pid) ? 0 : 1);
        confine_later();
        _exit(0);
    }
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool confine_namespace_of(const char *pid, int there, struct space space, struct spaces *spaces) {
    bool done = is_done(spaces, &space) || confine_in(there, pid);
    close(there);
    remember(spaces, space);
    return done;
}

/* What ExecStartPost= has left running has another namespace than the main process. That of a user, and of a process that has ended, is nobody's
   to confine. */
static bool escapes(const char *pid, void *known) {
    struct spaces *spaces = known;
    struct space space;
    int there = open_namespace(spaces->proc, pid, &space.device, &space.inode);
    return there >= 0 && !confine_namespace_of(pid, there, space, spaces);
}

bool confine(const char *pid, const char *description) {
    struct spaces spaces = {.proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    struct space space;
    struct stat own;
    read_description(description);
    if (!next_record(NULL, "namespace")) return true;
    /* ExecStart=+ runs with the machine's own mounts, to which no unit's rules apply. */
    if (spaces.proc < 0 || fstatat(spaces.proc, "self/ns/mnt", &own, 0) < 0) return complain("cannot look at", "our own namespace");
    remember(&spaces, (struct space){own.st_dev, own.st_ino});
    int there = open_namespace(spaces.proc, pid, &space.device, &space.inode);
    if (there < 0) return complain("not a mount namespace of this machine's own: that of process", pid);
    return confine_namespace_of(pid, there, space, &spaces) && (!next_record(NULL, "group") || !is_any_member(fact("group", NULL), escapes, &spaces));
}
