/* Force-included before filter.c: this machine's headers, and then an arm64 machine's numbers (test_confined_filter.py). */
#define _GNU_SOURCE
#include <asm/bitsperlong.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <unistd.h>

#undef __x86_64__
#undef __aarch64__
#define __aarch64__ 1
/* arch/arm64/include/uapi/asm/unistd.h */
#define __ARCH_WANT_RENAMEAT
#define __ARCH_WANT_NEW_STAT
#define __ARCH_WANT_SET_GET_RLIMIT
#define __ARCH_WANT_TIME32_SYSCALLS
#define __ARCH_WANT_SYS_CLONE3
#define __ARCH_WANT_MEMFD_SECRET
