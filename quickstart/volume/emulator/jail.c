/*
 * Confines the emulator before it reads the first byte of a client. The client may be a guest that has taken over its QEMU. The emulator
 * keeps its open descriptors and the system calls by which it serves (seccomp(2)). It cannot open files or make sockets or processes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "volume.h"

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "which architecture's system calls these are has to be said here"
#endif

/* On these architectures, this loads the low half of a 64-bit argument. */
#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, member))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, (what))
/* When the condition is false, the next instruction is skipped. */
#define IF_EQUAL(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, 1)
#define UNLESS_EQUAL(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 1, 0)
#define UNLESS_BITS(bits) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (bits), 0, 1)
#define ALLOW(name) IF_EQUAL(SYS_##name), RETURN(SECCOMP_RET_ALLOW)

/* Sanitizers need more system calls than we do. */
#ifdef __SANITIZE_ADDRESS__
static void filter_calls(void) {}
#else
static void filter_calls(void) {
    struct sock_filter program[] = {
        LOAD(arch),
        UNLESS_EQUAL(ARCHITECTURE),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        ALLOW(accept4),
        ALLOW(recvfrom),
        ALLOW(sendto),
        ALLOW(ppoll),
        ALLOW(close),
        ALLOW(read),
        ALLOW(write),
        ALLOW(pread64),
        ALLOW(pwrite64),
        ALLOW(fallocate),
        /* For glibc's malloc and free, and for the clock where the vDSO cannot read it. */
        ALLOW(brk),
        ALLOW(munmap),
        ALLOW(clock_gettime),
        ALLOW(restart_syscall),
        ALLOW(exit_group),
        /* mmap is allowed, but not with PROT_EXEC. The check loads the argument in place of the number, so it comes last. */
        UNLESS_EQUAL(SYS_mmap),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(args[2]),
        UNLESS_BITS(PROT_EXEC),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog whole = {.len = sizeof program / sizeof *program, .filter = program};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) < 0) die("cannot be confined", "seccomp");
}
#endif

void jail_shut(uint64_t largest_file) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    const struct rlimit file = {largest_file, largest_file}, core = {0, 0};
    errno = 0;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_capset, &header, none) < 0) die("cannot be confined", "capabilities");
    if (setrlimit(RLIMIT_FSIZE, &file) < 0 || setrlimit(RLIMIT_CORE, &core) < 0) die("cannot be confined", "limits");
    /* An ordinary user's QEMU runs as the same user as we do. It must not read our memory by ptrace(2), nor we its. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) die("cannot be confined", "ptrace");
    filter_calls();
}
