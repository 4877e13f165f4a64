/* The processes of a control group and of the groups below it. */
#include "caretaker.h"
#include "starter.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static bool is_any_at(const char *place, bool (*is_wanted)(const char *pid, void *what), void *what) {
    char *procs = text("%s/cgroup.procs", place), *pids = read_whole(procs, NULL), *rest = pids;
    bool found = false;
    for (char *pid; !found && rest && (pid = strsep(&rest, "\n")) && *pid;) found = is_wanted(pid, what);
    free(pids);
    free(procs);
    DIR *groups = found ? NULL : opendir(place);
    for (const struct dirent *entry; !found && groups && (entry = readdir(groups));) {
        if (entry->d_type != DT_DIR || strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *below = text("%s/%s", place, entry->d_name);
        found = is_any_at(below, is_wanted, what);
        free(below);
    }
    if (groups) closedir(groups);
    return found;
}

bool is_any_member(const char *group, bool (*is_wanted)(const char *pid, void *what), void *what) {
    char *place = text("/sys/fs/cgroup/%s", group);
    bool found = is_any_at(place, is_wanted, what);
    free(place);
    return found;
}
