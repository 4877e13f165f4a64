/* Capabilities (capabilities(7)): root keeps those that it needs to unpack packages and run their scripts, and none beyond files. */
#define _GNU_SOURCE
#include "confiner.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* For owners and modes, for programs of other users, and for chroot(2): a process that leaves its chroot is still in the image. */
static const int KEPT[] = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETFCAP, CAP_SYS_CHROOT,
};

static uint64_t kept(void) {
    uint64_t all = 0;
    for (unsigned each = 0; each < sizeof KEPT / sizeof KEPT[0]; each++) all |= UINT64_C(1) << KEPT[each];
    return all;
}

/* Where core_pattern is a pipe (systemd-coredump, apport), root of the host parses the core, whatever the limit is, unless it is 1
   (do_coredump() in fs/coredump.c). Without CAP_SYS_RESOURCE, no process here can raise the limit again. */
static void leave_no_core(void) {
    struct rlimit core;
    must(getrlimit(RLIMIT_CORE, &core), "the limit of cores");
    if (core.rlim_max > 1) core.rlim_max = 1;
    core.rlim_cur = core.rlim_max;
    must(setrlimit(RLIMIT_CORE, &core), "the limit of cores");
}

void give_up_rights(bool network) {
    leave_no_core();
    for (int each = 0; each < 64; each++) {
        int has = prctl(PR_CAPBSET_READ, each, 0, 0, 0);
        if (has > 0 && !(kept() >> each & 1)) must(prctl(PR_CAPBSET_DROP, each, 0, 0, 0), "the bounding set");
    }
    must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "the ambient set");
    /* Now we still may install it without no_new_privs. With that, setuid programs would not work as on a machine. */
    refuse_calls(network);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    must((int)syscall(SYS_capget, &header, data), "capget");
    for (int half = 0; half < 2; half++) {
        uint32_t mask = (uint32_t)(kept() >> (32 * half));
        data[half].permitted &= mask;
        data[half].effective = data[half].permitted;
        data[half].inheritable = 0;
    }
    must((int)syscall(SYS_capset, &header, data), "capset");
}
