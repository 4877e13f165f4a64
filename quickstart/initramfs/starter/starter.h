/* The starter starts a unit by its description (docs/internals/starter.md). The files of this program share this header. */
#pragma once
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol.h"
#include "walk.h"

/* A line of the description: its key and its words, ended by NULL. */
struct record {
    char *key;
    char **words;
    size_t count;
};

/* A list of strings that is always ended by NULL. */
struct list {
    char **items;
    size_t count;
};

/* The user that the unit runs as. `name` is NULL without User=. `is_made_up`: the image has no such user (dynamic.c). */
struct identity {
    const char *name, *home, *shell;
    uid_t uid;
    gid_t gid;
    bool has_gid, is_made_up;
};

/* A command of the unit. In `flags`, `-` ignores a failure, `+` and `!` are those of systemd.service(5), and `:` means no expansion. `name`
   is that of the unit's program, for the journal. */
struct command {
    const char *when, *flags, *program;
    char **argv;
    const char *name;
};

/* fail.c: ends the program with one line of reason. In a child, the line goes to the parent, which ends everything. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fail_into(int pipe_end);
void when_failing(void (*undo)(const char *reason));

/* text.c */
void *must(void *allocated);
char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
void append(struct list *list, char *item);
char *read_whole(const char *path, size_t *length);
bool read_small(const char *path, char *content, size_t room);
void write_whole(const char *path, const char *content);
long long number(const char *word);
uint64_t hex(const char *word);
void make_directories(const char *path, mode_t mode);
int64_t now_ms(void);

/* description.c */
void read_description(const char *path);
const struct record *next_record(const struct record *after, const char *key);
const char *fact(const char *key, const char *otherwise);

/* users.c */
const struct identity *identity(void);
void set_groups(const struct record *record);
uid_t user_number(const char *wanted);
gid_t main_group_number(const char *user);
gid_t group_number(const char *wanted);
gid_t group_or(const char *wanted, gid_t otherwise);
bool has_user(const char *wanted);
bool has_group(const char *wanted);

/* The user whom nobody is meant to be. */
enum { NOBODY = 65534 };

/* dynamic.c and mapping.c: DynamicUser= */
uid_t made_up_number(void);
void make_private_directory(const struct record *record);
void mount_private_root(const char *path);
int mapped_mount(int directory, uid_t uid, gid_t gid);
void mount_own_tmp(const char *path);

/* environment.c and words.c */
struct list command_environment(const struct command *command, pid_t main_pid);
void read_variables(const char *path, bool optional, struct list *into);
const char *variable(const struct list *environment, const char *name, size_t length);
char **expand(char **argv, const struct list *environment);

/* group.c: the unit's cgroup */
void make_group(void);
void enter_group(void);
void kill_group(void);
bool in_group(pid_t pid);
int orphans_in_group(pid_t *one);

/* conditions.c */
void check_conditions(void);

/* limits.c */
void limit_group(void);
void delegate_controllers(const char *group);

/* devices.c */
void restrict_devices(const char *group);

/* main.c: the whole program, with the arguments of main(); and the name of the limit that ended at a time (by now_ms). */
int start_unit(int argc, char **argv);
const char *limit_of(int64_t deadline);

/* sockets.c: binds the sockets of the unit and its companions and, behind them, journald's; fails when the unit's are not there; gives the
   unit's the numbers from FIRST_SOCKET on, and returns how many there are; and gives their names for LISTEN_FDNAMES. */
enum { FIRST_SOCKET = 3, MOST_SOCKETS = 16, MOST_JOURNAL_SOCKETS = 4 };
int socket_count(void);
void bind_sockets(bool with_journal);
void need_sockets(void);
int take_sockets(void);
char *socket_names(void);

/* journal.c: a stream of the command's output to journald, -1 when journald's socket is not bound; and the value of JOURNAL_STREAM, or NULL. */
int open_journal(const struct command *command, const struct record *output);
const char *journal_stream(void);

/* notify.c */
void open_notify(void);
void await_ready(pid_t *main_pid, int64_t deadline, int64_t latest);

/* owner.c */
void await_name(pid_t main_pid, int64_t deadline);

/* process.c */
pid_t start(const struct command *command, pid_t main_pid, int64_t deadline);
int await_exit(pid_t pid, int64_t deadline);
bool wait_for(int fd, int64_t deadline);

/* steps.c, privileges.c, directories.c, mounts.c, mounting.c, namespaces.c: the steps of a child before it executes */
void check_keys(void);
void take_steps(const char *flags);
void drop_bounding_set(const struct record *record);
void raise_ambient(const struct record *record);
void become_user(const struct record *record);
void set_secure_bits(const struct record *record);
void no_new_privileges(const struct record *record);
void filter_calls(const struct record *record);
void deny_write_and_execute(const struct record *record);
void make_unit_directory(const struct record *record);
void make_run_directories(void);
void make_private_tmp(void);
const char *private_tmp(const char *of);
void own_mounts(const struct record *record);
void own_mounts_of_root(const struct record *record);
void confine_later(void);
void own_users(const struct record *record);
void make_own_network(void);
int keep_network(int lowest);
void own_network(const struct record *record);
void own_host_name(const struct record *record);

/* The kinds of mounts in the unit's own namespace. Of two for the same path, systemd prefers the one that is first here. */
enum mount_kind {
    INACCESSIBLE,
    BIND,
    BIND_ALL,
    PRIVATE_TMP,
    PRIVATE_DEV,
    PRIVATE_ROOT,
    OWN_TMP,
    FRESH_SYS,
    FRESH_PROC,
    AS_IT_IS,
    READ_ONLY,
    READ_WRITE,
    NO_EXEC,
    EXEC,
    EMPTY_TMPFS,
    READ_WRITE_IMPLICIT
};
struct mount_entry {
    enum mount_kind kind;
    char *path;
    const char *source, *options;
    bool optional, read_only, no_exec, exec;
};
void mount_entry(const struct mount_entry *entry);
void make_read_only(const struct mount_entry *entries, size_t count, size_t which);
void make_executable_or_not(const struct mount_entry *entries, size_t count, size_t which);
void make_nosuid(const struct mount_entry *entry);
bool is_below(const char *path, const char *above);
