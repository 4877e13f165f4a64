/* The unit's cgroup: how to make it, enter it, list its processes and kill them. */
#include "starter.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KILL_MS = 2000, POLL_US = 5000 };

static char *group_file(const char *name) { return text("/sys/fs/cgroup/%s/%s", fact("group", NULL), name); }

void make_group(void) {
    char *path = text("/sys/fs/cgroup/%s", fact("group", NULL));
    make_directories(path, 0755);
    limit_group();
    restrict_devices(path);
    free(path);
}

void enter_group(void) { write_whole(group_file("cgroup.procs"), "0"); }

static bool is_populated(void) {
    char *events = read_whole(group_file("cgroup.events"), NULL);
    return events && strstr(events, "populated 1");
}

/* Kills all processes of the unit, also those that are forked meanwhile. Returns when they have ended, or after KILL_MS. */
void kill_group(void) {
    if (!next_record(NULL, "group")) return;
    char *whole = group_file("cgroup.kill");
    bool has_kill = access(whole, W_OK) == 0; /* Linux 5.14 */
    for (int64_t until = now_ms() + KILL_MS; is_populated() && now_ms() < until; usleep(POLL_US)) {
        if (has_kill) {
            write_whole(whole, "1");
            continue;
        }
        char *pids = read_whole(group_file("cgroup.procs"), NULL);
        for (char *pid; pids && (pid = strsep(&pids, "\n")) && *pid;) kill((pid_t)number(pid), SIGKILL);
    }
}

bool in_group(pid_t pid) {
    char *path = text("/proc/%d/cgroup", (int)pid), *wanted = text("0::/%s", fact("group", NULL));
    char *lines = read_whole(path, NULL);
    for (char *line; lines && (line = strsep(&lines, "\n"));)
        if (strcmp(line, wanted) == 0) return true;
    return false;
}

/* The parent's PID; 0 for a process that has ended. */
static pid_t parent_of(pid_t pid) {
    char state;
    int parent;
    char *stat = read_whole(text("/proc/%d/stat", (int)pid), NULL), *name_end = stat ? strrchr(stat, ')') : NULL;
    if (!name_end || sscanf(name_end + 1, " %c %d", &state, &parent) != 2 || state == 'Z' || state == 'X') return 0;
    return parent;
}

/* The number of processes of the unit whose parent is PID 1. `one` is the last of them. */
int orphans_in_group(pid_t *one) {
    int count = 0;
    char *pids = read_whole(group_file("cgroup.procs"), NULL);
    for (char *pid; pids && (pid = strsep(&pids, "\n")) && *pid;)
        if (parent_of((pid_t)number(pid)) == 1) {
            *one = (pid_t)number(pid);
            count++;
        }
    return count;
}
