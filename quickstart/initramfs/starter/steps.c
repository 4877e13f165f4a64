/* The steps of a child before it executes, in the order of the description. */
#include "starter.h"

#include <errno.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { IOPRIO_WHO_PROCESS = 1, IOPRIO_CLASS_SHIFT = 13 }; /* linux/ioprio.h has only what the kernel itself needs */

static void oom_score_adjust(const struct record *r) { write_whole("/proc/self/oom_score_adj", r->words[0]); }

static void nice_level(const struct record *r) {
    if (setpriority(PRIO_PROCESS, 0, (int)number(r->words[0])) < 0) fail("setpriority: %m");
}

/* `scheduler POLICY PRIORITY RESET_ON_FORK` in the kernel's numbers. */
static void scheduler(const struct record *r) {
    struct sched_param priority = {.sched_priority = (int)number(r->words[1])};
    int policy = (int)number(r->words[0]) | (number(r->words[2]) ? SCHED_RESET_ON_FORK : 0);
    /* A C library may lack it, because POSIX defines it for a process, but Linux applies it to a thread. */
    if (syscall(SYS_sched_setscheduler, 0, policy, &priority) < 0) fail("sched_setscheduler: %m");
}

static void cpus(const struct record *r) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < r->count; i++) CPU_SET((size_t)number(r->words[i]), &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0) fail("sched_setaffinity: %m");
}

static void io_priority(const struct record *r) {
    long value = (long)(number(r->words[0]) << IOPRIO_CLASS_SHIFT | number(r->words[1]));
    if (syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, value) < 0) fail("ioprio_set: %m");
}

static void timer_slack(const struct record *r) {
    if (prctl(PR_SET_TIMERSLACK, (unsigned long)number(r->words[0])) < 0) fail("PR_SET_TIMERSLACK: %m");
}

static void file_mask(const struct record *r) { umask((mode_t)number(r->words[0])); }

static rlim_t limit_value(const char *word) { return strcmp(word, "infinity") == 0 ? RLIM_INFINITY : (rlim_t)number(word); }

static void lower(struct rlimit *limit, rlim_t most) {
    if (limit->rlim_max > most) limit->rlim_max = most;
    if (limit->rlim_cur > limit->rlim_max) limit->rlim_cur = limit->rlim_max;
}

/* `limit RESOURCE SOFT HARD`, the resource in the kernel's number. */
static void limit(const struct record *r) {
    struct rlimit both = {limit_value(r->words[1]), limit_value(r->words[2])}, now;
    int resource = (int)number(r->words[0]);
    if (setrlimit(resource, &both) == 0) return;
    /* Without the privilege, set the nearest value that is allowed, as systemd does (setrlimit_closest). */
    if (errno != EPERM || getrlimit(resource, &now) < 0) fail("setrlimit: %m");
    if (resource == RLIMIT_NOFILE) {
        /* The kernel allows nobody more than fs.nr_open. systemd's PID 1 has as many (bump_rlimit_nofile), and we have fewer. */
        char *most = read_whole("/proc/sys/fs/nr_open", NULL);
        if (most) lower(&both, (rlim_t)strtoull(most, NULL, 10));
        free(most);
        if (setrlimit(resource, &both) == 0) return;
    }
    lower(&both, now.rlim_max);
    if (setrlimit(resource, &both) < 0) fail("setrlimit: %m");
}

/* The kernel gives a new keyring to the real user, and looks up the user keyring by him (keyctl(2)). So the unit's user is our real user
   meanwhile. The effective user stays root, and we keep the capabilities. */
static void be_really(uid_t uid, gid_t gid) {
    if (setregid(gid, (gid_t)-1) < 0 || setreuid(uid, (uid_t)-1) < 0) fail("setreuid: %m");
}

/* A session keyring of its own; with `shared`, the user's keyring is linked into it. */
static void keyring(const struct record *r) {
    const struct identity *who = identity();
    be_really(who->name ? who->uid : 0, who->has_gid ? who->gid : 0);
    bool joined = syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0;
    /* Then there is no keyring, as with systemd. */
    if (!joined && errno != ENOSYS && errno != EPERM && errno != EDQUOT) fail("keyctl: %m");
    if (joined && strcmp(r->words[0], "shared") == 0 && syscall(SYS_keyctl, KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_SESSION_KEYRING) < 0)
        fail("keyctl: %m");
    be_really(0, 0);
}

