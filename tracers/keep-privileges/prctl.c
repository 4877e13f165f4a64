// A library for strace. With --seccomp-bpf strace sets no_new_privs (prctl(2)) before it installs its filter and executes the program. The
// attribute would be inherited by the whole machine: setuid programs and file capabilities would lose their effect, and the reference boot
// would not be a boot of the image. Root may install a filter without it (seccomp(2)), so this prctl leaves the attribute alone.

#define _GNU_SOURCE

#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARGUMENTS = 4 };

int prctl(int option, ...) {
    unsigned long words[ARGUMENTS];
    va_list more;
    va_start(more, option);
    for (int each = 0; each < ARGUMENTS; each++) words[each] = va_arg(more, unsigned long);
    va_end(more);
    if (option == PR_SET_NO_NEW_PRIVS) return 0;
    return (int)syscall(SYS_prctl, option, words[0], words[1], words[2], words[3]);
}
