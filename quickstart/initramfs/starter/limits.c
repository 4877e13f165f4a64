/* Writes the limits of the unit's cgroup and of its slices, as systemd would, before a process enters it (systemd.resource-control(5)). */
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static const char CONTROLLERS[] = "/sys/fs/cgroup/cgroup.controllers";

/* The number in a file of the kernel. */
static unsigned long long number_in(const char *path) {
    char *content = read_whole(path, NULL);
    if (!content) fail("%s cannot be read: %m", path);
    unsigned long long value = strtoull(content, NULL, 10);
    free(content);
    return value;
}

/* As systemd's system_tasks_max: no task has PID 0. */
static unsigned long long most_tasks(void) {
    unsigned long long threads = number_in("/proc/sys/kernel/threads-max"), pids = number_in("/proc/sys/kernel/pid_max") - 1;
    return threads < pids ? threads : pids;
}

/* As systemd's physical_memory, but in pages. */
static unsigned long long memory_pages(void) {
    struct sysinfo machine;
    if (sysinfo(&machine) < 0) fail("sysinfo: %m");
    return (unsigned long long)machine.totalram * machine.mem_unit / (unsigned long long)sysconf(_SC_PAGESIZE);
}

/* The value to write. The record has a word, or `tasks` or `memory` with the parts and the whole of a share. */
static char *value_of(const struct record *r) {
    if (r->count == 3) return text("%s", r->words[2]);
    if (r->count != 5) fail("the description's `%s` lacks words", r->key);
    unsigned long long parts = (unsigned long long)number(r->words[3]), whole = (unsigned long long)number(r->words[4]);
    if (!whole) fail("the description has a share of nothing");
    if (strcmp(r->words[2], "tasks") == 0) return text("%llu", most_tasks() * parts / whole);
    if (strcmp(r->words[2], "memory") == 0) return text("%llu", memory_pages() * parts / whole * (unsigned long long)sysconf(_SC_PAGESIZE));
    fail("the description has a share of an unknown `%s`", r->words[2]);
}

/* Whether the kernel has the controller. Without it (cgroup_disable=, cgroup.memory=), systemd sets no limit, either. */
static bool has_controller(const char *controller) {
    char *content = read_whole(CONTROLLERS, NULL), *rest = content;
    bool found = false;
    for (char *word; rest && (word = strsep(&rest, " \n"));) found = found || strcmp(word, controller) == 0;
    free(content);
    return found;
}

/* The directory of the group that is so many levels above the unit's group. */
static char *group_above(long long levels) {
    char *path = text("/sys/fs/cgroup/%s", fact("group", NULL));
    while (levels-- > 0 && strlen(path) > strlen("/sys/fs/cgroup")) *strrchr(path, '/') = '\0';
    if (strlen(path) <= strlen("/sys/fs/cgroup")) fail("the description has an attribute of no group");
    return path;
}

/* A group has a controller's attributes when each group above it hands the controller down (cgroup-v2.rst, "Top-down Constraint"). `wanted` is
   `+CONTROLLER…`. */
static void hand_down(const char *directory, const char *wanted) {
    char *path = text("%s", directory);
    for (char *at = path + strlen("/sys/fs/cgroup"); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        char *file = text("%s/cgroup.subtree_control", path);
        write_whole(file, wanted);
        free(file);
        *at = '/';
    }
    free(path);
}

/* `cgroup-attribute LEVELS NAME VALUE…`; the controller is the name up to its first dot. */
static void set_attribute(const struct record *r) {
    if (r->count < 3 || strchr(r->words[1], '/')) fail("the description's `%s` lacks words", r->key);
    char *controller = text("%.*s", (int)strcspn(r->words[1], "."), r->words[1]);
    if (has_controller(controller)) {
        char *directory = group_above(number(r->words[0])), *path = text("%s/%s", directory, r->words[1]), *value = value_of(r);
        char *wanted = text("+%s", controller);
        hand_down(directory, wanted);
        free(wanted);
        /* A kernel may lack an attribute (memory.swap.max, io.weight), which systemd then does not write. */
        if (access(path, F_OK) == 0) write_whole(path, value);
        else if (errno != ENOENT) fail("%s: %m", path);
        free(value);
        free(path);
        free(directory);
    }
    free(controller);
}

void limit_group(void) {
    for (const struct record *r = NULL; (r = next_record(r, "cgroup-attribute"));) set_attribute(r);
}

/* `delegate CONTROLLER…`: the groups above hand these controllers down to the unit's group, which has them then and may hand them on
   (Delegate=; unit_get_delegate_mask in systemd's src/core/cgroup.c). systemd, too, leaves out those that the kernel does not have. */
void delegate_controllers(const char *group) {
    const struct record *r = next_record(NULL, "delegate");
    char *wanted = text("%s", "");
    for (size_t i = 0; r && i < r->count; i++) {
        if (!has_controller(r->words[i])) continue;
        char *longer = text("%s+%s ", wanted, r->words[i]);
        free(wanted);
        wanted = longer;
    }
    if (*wanted) hand_down(group, wanted);
    free(wanted);
}
