/* The processes of a control group and of the groups below it. */
#include "caretaker.h"
#include "starter.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_any_at(int proc, const char *place, bool (*is_wanted)(const char *pid, void *what), void *what) {
    char *procs = text("%s/cgroup.procs", place), *pids = read_whole(procs, NULL), *rest = pids;
    bool found = false;
    for (char *pid, task[TASK_NAME]; !found && rest && (pid = strsep(&rest, "\n")) && *pid;) {
        const char *process = live_task(proc, pid, task);
        found = process && is_wanted(process, what);
    }
    free(pids);
    free(procs);
    DIR *groups = found ? NULL : opendir(place);
    for (const struct dirent *entry; !found && groups && (entry = readdir(groups));) {
        if (entry->d_type != DT_DIR || strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *below = text("%s/%s", place, entry->d_name);
        found = is_any_at(proc, below, is_wanted, what);
        free(below);
    }
    if (groups) closedir(groups);
    return found;
}

bool is_any_member(const char *group, bool (*is_wanted)(const char *pid, void *what), void *what) {
    char *place = text("/sys/fs/cgroup/%s", group);
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool found = is_any_at(proc, place, is_wanted, what);
    if (proc >= 0) close(proc);
    free(place);
    return found;
}
