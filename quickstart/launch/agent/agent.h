#pragma once
#include <stdint.h>

/* Shared by the main process and the prober. */

enum { STEP_MS = 10 }; /* between two attempts to find the port or the address */

/* Opened at the start and then always used: they stay valid when the mounts are moved into the new root. */
extern int proc_dir, sys_dir, dev_dir;

_Noreturn void die(const char *what);
void sleep_until(int64_t when);
int number(const char *text, int low, int high);
/* Call this in a forked child. -1 sends output to /dev/null. PID 1's root is first the initramfs, then the root volume. */
_Noreturn void exec_shell(char *command, int out, int err);

/* Write the messages of `prober`, the pipe from the prober, to the console until the prober ends. */
_Noreturn void speak(int prober);