/* `working-directory required|optional PATH`; `~` is the user's home. */
static void working_directory(const struct record *r) {
    const char *path = r->words[1];
    if (strcmp(path, "~") == 0) path = identity()->home ? identity()->home : "/";
    if (chdir(path) < 0 && strcmp(r->words[0], "optional") != 0) fail("%s: %m", path);
}

/* The steps that a command skips: with `+` all that confine it, but for a part of its mounts, with `!` those of User= and Group=. */
enum scope { ALWAYS, CONFINES, CHANGES_USER };

static const struct step {
    const char *key;
    size_t words;
    enum scope scope;
    void (*take)(const struct record *);
} STEPS[] = {
    {"oom-score-adjust", 1, ALWAYS, oom_score_adjust},
    {"nice", 1, ALWAYS, nice_level},
    {"scheduler", 3, ALWAYS, scheduler},
    {"cpus", 1, ALWAYS, cpus},
    {"io-priority", 2, ALWAYS, io_priority},
    {"timer-slack-ns", 1, ALWAYS, timer_slack},
    {"umask", 1, ALWAYS, file_mask},
    {"directory", 3, ALWAYS, make_unit_directory},
    {"private-directory", 3, ALWAYS, make_private_directory},
    {"keyring", 1, ALWAYS, keyring},
    {"own-network", 0, ALWAYS, own_network},
    {"namespace", 1, CONFINES, own_mounts},
    {"own-host-name", 0, CONFINES, own_host_name},
    {"groups", 0, CHANGES_USER, set_groups},
    {"limit", 3, CONFINES, limit},
    {"own-users", 0, CONFINES, own_users},
    {"bounding-set", 1, CONFINES, drop_bounding_set},
    {"ambient", 1, CONFINES, raise_ambient},
    {"become-user", 0, CHANGES_USER, become_user},
    {"working-directory", 2, ALWAYS, working_directory},
    {"secure-bits", 1, CONFINES, set_secure_bits},
    {"no-new-privileges", 1, CONFINES, no_new_privileges},
    {"deny-write-execute", 1, CONFINES, deny_write_and_execute},
    {"seccomp", 1, CONFINES, filter_calls},
};

static const struct step *step_of(const char *key) {
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++)
        if (strcmp(STEPS[i].key, key) == 0) return &STEPS[i];
    return NULL;
}

/* These keys are read where they are needed. */
static const char *const FACTS[] = {"unit",
                                    "group",
                                    "type",
                                    "pid-file",
                                    "main-process",
                                    "start-timeout-ms",
                                    "longest-start-ms",
                                    "notify-access",
                                    "bus-name",
                                    "watchdog-usec",
                                    "user",
                                    "main-group",
                                    "dynamic-user",
                                    "map-owners",
                                    "ignore-sigpipe",
                                    "stdout",
                                    "stderr",
                                    "private-tmp",
                                    "base-environment",
                                    "own-environment",
                                    "pass-environment",
                                    "environment",
                                    "environment-file",
                                    "unset-environment",
                                    "comments",
                                    "run-directory",
                                    "unit-condition",
                                    "each-file-has",
                                    "cgroup-attribute",
                                    "delegate",
                                    "devices",
                                    "device",
                                    "mount",
                                    "guard",
                                    "socket",
                                    "companion-socket",
                                    "first-socket",
                                    "socket-option",
                                    "journal-socket",
                                    "journal-link",
                                    "syslog-identifier",
                                    "syslog-priority",
                                    "syslog-level-prefix",
                                    "command",
                                    "command-name",
                                    NULL};

/* An unknown key would have no effect, so a unit with one is not started at all. */
void check_keys(void) {
    for (const struct record *r = NULL; (r = next_record(r, NULL));) {
        size_t known = 0;
        while (FACTS[known] && strcmp(FACTS[known], r->key) != 0) known++;
        if (!FACTS[known] && !step_of(r->key)) fail("the description has an unknown `%s`", r->key);
    }
}

void take_steps(const char *flags) {
    bool all = strchr(flags, '+') != NULL, user = strchr(flags, '!') != NULL;
    for (const struct record *r = NULL; (r = next_record(r, NULL));) {
        const struct step *step = step_of(r->key);
        if (step && all && step->take == own_mounts) own_mounts_of_root(r);
        if (!step || (step->scope != ALWAYS && all) || (step->scope == CHANGES_USER && user)) continue;
        if (r->count < step->words) fail("the description's `%s` lacks words", r->key);
        step->take(r);
    }
}
