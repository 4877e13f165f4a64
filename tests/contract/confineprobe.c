/* What a package's script might try, one line each: a name, and "done" or the error. Harmless where it is let do it all. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, long result) {
    printf("%s %s\n", name, result < 0 ? strerror(errno) : "done");
    fflush(stdout);
}

#define TRY(name, call) say(name, (long)(call))

/* In a child: what is done to a process is not done to this one. */
#define TRY_APART(name, call)                                 \
    do {                                                      \
        pid_t child = fork();                                 \
        if (child == 0) {                                     \
            say(name, (long)(call));                          \
            _exit(0);                                         \
        }                                                     \
        int status;                                           \
        waitpid(child, &status, 0);                           \
        if (WIFSIGNALED(status)) printf("%s killed\n", name); \
    } while (0)

static void mounts(void) {
    TRY_APART("mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    TRY("umount", umount2("/nowhere", MNT_DETACH));
    TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
    TRY("fsopen", syscall(430, "tmpfs", 0));
    TRY("fspick", syscall(433, AT_FDCWD, "/", 0));
    TRY("fsconfig", syscall(431, -1, 6, NULL, NULL, 0));
    TRY("fsmount", syscall(432, -1, 0, 0));
    TRY("open_tree", syscall(428, AT_FDCWD, "/tmp", 1));
    TRY("move_mount", syscall(429, AT_FDCWD, "/tmp", AT_FDCWD, "/tmp", 0));
    TRY("mount_setattr", syscall(442, AT_FDCWD, "/tmp", 0, NULL, 0));
    int own = open("/proc/self/ns/mnt", O_RDONLY);
    TRY_APART("setns", setns(own, CLONE_NEWNS));
}

static void namespaces(void) {
    static const struct {
        const char *name;
        int flag;
    } KINDS[] = {{"user", CLONE_NEWUSER}, {"mnt", CLONE_NEWNS},  {"pid", CLONE_NEWPID},      {"net", CLONE_NEWNET},
                 {"ipc", CLONE_NEWIPC},   {"uts", CLONE_NEWUTS}, {"cgroup", CLONE_NEWCGROUP}};
    for (unsigned each = 0; each < sizeof KINDS / sizeof KINDS[0]; each++) {
        char name[64];
        snprintf(name, sizeof name, "unshare-%s", KINDS[each].name);
        TRY_APART(name, unshare(KINDS[each].flag));
        snprintf(name, sizeof name, "clone-%s", KINDS[each].name);
        pid_t child = (pid_t)syscall(SYS_clone, KINDS[each].flag | SIGCHLD, NULL, NULL, NULL, NULL);
        if (child == 0) _exit(0);
        say(name, child);
        if (child > 0) waitpid(child, NULL, 0);
    }
    TRY("clone3", syscall(435, NULL, 0));
}

static void kernel(void) {
    TRY("bpf", syscall(SYS_bpf, 0, NULL, 0));
    TRY("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    TRY("keyctl", syscall(SYS_keyctl, 0, -3, 0));
    TRY("add_key", syscall(SYS_add_key, "user", "quickstart-probe", "x", 1, -1));
    TRY("request_key", syscall(SYS_request_key, "user", "quickstart-probe", NULL, 0));
    TRY("io_uring_setup", syscall(425, 1, NULL));
    TRY("kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, 0xffff));
    TRY("init_module", syscall(SYS_init_module, "", 0, ""));
    TRY("finit_module", syscall(SYS_finit_module, -1, "", 0));
    TRY("delete_module", syscall(SYS_delete_module, "quickstart_no_such", O_NONBLOCK));
    /* A magic number that is none. */
    TRY("reboot", syscall(SYS_reboot, 1, 2, 3, NULL));
    TRY("syslog", syscall(SYS_syslog, 10, NULL, 0));
    TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
    TRY("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
    TRY("swapon", syscall(SYS_swapon, "/nowhere", 0));
    TRY("swapoff", syscall(SYS_swapoff, "/nowhere"));
    TRY("acct", syscall(SYS_acct, "/nowhere"));
    TRY("quotactl", syscall(SYS_quotactl, 0, NULL, 0, NULL));
    /* Clocks that are none. */
    TRY("clock_settime", syscall(SYS_clock_settime, 99, NULL));
    TRY("clock_adjtime", syscall(SYS_clock_adjtime, 99, NULL));
    TRY("settimeofday", syscall(SYS_settimeofday, NULL, NULL));
    TRY("adjtimex", syscall(SYS_adjtimex, NULL));
    TRY("sethostname", syscall(SYS_sethostname, "", -1));
    TRY("setdomainname", syscall(SYS_setdomainname, "", -1));
}

static void processes(void) {
    char byte = 0;
    uintptr_t vector[2] = {(uintptr_t)&byte, 1};
    unsigned char handle[16] = {8, 0, 0, 0, 1, 0, 0, 0};
    TRY_APART("ptrace", ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    TRY("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), vector, 1, vector, 1, 0));
    TRY("process_vm_writev", syscall(SYS_process_vm_writev, getpid(), vector, 1, vector, 1, 0));
    TRY("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 2, 0, 0));
    TRY("pidfd_getfd", syscall(438, -1, 0, 0));
    TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, handle, O_RDONLY));
    /* Descriptor 0 is a pipe here. */
    TRY("TIOCSTI", ioctl(0, 0x5412, "x"));
    TRY("TIOCSTI-high", syscall(SYS_ioctl, 0, 0x100005412UL, "x"));
    TRY("TIOCSETD", ioctl(0, 0x5423, &(int){0}));
    TRY("TIOCLINUX", ioctl(0, 0x541c, "x"));
    char snapshot[4096] = {0};
    TRY("btrfs-snapshot", ioctl(0, 0x50009401, snapshot));
    TRY("btrfs-snapshot-2", ioctl(0, 0x50009417, snapshot));
    TRY("btrfs-destroy", ioctl(0, 0x5000940f, snapshot));
    TRY("btrfs-destroy-2", ioctl(0, 0x5000943f, snapshot));
    int own = open("/proc/1/exe", O_RDONLY);
    say("first-program", own);
    TRY("first-root", open("/proc/1/root/bin", O_RDONLY));
}

static void devices(void) {
    unlink("/tmp/disk");
    TRY("mknod-disk", mknod("/tmp/disk", S_IFBLK | 0600, makedev(7, 0)));
    TRY("mknod-mem", mknod("/tmp/mem", S_IFCHR | 0600, makedev(1, 1)));
    /* The modes and owner that they have. */
    TRY("chmod-null", chmod("/dev/null", 0666));
    TRY("chown-null", chown("/dev/null", 0, 0));
    TRY("write-null", open("/dev/null", O_WRONLY));
    TRY("write-sys", open("/sys/x", O_WRONLY | O_CREAT, 0600));
    /* Opened, not written to. */
    TRY("core_pattern", open("/proc/sys/kernel/core_pattern", O_WRONLY));
    TRY("sysrq", open("/proc/sysrq-trigger", O_WRONLY));
    TRY("uid_map", open("/proc/self/uid_map", O_WRONLY));
    /* Interpreters for other programs, which are all the host's before Linux 6.7. */
    TRY("binfmt-register", open("/proc/sys/fs/binfmt_misc/register", O_WRONLY));
    TRY("binfmt-new", open("/proc/sys/fs/binfmt_misc/quickstart", O_WRONLY | O_CREAT, 0600));
    TRY_APART("binfmt-mount", mount("none", "/tmp", "binfmt_misc", 0, NULL));
    TRY("binfmt-fsopen", syscall(430, "binfmt_misc", 0));
}

static void sockets(const char *abstract) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(abstract);
    memcpy(address.sun_path + 1, abstract, bytes);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    say("unix", fd);
    if (fd >= 0) TRY("abstract", connect(fd, (struct sockaddr *)&address, (socklen_t)(sizeof(sa_family_t) + 1 + bytes)));
    /* One of two that are connected can send to any name, and get descriptors (unix(7)). */
    int pair[2] = {-1, -1};
    say("pair", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    if (fd < 0 && pair[0] >= 0)
        TRY("pair-abstract", sendto(pair[0], "", 1, 0, (struct sockaddr *)&address, (socklen_t)(sizeof(sa_family_t) + 1 + bytes)));
    TRY("pair-tipc", socketpair(30, SOCK_SEQPACKET, 0, pair));
    TRY("inet", socket(AF_INET, SOCK_STREAM, 0));
    TRY("inet6", socket(AF_INET6, SOCK_STREAM, 0));
    TRY("udp", socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 17));
    TRY("tcp", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 6));
    TRY("udplite", socket(AF_INET, SOCK_DGRAM, 136));
    TRY("mptcp", socket(AF_INET6, SOCK_STREAM, 262));
    TRY("sctp", socket(AF_INET, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    TRY("dccp", socket(AF_INET, 6, 33));
    TRY("packet", socket(AF_PACKET, SOCK_RAW, 0));
    TRY("alg", socket(38, SOCK_SEQPACKET, 0));
    TRY("vsock", socket(40, SOCK_STREAM, 0));
    TRY("netlink-route", socket(16, SOCK_RAW, 0));
    TRY("netlink-audit", socket(16, SOCK_RAW, 9));
}

#ifdef __x86_64__
static long old_call(long number) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number) : "memory", "r8", "r9", "r10", "r11");
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
#endif

int main(int count, char **words) {
    mounts();
    namespaces();
    kernel();
    processes();
    devices();
    sockets(count > 1 ? words[1] : "none");
#ifdef __x86_64__
    TRY_APART("i386", old_call(20));
    TRY("x32", syscall(0x40000000 | SYS_getpid));
#endif
    return 0;
}
