// A library for strace: the prctl(2) by which strace --seccomp-bpf prepares the process that it traces.
//
// strace sets no_new_privs before it installs its filter. The attribute would be inherited by the whole machine: setuid programs and file
// capabilities would lose their effect, and the reference boot would not be a boot of the image. Root may install a filter without it
// (seccomp(2)), so this prctl leaves the attribute alone.
//
// strace's filter stops a process for every call in a set, whatever the call's arguments are. In a boot, a third of these calls name no file,
// such as stat of a descriptor, and mappings that are not executable. Other calls do not tell whether the network is used, such as data for a
// connected socket, and options of other levels than IP. This prctl puts a filter in front that lets all these calls pass.
//
// A filter sees a name's address only. So a newfstatat(2) with AT_EMPTY_PATH passes even if its name is not empty, and the trace does not have
// this look-up.

#define _GNU_SOURCE

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARGUMENTS = 4, ARGUMENT_BYTES = 8 };

// The low half of an argument, on a little-endian machine.
#define ARGUMENT(number) ((unsigned)offsetof(struct seccomp_data, args) + (number)*ARGUMENT_BYTES)
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)

static const struct sock_filter passing[] = {
    LOAD(offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 17),
    LOAD(offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 0, 2),
    LOAD(ARGUMENT(3)),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, AT_EMPTY_PATH, 12, 13),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 2),
    LOAD(ARGUMENT(4)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 9, 10),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
    LOAD(ARGUMENT(1)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_IP, 7, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_IPV6, 6, 5),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 5),
    LOAD(ARGUMENT(2)),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 2),
    LOAD(ARGUMENT(3)),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
enum { PASSING = sizeof passing / sizeof *passing };

static int set_filter(unsigned long mode, const struct sock_fprog *given) {
    struct sock_filter whole[BPF_MAXINSNS];
    struct sock_fprog program = *given;
    if (given->len <= BPF_MAXINSNS - PASSING) {
        memcpy(whole, passing, sizeof passing);
        memcpy(whole + PASSING, given->filter, given->len * sizeof *whole);
        program = (struct sock_fprog){(unsigned short)(given->len + PASSING), whole};
    }
    return (int)syscall(SYS_prctl, PR_SET_SECCOMP, mode, &program, 0, 0);
}

int prctl(int option, ...) {
    unsigned long words[ARGUMENTS];
    va_list more;
    va_start(more, option);
    for (int each = 0; each < ARGUMENTS; each++) words[each] = va_arg(more, unsigned long);
    va_end(more);
    if (option == PR_SET_NO_NEW_PRIVS) return 0;
    if (option == PR_SET_SECCOMP && words[0] == SECCOMP_MODE_FILTER && words[1]) return set_filter(words[0], (const struct sock_fprog *)words[1]);
    return (int)syscall(SYS_prctl, option, words[0], words[1], words[2], words[3]);
}
