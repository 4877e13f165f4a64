/*
 * The filter of system calls (seccomp(2)). Most of what it refuses needs a capability that we have given up. The filter still protects
 * the host if a new user namespace gave the capability back, or if a check in the kernel were wrong.
 */
#define _GNU_SOURCE
#include "confiner.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define OUR_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define OUR_ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no filter of system calls for this architecture"
#endif
/* x32 calls of an x86-64 kernel have numbers from here on (asm/unistd.h); other calls have none so large. */
#define X32_BIT 0x40000000U

/* linux/sched.h: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME is a signal's bit for clone(2). */
#define NEW_NAMESPACES 0x7e020000U
#define NEW_TIME 0x80U

#define REFUSED_WITH(number) (SECCOMP_RET_ERRNO | ((number)&SECCOMP_RET_DATA))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
/* The low half. The kernel reads no more of these arguments, and both architectures are little-endian. */
#define LOAD_ARGUMENT(index) LOAD(args[index])
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)

/* These calls are too new for musl's headers. From 424 on, numbers are the same on all architectures (asm-generic/unistd.h). */
enum {
    OPEN_TREE = 428,
    MOVE_MOUNT = 429,
    FSOPEN = 430,
    FSCONFIG = 431,
    FSMOUNT = 432,
    FSPICK = 433,
    CLONE3 = 435,
    PIDFD_GETFD = 438,
    MOUNT_SETATTR = 442,
    QUOTACTL_FD = 443,
    OPEN_TREE_ATTR = 467,
};

static const int REFUSED[] = {
    /* Mounts and namespaces. */
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    OPEN_TREE,
    MOVE_MOUNT,
    FSOPEN,
    FSCONFIG,
    FSMOUNT,
    FSPICK,
    MOUNT_SETATTR,
    OPEN_TREE_ATTR,
    SYS_setns,
    /* The kernel itself. */
    SYS_bpf,
    SYS_perf_event_open,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_reboot,
    SYS_syslog,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_userfaultfd,
    SYS_fanotify_init,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl,
    SYS_ioperm,
#endif
    /* Other processes. */
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    PIDFD_GETFD,
    /* Disks, and files by their numbers instead of their names. */
    SYS_swapon,
    SYS_swapoff,
    SYS_open_by_handle_at,
    SYS_quotactl,
    QUOTACTL_FD,
    SYS_acct,
    SYS_vhangup,
    /* The machine's clocks and names. */
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
};
/* These fail as if the kernel did not have them. Libraries then use an older call, which the filter can inspect, or none. */
static const int UNKNOWN[] = {CLONE3, 425 /* io_uring_setup */, 426 /* io_uring_enter */, 427 /* io_uring_register */};
/* asm-generic/ioctls.h: typing for another process, the console's selection, and another line discipline, whose driver the kernel loads.
   linux/btrfs.h: a snapshot has the whole subvolume of a file, and so other files of the host (before Linux 6.8); with the mount option
   user_subvol_rm_allowed, a subvolume is removed by its number, wherever on the file system it lies. Both architectures have the same
   numbers. */
static const uint32_t IOCTLS[] = {
    0x5412 /* TIOCSTI */,
    0x541c /* TIOCLINUX */,
    0x5423 /* TIOCSETD */,
    0x50009401 /* BTRFS_IOC_SNAP_CREATE */,
    0x50009417 /* BTRFS_IOC_SNAP_CREATE_V2 */,
    0x5000940f /* BTRFS_IOC_SNAP_DESTROY */,
    0x5000943f /* BTRFS_IOC_SNAP_DESTROY_V2 */,
};
/* linux/socket.h: the families that packages need. UNIX is allowed only without the network, because a UNIX socket without a file reaches
   every process in the same network. */
enum { UNIX = 1, INET = 2, INET6 = 10, NETLINK = 16 };
/* linux/in.h, for INET and INET6. For any other protocol, such as SCTP and DCCP, the kernel would load a driver. */
static const uint32_t PROTOCOLS[] = {0, 1 /* ICMP */, 6 /* TCP */, 17 /* UDP */, 58 /* ICMPV6 */};
/* linux/net.h: the type also carries flags. Types from SOCK_RDM on have protocols that no package needs. */
enum { TYPE_MASK = 0xf, RDM = 4 };

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

struct program {
    struct sock_filter steps[256];
    unsigned short length;
};

static void add(struct program *program, struct sock_filter step) {
    if (program->length == COUNT(program->steps)) {
        errno = E2BIG;
        fail("the filter");
    }
    program->steps[program->length++] = step;
}

