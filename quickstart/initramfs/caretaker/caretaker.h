/* Our work in the machine after the application has started. Others may change the same files meanwhile, so every step uses
   descriptors, and no program is executed in a namespace that is not our own (docs/users/hand-off.md). */
#pragma once
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "walk.h"

/* Reports on stderr what went wrong, with errno's text; returns false. */
bool complain(const char *what, const char *which);
/* The directory of the process in /proc: of a process whose first thread has ended, that of another thread, since its own has lost its links by
   then (proc(5)). NULL when all of it has ended. */
enum { TASK_NAME = 64 };
const char *live_task(int proc, const char *pid, char name[TASK_NAME]);
/* Opens the mount namespace of the process, unless a user has made it: its owner must be our own user namespace. -1 otherwise. */
int open_namespace(int proc, const char *pid, dev_t *device, ino_t *inode);

bool take_fast_away(void);
/* `fast` is the absolute path of the mount that is to go. */
void keep_programs_names(const char *fast);
bool bind_into(const char *pid, FILE *rows);
bool confine(const char *pid, const char *description);
bool remove_all(FILE *names);
bool set_aside(void);
/* The values are exit statuses: /tmp and /var/tmp have no entry; /tmp is no directory of root's with mode 1777; /tmp has entries; only /var/tmp has. */
enum tmp { TMP_EMPTY = 0, TMP_OTHER = 1, TMP_HOLDS = 3, VAR_TMP_HOLDS = 4 };
enum tmp look_at_tmp(void);
/* In place of a user's number. */
#define EVERYBODY UINT32_MAX
size_t count_ipc(unsigned number, bool removes);
/* Whether a process of the group, or of a group below it, is wanted: `pid` may be the name of a thread (`live_task`). After the first one, no other is asked for. */
bool is_any_member(const char *group, bool (*is_wanted)(const char *pid, void *what), void *what);
bool find_unconfined(const char *file, char **groups);
/* The path of the program, and its arguments. Returns only when it fails. */
bool leave_unit(char **program);
bool listen_for(const char *description, bool with_journal, char **program);
/* `place` is the bus's socket. */
bool watch_bus(const char *place, const char *path);

/* The values are exit statuses. */
enum answer { ANSWER_RIGHT = 0, ANSWER_NONE = 1, ANSWER_OTHER = 3 };
/* `address` is IPv4, `status` has three digits. Nothing that comes late or is no HTTP counts as an answer. */
enum answer ask(const char *address, uint16_t port, const char *status, const char *path);
