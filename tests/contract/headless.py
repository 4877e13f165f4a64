"""A process whose first thread has ended."""

from __future__ import annotations

# Its first thread ends, and another one goes on: to cgroup.kill, it is not there.
HEADLESS = """#include <pthread.h>
#include <unistd.h>
void *go_on(void *nothing) { for (;;) pause(); }
int main(void) { pthread_t other; pthread_create(&other, 0, go_on, 0); pthread_exit(0); }
"""
