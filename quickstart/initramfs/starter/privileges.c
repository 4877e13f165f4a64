/* Capabilities, user, secure bits, seccomp: credentials(7), capabilities(7). */
#include "starter.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the headers of Debian 12 (linux/prctl.h). */
#ifndef PR_SET_MDWE
enum { PR_SET_MDWE = 65, PR_MDWE_REFUSE_EXEC_GAIN = 1 };
#endif

enum { WORDS = _LINUX_CAPABILITY_U32S_3 };

struct sets {
    uint64_t effective, permitted, inheritable;
};

static struct sets get_sets(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[WORDS];
    if (syscall(SYS_capget, &header, data) < 0) fail("capget: %m");
    return (struct sets){data[0].effective | (uint64_t)data[1].effective << 32, data[0].permitted | (uint64_t)data[1].permitted << 32,
                         data[0].inheritable | (uint64_t)data[1].inheritable << 32};
}

static void put_sets(struct sets sets) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[WORDS];
    for (int i = 0; i < WORDS; i++) {
        data[i].effective = (uint32_t)(sets.effective >> 32 * i);
        data[i].permitted = (uint32_t)(sets.permitted >> 32 * i);
        data[i].inheritable = (uint32_t)(sets.inheritable >> 32 * i);
    }
    if (syscall(SYS_capset, &header, data) < 0) fail("capset: %m");
}

/* `bounding-set MASK`: drop all other capabilities. Those that are effective now go with the execve. */
void drop_bounding_set(const struct record *record) {
    uint64_t kept = hex(record->words[0]);
    for (unsigned long each = 0; prctl(PR_CAPBSET_READ, each) >= 0; each++)
        if (!(kept >> each & 1) && prctl(PR_CAPBSET_DROP, each) < 0) fail("PR_CAPBSET_DROP: %m");
    struct sets sets = get_sets();
    sets.inheritable &= kept;
    put_sets(sets);
}

static void raise_each(uint64_t wanted) {
    for (unsigned long each = 0; each < 64; each++)
        if ((wanted >> each & 1) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, each, 0, 0) < 0) fail("PR_CAP_AMBIENT_RAISE: %m");
}

/* `ambient MASK`: only capabilities in the bounding set are possible. */
static uint64_t ambient_wanted(const struct record *record) {
    uint64_t wanted = hex(record->words[0]), had = 0;
    for (unsigned long each = 0; each < 64; each++)
        if ((wanted >> each & 1) && prctl(PR_CAPBSET_READ, each) == 1) had |= UINT64_C(1) << each;
    return had;
}

void raise_ambient(const struct record *record) {
    struct sets sets = get_sets();
    uint64_t wanted = ambient_wanted(record);
    sets.inheritable |= wanted;
    put_sets(sets);
    raise_each(wanted);
}

/* Whether the process keeps the privilege to load filters. The execve takes it away, as it does with all permitted capabilities of an
   ordinary user that are not in the ambient set. */
static bool keeps_for_filters(void) {
    const struct record *record = next_record(NULL, "no-new-privileges");
    return record && strcmp(record->words[0], "after-filters") == 0;
}

/* setresuid(2) clears the ambient set and the effective set, and by default also the permitted set. */
void become_user(const struct record *record) {
    (void)record;
    const struct identity *who = identity();
    const struct record *ambient = next_record(NULL, "ambient"), *bits = next_record(NULL, "secure-bits");
    if (!who->name) return;
    if ((ambient || bits || keeps_for_filters()) && who->uid != 0 && prctl(PR_SET_KEEPCAPS, 1) < 0) fail("PR_SET_KEEPCAPS: %m");
    if (setresuid(who->uid, who->uid, who->uid) < 0) fail("setresuid: %m");
    if (ambient) raise_each(ambient_wanted(ambient));
    if (!keeps_for_filters()) return;
    struct sets sets = get_sets();
    sets.effective |= sets.permitted & UINT64_C(1) << CAP_SYS_ADMIN;
    put_sets(sets);
}

void set_secure_bits(const struct record *record) {
    struct sets sets = get_sets();
    sets.effective |= sets.permitted & UINT64_C(1) << CAP_SETPCAP;
    put_sets(sets);
    if (prctl(PR_SET_SECUREBITS, (unsigned long)hex(record->words[0])) < 0) fail("PR_SET_SECUREBITS: %m");
}

/* `always`, or `for-filters` and `after-filters`: an unprivileged process may install a filter only with no_new_privs. With
   `after-filters`, the process is still privileged (become_user), if it ever was. */
void no_new_privileges(const struct record *record) {
    bool privileged = get_sets().effective >> CAP_SYS_ADMIN & 1;
    if (strcmp(record->words[0], "always") != 0 && privileged) return;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) fail("PR_SET_NO_NEW_PRIVS: %m");
}

/* `seccomp PROGRAM`: each struct sock_filter of the program is 16 hexadecimal digits. */
void filter_calls(const struct record *record) {
    const char *digits = record->words[0];
    size_t count = strlen(digits) / 16;
    struct sock_filter *program = must(calloc(count + 1, sizeof *program));
    for (size_t i = 0; i < count; i++) {
        char one[17] = "";
        memcpy(one, digits + 16 * i, 16);
        uint64_t value = hex(one);
        program[i] = (struct sock_filter){(uint16_t)(value >> 48), (uint8_t)(value >> 40), (uint8_t)(value >> 32), (uint32_t)value};
    }
    struct sock_fprog whole = {(unsigned short)count, program};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) < 0) fail("PR_SET_SECCOMP: %m");
}

/* `deny-write-execute PROGRAM`: systemd 254 and later ask the kernel, and take a filter only of a kernel that cannot (before Linux 6.3). */
void deny_write_and_execute(const struct record *record) {
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0) return;
    if (errno != EINVAL) fail("PR_SET_MDWE: %m");
    filter_calls(record);
}