/* The filter returns `value` when the accumulator is `number`. */
static void when(struct program *program, uint32_t number, uint32_t value) {
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    add(program, (struct sock_filter)RETURN(value));
}

/* The call `number` fails with EPERM when its first argument has one of the bits. */
static void refuse_flags(struct program *program, int number, uint32_t bits) {
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 4));
    add(program, (struct sock_filter)LOAD_ARGUMENT(0));
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1));
    add(program, (struct sock_filter)RETURN(REFUSED_WITH(EPERM)));
    add(program, (struct sock_filter)RETURN(SECCOMP_RET_ALLOW));
}

static void refuse_ioctls(struct program *program) {
    unsigned char over = (unsigned char)(2 * COUNT(IOCTLS) + 2);
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, over));
    add(program, (struct sock_filter)LOAD_ARGUMENT(1));
    for (unsigned each = 0; each < COUNT(IOCTLS); each++) when(program, IOCTLS[each], REFUSED_WITH(EPERM));
    add(program, (struct sock_filter)RETURN(SECCOMP_RET_ALLOW));
}

/* socketpair(2) makes UNIX sockets, too. A datagram socket of such a pair can send to any name without a file, and receive descriptors. */
static void refuse_pairs(struct program *program, bool network) {
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, network ? 1 : 4));
    if (!network) {
        add(program, (struct sock_filter)LOAD_ARGUMENT(0));
        when(program, UNIX, SECCOMP_RET_ALLOW);
    }
    add(program, (struct sock_filter)RETURN(REFUSED_WITH(EAFNOSUPPORT)));
}

/* Checks the type and protocol of INET and INET6. The accumulator has the family; for any other family it keeps its value. */
static void refuse_protocols(struct program *program) {
    unsigned char over = (unsigned char)(2 * COUNT(PROTOCOLS) + 6);
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, INET, 1, 0));
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, INET6, 0, over));
    add(program, (struct sock_filter)LOAD_ARGUMENT(1));
    add(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, TYPE_MASK));
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, RDM, 0, 1));
    add(program, (struct sock_filter)RETURN(REFUSED_WITH(EPERM)));
    add(program, (struct sock_filter)LOAD_ARGUMENT(2));
    for (unsigned each = 0; each < COUNT(PROTOCOLS); each++) when(program, PROTOCOLS[each], SECCOMP_RET_ALLOW);
    add(program, (struct sock_filter)RETURN(REFUSED_WITH(EPERM)));
}

/* socket(2) is the last call that is checked. Of netlink, only routes (protocol 0) are allowed, which resolvers need. Without the audit's
   netlink, PAM assumes that the kernel has no audit. */
static void refuse_sockets(struct program *program, bool network) {
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0));
    add(program, (struct sock_filter)RETURN(SECCOMP_RET_ALLOW));
    add(program, (struct sock_filter)LOAD_ARGUMENT(0));
    refuse_protocols(program);
    if (!network) when(program, UNIX, SECCOMP_RET_ALLOW);
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETLINK, 0, 3));
    add(program, (struct sock_filter)LOAD_ARGUMENT(2));
    when(program, 0, SECCOMP_RET_ALLOW);
    add(program, (struct sock_filter)RETURN(REFUSED_WITH(EAFNOSUPPORT)));
}

void refuse_calls(bool network) {
    struct program program = {.length = 0};
    add(&program, (struct sock_filter)LOAD(arch));
    add(&program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCHITECTURE, 1, 0));
    add(&program, (struct sock_filter)RETURN(REFUSED_WITH(ENOSYS)));
    add(&program, (struct sock_filter)LOAD(nr));
    add(&program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1));
    add(&program, (struct sock_filter)RETURN(REFUSED_WITH(ENOSYS)));
    for (unsigned each = 0; each < COUNT(REFUSED); each++) when(&program, (uint32_t)REFUSED[each], REFUSED_WITH(EPERM));
    for (unsigned each = 0; each < COUNT(UNKNOWN); each++) when(&program, (uint32_t)UNKNOWN[each], REFUSED_WITH(ENOSYS));
    refuse_flags(&program, SYS_unshare, NEW_NAMESPACES | NEW_TIME);
    refuse_flags(&program, SYS_clone, NEW_NAMESPACES);
    refuse_ioctls(&program);
    refuse_pairs(&program, network);
    refuse_sockets(&program, network);
    struct sock_fprog whole = {.len = program.length, .filter = program.steps};
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole, 0, 0), "the filter of system calls");
}
