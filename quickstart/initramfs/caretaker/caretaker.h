/* What is ours to do in the machine after the application has started, and where somebody else may be at work beside it: each step by
   descriptor, and no program is executed in a namespace that is not our own (docs/users/hand-off.md). */
#pragma once
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "walk.h"

/* Says on stderr what went wrong, with errno's text; answers false. */
bool complain(const char *what, const char *which);
/* Opens the mount namespace of the process, if it is not one that a user has made: its owner is our own user namespace. -1 otherwise. */
int open_namespace(int proc, const char *pid, dev_t *device, ino_t *inode);

bool take_fast_away(void);
bool bind_into(const char *pid, FILE *rows);
bool confine(const char *pid, const char *description);
bool remove_all(FILE *names);
