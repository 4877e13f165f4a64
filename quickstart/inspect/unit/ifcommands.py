"""List the commands of ifupdown and udev that an early start can do without (ip-link(8), ifconfig(8), ethtool(8)).

These commands only set up the network card, and an application can do without their settings for some seconds. A
command that is not on the list may filter packets or give the application another network, so an early start cannot do
without such a command.
"""

from __future__ import annotations

import re

# Names of the card, to ifupdown and to udev.
_PLAIN = re.compile(r"\$IFACE\b|\$\{IFACE\}|\$name\b|%[kn]\b|[12]?>(?:/dev/null|&1)")
# A shell command that writes into a disk's own settings, as in udev's rules for disks.
_SHELL = re.compile(r"(?:/usr)?/?(?:bin/)?(?:ba|da)?sh -c '([^']*)'")
_DISK_SETTING = re.compile(r" ?> ?/sys/(?:class/)?block/[\w%$.-]+/(?:queue|device)/[\w/]+")
_SEPARATORS = re.compile(r"\|\||&&|[;|&]")
_EXPANDING = re.compile(r"[`$(){}<>]")
_NAME = r"[A-Za-z0-9_.@-]+"
_LINK = r"(?:up|promisc (?:on|off)|multicast (?:on|off)|allmulticast (?:on|off)|(?:mtu|txqueuelen) \d+)"
_COMMANDS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"ip(?: -[46])? link set(?: dev)? {_NAME}(?: {_LINK})+",
        rf"ifconfig {_NAME}(?: (?:up|-?promisc|-?multicast|-?allmulti|(?:mtu|txqueuelen) \d+))+",
        # Offloads, rings, coalescing, pause frames, channels, speed, wake-on-LAN. Long names of other options are not
        # accepted.
        rf"ethtool (?:-[KGCALs]|--offload|--features|--set-ring|--coalesce|--pause|--set-channels|--change) {_NAME}"
        r"(?: [a-z0-9-]+)*",
        rf"iwconfig {_NAME}(?: [a-z]+ \w+)*",
        r"sleep [0-9.]+",
        r"true|:|echo(?: [\w./:-]+)*",
        r"(?:\[|test)(?: [\w./:=!-]+)*(?: \])?",
    )
)


def is_harmless(command: str) -> bool:
    """Whether ``command``, a line for a shell, consists only of commands on this module's list of harmless commands."""
    if shell := _SHELL.fullmatch(command.strip()):
        command = shell[1]
    command = _PLAIN.sub("x", _DISK_SETTING.sub("", command))
    if _EXPANDING.search(command):
        return False
    parts = (" ".join(each.split()) for each in _SEPARATORS.split(command))
    return all(_is_on_the_list(each) for each in parts if each)


def _is_on_the_list(command: str) -> bool:
    program, blank, words = command.partition(" ")
    bare = f"{program.rpartition('/')[2]}{blank}{words}"
    return any(pattern.fullmatch(bare) for pattern in _COMMANDS)
