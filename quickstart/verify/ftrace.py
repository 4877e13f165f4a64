"""The options that enable the guest kernel's own trace of a boot, and the command that fetches the trace.

The kernel's command line enables ftrace before the first driver is loaded (the kernel's Documentation/trace/ftrace.rst,
kprobetrace.rst). The guest needs no program for tracing. The trace uses the same clock as the time stamps of the launch
agent in the guest (CLOCK_BOOTTIME).
"""

from __future__ import annotations

NAME, DIRECT, FAULT = "qs_name", "qs_direct", "qs_fault"
# getname_flags() copies every path argument of a system call into the kernel. iomap_dio_rw() does all direct I/O (for pread, libaio
# and io_uring). filemap_fault() handles a mapped page that is not in memory.
TRACE_WORDS = (
    "trace_buf_size=24M",
    "trace_clock=boot",
    # A full buffer keeps its oldest entries, which are those of the boot before ready.
    "trace_options=nooverwrite",
    "trace_event=block:block_rq_issue,block:block_bio_queue,syscalls:*,sched:sched_process_fork",
    # Both functions are probed, because the compiler may inline one into the other.
    f"kprobe_event=r:quickstart/{NAME},getname_flags,name=+0(+0($retval)):string;"
    f"r:quickstart/{NAME}2,getname,name=+0(+0($retval)):string;"
    # These functions inline both functions above. Their second argument has the name.
    f"p:quickstart/{NAME}3,do_mkdirat,name=+0(+0(%si)):string;"
    f"p:quickstart/{NAME}4,do_unlinkat,name=+0(+0(%si)):string;"
    f"p:quickstart/{NAME}5,do_rmdir,name=+0(+0(%si)):string;"
    f"p:quickstart/{DIRECT},iomap_dio_rw;p:quickstart/{FAULT},filemap_fault",
)
# Calls that use no file, of which a runtime makes hundreds of thousands (a boot of RabbitMQ: 1.1 of its 1.5 million lines). The
# kernel's command line has no room for the names of the others.
_WITHOUT_FILES = "|".join(
    (
        *("futex", "sched_yield", "epoll_", "p?poll[( ]", "p?select6?[( ]", "nanosleep", "gettimeofday"),
        *("timerfd_", "timer_", "clock_", "rt_sig", "sigaltstack", "brk", "mprotect", "getpid", "gettid"),
        *("gete?[ug]id", "set_robust_list", "rseq", "getrandom", "[gs]etsockopt", "socket[( ]", "recvmsg"),
        *("recvfrom", "sendmsg", "sendto"),
    )
)
# The words count only behind the line's time. A process may have such words in its name, but the name has only 15
# bytes, without room for a time and a call.
_DROPPED_LINES = rf"[0-9]\.[0-9]{{6}}: sys_({_WITHOUT_FILES})"
# The guest runs this when it is ready. stderr gets the counts of lost entries, stdout the trace.
FETCH = f"""\
t=/sys/kernel/tracing
[ -e $t/trace ] || mount -t tracefs tracefs $t || exit 1
echo 0 >$t/tracing_on
cat $t/per_cpu/cpu*/stats >&2
LC_ALL=C grep -aEv '{_DROPPED_LINES}' $t/trace | gzip -c
"""
