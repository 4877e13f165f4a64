/*
 * starter DESCRIPTION RUNDIR: starts a unit by the description that the build made of its directives. When the unit has started as its
 * Type= defines it, the status is 0 and RUNDIR/main.pid has the main process. Otherwise the status is 1, the unit's processes are killed,
 * and RUNDIR/reason has one line (docs/internals/starter.md). The program's main() is in caretaker.c.
 */
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_US = 10000, GUESS_MS = 1000, PID_FILE_MAX = 64 };

static const char *run_directory;
/* The time limit for everything, whatever the unit's own limits are: unlike with systemd, the whole machine waits for the unit. */
static int64_t latest;

static bool put(const char *name, const char *content) {
    char *path = text("%s/%s", run_directory, name), *made = text("%s.new", path);
    int fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool done = fd >= 0 && dprintf(fd, "%s\n", content) >= 0 && close(fd) == 0 && rename(made, path) == 0;
    if (!done) dprintf(STDERR_FILENO, "starter: %s: %s\n", path, strerror(errno));
    return done;
}

static void undo(const char *reason) {
    when_failing(NULL);
    put("reason", reason);
    kill_group();
}

/* The time by which the next command must have ended. */
static int64_t deadline(void) {
    int64_t allowed = number(fact("start-timeout-ms", "90000")), now = now_ms();
    return allowed && allowed < latest - now ? now + allowed : latest;
}

const char *limit_of(int64_t deadline) { return deadline == latest ? "the time of an early start" : "the unit's TimeoutStartSec"; }

static struct command command_of(const struct record *r) {
    if (r->count < 4) fail("the description's `command` lacks words");
    const struct record *next = next_record(r, NULL);
    const char *slash = strrchr(r->words[2], '/'), *name = slash ? slash + 1 : r->words[2];
    if (next && strcmp(next->key, "command-name") == 0 && next->count) name = next->words[0];
    return (struct command){r->words[0], r->words[1], r->words[2], r->words + 3, name};
}

/* Fails unless the command succeeded or its failure is ignored. */
static void check_end(const struct command *command, int status, int64_t until) {
    const char *when = command->when, *name = command->argv[0];
    if (status == -1) fail("Exec %s: %s took longer than %s", when, name, limit_of(until));
    if (status == 0 || strchr(command->flags, '-')) return;
    if (WIFEXITED(status)) fail("Exec %s: %s ended with status %d", when, name, WEXITSTATUS(status));
    fail("Exec %s: %s was ended by signal %d", when, name, WTERMSIG(status));
}

/* Runs all commands of that kind, one after the other. */
static void run_all(const char *when, pid_t main_pid) {
    for (const struct record *r = NULL; (r = next_record(r, "command"));) {
        struct command command = command_of(r);
        if (strcmp(command.when, when) != 0) continue;
        int64_t until = deadline();
        pid_t child = start(&command, main_pid, until);
        check_end(&command, child ? await_exit(child, until) : 0, until);
    }
}

/* The running process of the unit that the PID file names; 0 while there is none. */
static pid_t named_by(const char *pid_file) {
    char content[PID_FILE_MAX];
    pid_t pid = read_small(pid_file, content, sizeof content) ? (pid_t)strtol(content, NULL, 10) : 0;
    return pid > 1 && in_group(pid) ? pid : 0;
}

/* Type=forking: the start command has ended. The daemon is the process in the PID file, or the single orphan that the command left in
   the cgroup. For a unit without a main process, any orphan counts. */
static pid_t find_daemon(int64_t until) {
    const char *pid_file = fact("pid-file", "");
    bool any = strcmp(fact("main-process", ""), "any") == 0;
    int64_t guess_until = now_ms() + GUESS_MS;
    pid_t pid = 0;
    for (;;) {
        if (*pid_file && (pid = named_by(pid_file))) return pid;
        int count = *pid_file ? 0 : orphans_in_group(&pid);
        if (count == 1 || (any && count)) return pid;
        if (!*pid_file && now_ms() >= guess_until) fail("Type=forking without PIDFile=: %d processes are left, which is the main one?", count);
        if (now_ms() >= until) fail("%s names no process of the unit", pid_file);
        usleep(POLL_US);
    }
}

static pid_t start_main(void) {
    const struct record *r = next_record(NULL, "command");
    while (r && strcmp(command_of(r).when, "main") != 0) r = next_record(r, "command");
    if (!r) fail("the description has no main command");
    struct command command = command_of(r);
    const char *type = fact("type", NULL);
    int64_t until = deadline();
    pid_t pid = start(&command, 0, until);
    if (!pid) fail("%s could not be executed", command.program);
    if (strcmp(type, "forking") == 0) {
        check_end(&command, await_exit(pid, until), until);
        pid = find_daemon(until);
    } else if (strcmp(type, "notify") == 0) {
        await_ready(&pid, until, latest);
    } else if (strcmp(type, "dbus") == 0) {
        await_name(pid, until);
    } else if (strcmp(type, "simple") != 0 && strcmp(type, "exec") != 0) {
        fail("the description has an unknown type `%s`", type);
    }
    return pid;
}

/* For `adopt`: systemd is to find the same user. Without the note, any would be. */
static void note_made_up_user(void) {
    const struct identity *who = identity();
    if (who->is_made_up && !put("made-up-user", text("%u %s", who->uid, who->name))) fail("the user cannot be noted in %s", run_directory);
}

int start_unit(int argc, char **argv) {
    if (argc != 3) {
        dprintf(STDERR_FILENO, "usage: starter DESCRIPTION RUNDIR\n");
        return 2;
    }
    run_directory = argv[2];
    make_directories(run_directory, 0755);
    unlink(text("%s/main.pid", run_directory));
    unlink(text("%s/reason", run_directory));
    unlink(text("%s/made-up-user", run_directory));
    when_failing(undo);
    read_description(argv[1]);
    check_keys();
    latest = now_ms() + number(fact("longest-start-ms", "900000"));
    check_conditions();
    need_sockets();
    note_made_up_user();
    make_group();
    make_run_directories();
    make_private_tmp();
    make_own_network();
    if (strcmp(fact("notify-access", "none"), "none") != 0) open_notify();
    run_all("condition", 0);
    run_all("pre", 0);
    pid_t main_pid = start_main();
    char *pid = text("%d", (int)main_pid);
    run_all("post", main_pid);
    put("main.pid", pid);
    return 0;
}
