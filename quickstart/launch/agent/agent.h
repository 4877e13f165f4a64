#pragma once
#include <stdint.h>

/* What the main process and the prober have in common. */

enum { STEP_MS = 10 }; /* between looks for the port, and for the address */

/* Opened first and used ever after: they follow the mounts when these are moved into the new root. */
extern int proc_dir, sys_dir, dev_dir;

_Noreturn void die(const char *what);
void sleep_until(int64_t when);
int number(const char *text, int low, int high);
/* In a forked child; -1 sends output to /dev/null. PID 1's root is the initramfs first, then the root volume. */
_Noreturn void exec_shell(char *command, int out, int err);
