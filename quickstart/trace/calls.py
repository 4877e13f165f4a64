"""Find out what kind of action a system call in a log of strace is. This module has no side effects."""

from __future__ import annotations

import re

from quickstart.model import Op
from quickstart.trace.strace import Call

OPENS = frozenset({"open", "openat", "openat2", "creat"})
# Calls that tell whether a process uses the network. None of them has a path.
ASKING = frozenset({"socket", "connect", "bind", "sendto", "setsockopt", "ioctl"})
_EXECS = frozenset({"execve", "execveat"})
_CHANGES = frozenset(
    {
        *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat"),
        *("mknod", "mknodat", "unlink", "unlinkat", "rmdir", "truncate", "chmod", "fchmodat", "fchmodat2"),
        *("chown", "lchown", "fchownat", "utime", "utimes", "utimensat", "futimesat"),
        *("setxattr", "lsetxattr", "removexattr", "lremovexattr"),
    }
)
_WRITE_FLAGS = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC)\b")
_NEW_CONTENT_FLAGS = re.compile(r"\bO_(?:TRUNC|EXCL)\b")
# netdevice(7): the addresses of all cards, and of one.
_ADDRESSES = re.compile(r", SIOCGIF(?:CONF|ADDR|DSTADDR|BRDADDR|NETMASK)\b")
_FAMILY = "{sa_family=AF_INET"
# The address in connect(2) and bind(2), and the last address in sendto(2). Each is matched at one place of the
# arguments.
_ADDRESS = (
    rf"{re.escape(_FAMILY)}6?, [^\"]{{0,100}}?(?:inet_addr\(|inet_pton\(AF_INET6, )\"([0-9a-f:.]{{2,45}})\""
)
_NAMED = re.compile(rf"[0-9]+(?:<[^>]*+>)?, {_ADDRESS}")
_SENT_TO = re.compile(rf"{_ADDRESS}[^{{}}]{{0,100}}\}}, [0-9]+")
# ip(7), ipv6(7): the kernel looks for the card, or for its address.
_GROUPS = re.compile(
    r"[0-9]+(?:<[^>]*+>)?, SOL_IP(?:V6)?, (?:IP(?:V6)?_(?:ADD_(?:SOURCE_)?MEMBERSHIP|JOIN_GROUP|MULTICAST_IF|JOIN_ANYCAST)"
    r"|MCAST_JOIN_(?:SOURCE_)?GROUP)\b"
)
# nscd(8) and unscd(8), which look up names, users and groups for a process.
NAME_CACHE = "/run/nscd/socket"
_TO_CACHE = re.compile(rf"[0-9]+(?:<[^>]*+>)?, \{{sa_family=AF_UNIX, sun_path=\"(?:/var)?{NAME_CACHE}\"\}}, ")
_NEEDLESS = re.compile(
    r"systemctl\", \[\"[^\"]{0,4096}\", \"(?:(?:unset-environment|reset-failed)\""
    r"|-p\", \"LoadState\", \"--value\", \"show\", \"[^\"]{1,255}\.service\"\])"
)
_OWN = re.compile(r"(?:::ffff:)?(?:127\..*|0\.0\.0\.0)|::1?")


def uses_network(call: Call) -> bool:
    """Whether ``call`` shows that a process uses the network. ``call`` must be one of the system calls in the set
    ``ASKING``.

    A process uses the network if it asks for the machine's addresses and routes (rtnetlink(7), netdevice(7)), or if it
    binds a socket to one of the machine's addresses other than loopback. A process also uses the network if it joins a
    multicast group, or if it connects or sends to another machine.

    A call that failed also counts, because the machine of the reference boot may not have the address. strace does not
    record sendmsg(2), because most calls of sendmsg(2) only send messages to the message bus.
    """
    if call.name == "socket":
        # For getifaddrs(3), and for getaddrinfo(3) with AI_ADDRCONFIG.
        return call.error is None and "AF_NETLINK" in call.arguments and "NETLINK_ROUTE" in call.arguments
    if call.name == "ioctl":
        return _ADDRESSES.search(call.arguments) is not None
    if call.name == "setsockopt":
        return _GROUPS.match(call.arguments) is not None
    if call.name == "sendto":
        at = call.arguments.rfind(_FAMILY)
        named = _SENT_TO.fullmatch(call.arguments, at) if at >= 0 else None
    else:
        named = _NAMED.match(call.arguments)
    return named is not None and _OWN.fullmatch(named[1]) is None


def asks_cache(call: Call) -> bool:
    """Whether ``call`` has connected a process to nscd or unscd, the daemons that look up names for other processes."""
    return call.name == "connect" and call.error is None and _TO_CACHE.match(call.arguments) is not None


def is_bare(call: Call) -> bool:
    """Whether ``call`` has executed a program with another environment than the environment of its unit. systemd always
    sets INVOCATION_ID in the unit's environment (systemd.exec(5)), so an environment without this variable is another
    environment. The result is False when strace could not read the environment.
    """
    return call.name in _EXECS and call.arguments.endswith("]") and '"INVOCATION_ID=' not in call.arguments


def is_needless(call: Call) -> bool:
    """Whether ``call`` has executed a command of systemctl that an early start, which comes before systemd, can do without.

    - A command makes systemd forget a variable or a failed start. In an early start, systemd has nothing to forget, so
      the command would have no effect. The function is_needless_early in inspect/unit/commands.py finds such commands in
      unit files.
    - Debian's functions for init scripts (/lib/lsb/init-functions.d/40-systemd) ask systemd whether the script's unit is
      masked. They do so only if systemd runs. An early start has compared the unit's masks before.
    """
    return call.name in _EXECS and _NEEDLESS.search(call.arguments) is not None


def gives_content(flags: str) -> bool:
    # A file of O_TMPFILE has no name. The path is that of its directory.
    return _NEW_CONTENT_FLAGS.search(flags) is not None and "O_TMPFILE" not in flags


def operation(name: str, flags: str) -> Op:
    if name in _EXECS:
        return Op.EXEC
    if name in OPENS and "O_TMPFILE" in flags:
        # The file has no name; the path is its directory's.
        return Op.LOOKUP
    if name in OPENS:
        return Op.WRITE if name == "creat" or _WRITE_FLAGS.search(flags) else Op.OPEN
    if name == "getdents64":
        return Op.LIST
    if name == "mmap":
        return Op.MAP
    return Op.WRITE if name in _CHANGES else Op.LOOKUP
