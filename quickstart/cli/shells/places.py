"""Make the shell commands that run a shell on the guest's first serial line. The functions are pure."""

from __future__ import annotations

import shlex

TTY = "/dev/ttyS0"
# In a stock boot, systemd would start a login there, end our shell, and write its progress
# (systemd-debug-generator(8)).
OURS_ALONE = "systemd.mask=serial-getty@ttyS0.service systemd.show_status=false"
ATTACHED = b"attached\n"
HOOK = "hooks/90-shell"


def _modes(terminal: bool, size: tuple[int, int]) -> str:
    """The arguments of stty for the serial line. When the user has no terminal but gives a script, the output
    arrives unchanged, without an echo of the script.
    """
    rows, columns = size
    return f"sane rows {rows} cols {columns}" if terminal else "sane -echo -onlcr"


# The kernel writes between the bytes of a program's queue, into the middle of its lines. dmesg has all messages.
_KERNEL_QUIET = """\
read -r level rest </proc/sys/kernel/printk
echo 1 >/proc/sys/kernel/printk
"""
_KERNEL_AS_BEFORE = 'echo "$level" >/proc/sys/kernel/printk\n'


def guest_program(terminal: bool, size: tuple[int, int], term: str) -> str:
    """The command that the launch agent executes in the running guest. The command prints the text in the constant
    ATTACHED, and then runs a root shell on the serial line. The command ends with the shell's status.

    When the user gives a script instead of a terminal, the shell reads the script from the serial line as it would read
    a file, without a prompt. The shell must see the end of the script. So the line stays in canonical mode, in which
    Ctrl-D ends the input.
    """
    shell = (
        f'TERM={shlex.quote(term)}; export TERM; [ -x "${{SHELL:=/bin/bash}}" ] || SHELL=/bin/sh; export SHELL; set -- "$SHELL" -i'
        if terminal
        else f"set -- sh {TTY}"
    )
    return f"""\
# Held open: a line that nobody has open loses what comes in.
exec 3<>{TTY}
stty {_modes(terminal, size)} <&3 || exit
{_KERNEL_QUIET}cd
{shell}
echo attached
setsid -w -c "$@" <&3 >&3 2>&3 3>&-
status=$?
# Returns when all that the shell wrote is out.
stty sane <&3
{_KERNEL_AS_BEFORE}exit $status
"""


def initramfs_hook(mark: str, terminal: bool, size: tuple[int, int], term: str) -> str:
    """The text of a hook that our init sources when it has loaded all drivers. The hook prints ``mark``, and then runs
    a shell. When the shell ends, init continues.

    The hook makes links for all BusyBox applets below /launch (in memory), because our initramfs has links for only
    some of them.
    """
    words = "sh -i" if terminal else f"sh {TTY}"
    return f"""\
(
	mkdir -p /launch/bin
	"$Q/busybox" --install -s /launch/bin
	PATH=$PATH:/launch/bin TERM={shlex.quote(term)} HOME=/
	export PATH TERM HOME Q
{_KERNEL_QUIET}	stty {_modes(terminal, size)} <{TTY}
	echo {mark} >{TTY}
	setsid -c {words} <{TTY} >{TTY} 2>&1
	stty sane <{TTY}
{_KERNEL_AS_BEFORE})
"""
