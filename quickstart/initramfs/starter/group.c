/* The unit's cgroup: how to make it, enter it, list its processes and kill them. */
#include "starter.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { KILL_MS = 2000, POLL_US = 5000 };

static char *group_file(const char *name) { return text("/sys/fs/cgroup/%s/%s", fact("group", NULL), name); }

/* Delegate=: the unit manages the groups below its own, with the controllers that the record names. systemd marks such a group for who looks
   at it (cgroup_xattr_apply), where the kernel lets it. */
static void delegate_group(const char *group) {
    if (!next_record(NULL, "delegate")) return;
    delegate_controllers(group);
    setxattr(group, "trusted.delegate", "1", 1, 0);
    setxattr(group, "user.delegate", "1", 1, 0);
}

void make_group(void) {
    char *path = text("/sys/fs/cgroup/%s", fact("group", NULL));
    make_directories(path, 0755);
    limit_group();
    delegate_group(path);
    restrict_devices(path);
    free(path);
}

void enter_group(void) { write_whole(group_file("cgroup.procs"), "0"); }

static bool is_populated(void) {
    char *events = read_whole(group_file("cgroup.events"), NULL);
    return events && strstr(events, "populated 1");
}

/* Kills the processes of the group and of those below it by their numbers. */
static void kill_in(const char *group) {
    char *procs = text("%s/cgroup.procs", group), *pids = read_whole(procs, NULL), *rest = pids;
    for (char *pid; rest && (pid = strsep(&rest, "\n")) && *pid;) {
        pid_t process = (pid_t)number(pid);
        /* The kernel writes 0 for a process that has just ended, and that would be our own group. */
        if (process > 1) kill(process, SIGKILL);
    }
    free(pids);
    free(procs);
    DIR *groups = opendir(group);
    for (const struct dirent *entry; groups && (entry = readdir(groups));) {
        if (entry->d_type != DT_DIR || strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *below = text("%s/%s", group, entry->d_name);
        kill_in(below);
        free(below);
    }
    if (groups) closedir(groups);
}

/* Kills all processes of the unit, also those that are forked meanwhile. Returns when they have ended, or after KILL_MS. */
void kill_group(void) {
    if (!next_record(NULL, "group")) return;
    char *whole = group_file("cgroup.kill");
    bool has_kill = access(whole, W_OK) == 0; /* Linux 5.14 */
    for (int64_t until = now_ms() + KILL_MS; is_populated() && now_ms() < until; usleep(POLL_US)) {
        if (has_kill) write_whole(whole, "1");
        /* The kernel passes by a process whose first thread has ended (kill_group in init/lib). */
        kill_in(text("/sys/fs/cgroup/%s", fact("group", NULL)));
    }
}

/* Whether the process is in the unit's group or in one below it, as systemd counts the unit's processes (manager_get_unit_by_pid). */
bool in_group(pid_t pid) {
    char *path = text("/proc/%d/cgroup", (int)pid), *wanted = text("0::/%s", fact("group", NULL));
    char *lines = read_whole(path, NULL);
    size_t length = strlen(wanted);
    for (char *line; lines && (line = strsep(&lines, "\n"));)
        if (strncmp(line, wanted, length) == 0 && (line[length] == '\0' || line[length] == '/')) return true;
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

/* The number of processes of the unit whose parent is PID 1. `one` is the last of them. Like systemd (unit_search_main_pid), we do not look into
   groups below the unit's. */
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
