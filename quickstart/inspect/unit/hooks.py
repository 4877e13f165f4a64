"""Check the scripts that ifupdown and its DHCP client run while they bring the network up (interfaces(5),
dhclient-script(8)).

In a stock boot, these scripts run before an application that starts after the network. Init brings the network up
without the scripts. Most scripts only set up the interface, and an early start can do without such scripts. But a
script that loads a packet filter must run before the application, so a build refuses an image with such a script.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.delivered import changed
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.dhcpconf import (
    fixed_name_servers,
    other_dhclient_statement,
    other_dhcpcd_line,
    takes_name_servers,
    takes_name_servers_of_dhcpcd,
)
from quickstart.inspect.unit.ifcommands import is_harmless
from quickstart.parse.printable import brief

# ifup(8): each executable of these directories runs for each interface.
_IF_UP = (PurePosixPath("/etc/network/if-pre-up.d"), PurePosixPath("/etc/network/if-up.d"))
# dhclient-script(8) reads each file of these, executable or not.
_DHCLIENT = tuple(PurePosixPath(f"/etc/dhcp/dhclient-{kind}-hooks.d") for kind in ("enter", "exit"))
# dhcpcd-run-hooks(8) reads each of these.
_DHCPCD = (PurePosixPath("/usr/lib/dhcpcd/dhcpcd-hooks"),)
# udhcpc(8), as ifupdown calls it.
_UDHCPC = PurePosixPath("/etc/udhcpc/default.script")
HOOKS = (*_IF_UP, *_DHCLIENT, *_DHCPCD)
# The administrator's own scripts, which belong to no package (dhclient-script(8), dhcpcd-run-hooks(8)).
OWN_HOOKS = tuple(
    map(
        PurePosixPath,
        (
            *("/etc/dhcp/dhclient-enter-hooks", "/etc/dhcp/dhclient-exit-hooks"),
            *("/etc/dhcpcd.enter-hook", "/etc/dhcpcd.exit-hook"),
        ),
    )
)
_DHCLIENT_CONF = PurePosixPath("/etc/dhcp/dhclient.conf")
_DHCPCD_CONF = PurePosixPath("/etc/dhcpcd.conf")
# ifupdown uses the first of these programs that exists.
_DHCLIENT_PROGRAM, _UDHCPC_PROGRAM, _DHCPCD_PROGRAM = (
    PurePosixPath(f"/sbin/{name}") for name in ("dhclient", "udhcpc", "dhcpcd")
)
_RESOLV_CONF = PurePosixPath("/etc/resolv.conf")
# resolv.conf(5)
_NAME_SERVER = re.compile(r"^nameserver[ \t]+(\S+)", re.MULTILINE)
# dhcpcd's hook that writes /etc/resolv.conf, the administrator's additions to that file, and the program that the
# hook calls instead.
_DHCPCD_WRITER = _DHCPCD[0] / "20-resolv.conf"
OWN_NAME_SERVERS = (PurePosixPath("/etc/resolv.conf.head"), PurePosixPath("/etc/resolv.conf.tail"))
RESOLVCONF = tuple(
    PurePosixPath(f"/usr/{place}/resolvconf") for place in ("sbin", "bin", "local/sbin", "local/bin")
)
_RESOLVED = PurePosixPath("/usr/lib/systemd/systemd-resolved")
_OF_RESOLVED = ("resolved", "resolved-enter")
_STATUS = PurePosixPath("/var/lib/dpkg/status")
_CONFFILE = re.compile(r"^ (/etc/(?:network|dhcp|udhcpc)/\S+) ([0-9a-f]{32})\b", re.MULTILINE)
# interfaces(5). The files that init compares at boot, and files that only a running machine has.
_SOURCED = re.compile(
    r"source\s+(?:/etc/network/)?interfaces\.d/[^\s/]+|source-directory\s+(?:/etc/network/)?interfaces\.d/?"
    r"|source(?:-directory)?\s+/run/network/\S+"
)
_INTERFACES = PurePosixPath("/etc/network/interfaces")
_MORE_INTERFACES = PurePosixPath("/etc/network/interfaces.d")
_MAPPING = re.compile(r"\s*mapping\b")
# Init sets up IPv4 by DHCP only, and leaves IPv6 to the kernel. These lines ask for something else.
_NO_DHCP = re.compile(
    r"\s*iface\s+\S+\s+(?:inet\s++(?!dhcp\b|loopback\b)|inet6\s++(?!auto\b|dhcp\b|loopback\b))|\s*(?:accept_ra|autoconf)\s+0\b|\s*(?:bridge[_-]ports|bond[_-]\S+|hwaddress|client|vendor)\b"
)
# The first words of allowed lines. Scripts of packages obey further words, such as `ip-rp-filter` of vlan. Words with
# dns-… are for resolvconf, those with ethernet-… and the like for ethtool, and those with wpa-… and wireless-… for
# wireless cards.
_KNOWN_LINE = re.compile(
    r"(?:auto|allow-\S+|iface|source|source-directory|template|rename|no-auto-down|no-scripts"
    r"|(?:pre-|post-)?(?:up|down)|hostname|metric|leasehours|leasetime|mtu|txqueuelen|description|dhcp|request_prefix"
    r"|accept_ra|autoconf|(?:ll|dad)-(?:attempts|interval)|address|netmask|network|broadcast|gateway"
    r"|(?:dns|ethernet|link|offload|hardware|wpa|wireless)[-_]\S+)(?:\s.*)?|privext\s+0|#.*|"
)
# run-parts(8) ignores all other names.
_RUN = re.compile(r"[A-Za-z0-9_-]+")
_FILTER = re.compile(
    r"\b(?:ip6?tables|nft|ebtables|arptables|ipset|iptables-restore|ip6tables-restore|netfilter-persistent|ferm|shorewall|ufw|firehol)\b"
)
_OPTION = re.compile(r"\s*(?:pre-up|up|post-up)\s+(.*)")
# udev(7)
OWN_RULES = (PurePosixPath("/etc/udev/rules.d"), PurePosixPath("/usr/local/lib/udev/rules.d"))
_RULES = PurePosixPath("/usr/lib/udev/rules.d")
# udev(7): each of these runs a program, with the words between the quotation marks.
_RULE_COMMAND = re.compile(
    r"""\b(?:RUN|RUN\{program\}|PROGRAM|IMPORT\{program\})\s*(?:[+:]?=|==|!=)\s*e?"((?:[^"\\]|\\.)*)\"?"""
)
# The device's name, of at most 1,023 characters (udev's UTIL_PATH_SIZE).
_RULE_ADDRESS = re.compile(r"\bATTR\{(?:\[[^\]\n]{0,1023}\])?(?:address|flags)\}\s*[+:]?=(?!=)|\bSYSCTL\{")
# The limit for all files together. Debian's own files have a few KiB.
_MOST_BYTES = 1 << 20
_MOST_FILES = 256


def refuse_hooks(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a script or command of ifupdown or its DHCP client that loads or may load a packet
    filter. The function assumes that a script may load a packet filter when the script belongs to no package or was
    changed. The function also assumes that a command may load a packet filter unless the command is on the list of
    harmless commands (``ifcommands``). The function checks the commands in a file of udev rules in the same way as
    ifupdown's commands, unless the file is the same as in its package.

    Also raises UnsupportedUnitError for a configuration that names other scripts or files, because init would not
    compare these scripts or files at boot. Finally, raises UnsupportedUnitError for a configuration that gives the
    machine another network than init's DHCP client does, for example a fixed address.
    """
    scripts, interfaces = _few(unit, _scripts(root)), _few(unit, interface_files(root))
    dhclient, dhcpcd = (_regular(root, path) for path in (_DHCLIENT_CONF, _DHCPCD_CONF))
    configurations = [path for path in (dhclient, dhcpcd) if path is not None]
    rules = _few(unit, udev_rules(root))
    _refuse_long(root, unit, (*scripts, *interfaces, *configurations, *rules))
    others = _not_delivered(root, scripts)
    for script in scripts:
        if script in others or _FILTER.search(root.read_bytes(script).decode(errors="replace")):
            raise _refusal(unit, f"{script} runs before it, and may set up a packet filter")
    for path in OWN_HOOKS:
        if root.resolve(path).canonical is not None:
            raise _refusal(unit, f"{path} runs before it, and may set up a packet filter")
    for file, other_words in ((dhclient, other_dhclient_statement), (dhcpcd, other_dhcpcd_line)):
        if file is not None and (other := other_words(root.read_text(file))):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {file} has `{brief(other)}`, and init's DHCP client does not do that",
                hint="remove it from that file in the image",
            )
    for file in rules:
        for command in _RULE_COMMAND.findall(_joined(root.read_text(file))):
            if not is_harmless(command):
                raise _refusal(
                    unit, f"{file} runs `{brief(command.strip())}`, which may set up a packet filter"
                )
        if _RULE_ADDRESS.search(_joined(root.read_text(file))):
            raise _refusal(unit, f"{file} gives a network card another address or setting")
    for file in interfaces:
        lines = _joined(root.read_text(file)).splitlines()
        for why_not, line in itertools.product((_why_not, _why_unknown), lines):
            if why := why_not(line):
                raise _refusal(unit, f"{file} has `{brief(line.strip())}`, {why}")


def _joined(text: str) -> str:
    """``text`` with its continued lines joined. The result has two versions, one after the other. The first version
    joins the lines by a blank, and the second version joins them without a blank. A ``text`` without continued lines
    is returned unchanged.
    """
    continued = "\\\n"
    ways = [text.replace(continued, blank) for blank in (" ", "")]
    return "\n".join(ways) if continued in text else text


def _regular(root: ImageRoot, path: PurePosixPath) -> PurePosixPath | None:
    file = root.resolve(path).canonical
    return file if file is not None and root.host(file).is_file() else None


def _why_not(line: str) -> str:
    """The reason why the line ``line`` of ifupdown's configuration rules out an early start (interfaces(5)). The reason
    is worded as the end of a sentence. The result is empty when the line does not rule out an early start.
    """
    option = _OPTION.fullmatch(line)
    if option and not is_harmless(option[1]):
        return "which may set up a packet filter"
    words = line.strip()
    if words.startswith("source") and not _SOURCED.fullmatch(words):
        return "and that file is not compared at boot"
    if _NO_DHCP.match(line):
        return "and init's network is that of DHCP"
    return "and its script is not run" if _MAPPING.match(line) else ""


def _why_unknown(line: str) -> str:
    return "" if _KNOWN_LINE.fullmatch(line.strip()) else "and what obeys this is not run before it"


def _refusal(unit: str, why: str) -> UnsupportedUnitError:
    return UnsupportedUnitError(
        f"{unit} cannot be started early: {why}",
        hint="remove it from the image, and filter outside of the machine",
    )


def _few(unit: str, files: Iterator[PurePosixPath]) -> tuple[PurePosixPath, ...]:
    """``files`` without duplicates. Raises UnsupportedUnitError for more files than the limit allows."""
    found = tuple(dict.fromkeys(itertools.islice(files, _MOST_FILES + 1)))
    if len(found) > _MOST_FILES:
        raise _refusal(unit, f"the image's network has more than {_MOST_FILES} scripts and files")
    return found


def _refuse_long(root: ImageRoot, unit: str, files: Iterable[PurePosixPath]) -> None:
    left_bytes = _MOST_BYTES
    for file in files:
        left_bytes -= root.host(file).stat().st_size
        if left_bytes < 0:
            raise _refusal(unit, f"{file} is too long to be looked through for a packet filter")


def _not_delivered(root: ImageRoot, scripts: Sequence[PurePosixPath]) -> frozenset[PurePosixPath]:
    """The scripts that belong to no package, or that differ from what their package has delivered."""
    packaged, digests = owners(root, scripts), _conffiles(root) if scripts else {}
    conffiles = {script for script in scripts if script.parts[1] != "usr"}
    edited = {
        script
        for script in conffiles
        if digests.get(str(script), _digest(root, script)) != _digest(root, script)
    }
    return changed(root, {*scripts} - conffiles) | edited | {*scripts} - {*packaged}


def _conffiles(root: ImageRoot) -> Mapping[str, str]:
    """The hexadecimal MD5 sums of the packages' configuration files in /etc/network, /etc/dhcp and /etc/udhcpc, by
    path. Each sum is that of the file as its package delivered it (deb-conffiles(5)).
    """
    status = root.resolve(_STATUS).canonical
    return dict(_CONFFILE.findall(root.read_text(status))) if status else {}


def _digest(root: ImageRoot, file: PurePosixPath) -> str:
    return hashlib.md5(root.read_bytes(file), usedforsecurity=False).hexdigest()


def _scripts(root: ImageRoot) -> Iterator[PurePosixPath]:
    if (own := root.resolve(_UDHCPC).canonical) is not None:
        yield own
    for hooks in HOOKS:
        place = root.resolve(hooks).canonical
        for name in sorted(root.names(place)) if place is not None and root.host(place).is_dir() else ():
            script = root.resolve(place / name).canonical if place is not None else None
            if script is None or not root.host(script).is_file():
                continue
            if hooks in _DHCPCD:
                yield script
            elif not _RUN.fullmatch(name):
                continue
            elif hooks in _DHCLIENT or root.host(script).stat().st_mode & 0o111:
                yield script


def interface_files(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The canonical paths of ifupdown's configuration files (interfaces(5)): /etc/network/interfaces, and the
    files in interfaces.d.
    """
    more = root.resolve(_MORE_INTERFACES).canonical
    names = sorted(root.names(more)) if more is not None and root.host(more).is_dir() else ()
    for path in (_INTERFACES, *(_MORE_INTERFACES / name for name in names)):
        file = root.resolve(path).canonical
        if file is not None and root.host(file).is_file():
            yield file


def udev_rules(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The files of udev rules that no package has delivered in this form. These are all rules files of the
    administrator. A rules file in the packages' directory is also one of these files if it belongs to no package or
    differs from the file in its package.
    """
    paths = [path for place in OWN_RULES for path in root.glob(place / "*.rules")]
    by_packages = [
        file for path in root.glob(_RULES / "*.rules") if (file := _regular(root, path)) is not None
    ]
    for path in (*paths, *sorted(changed(root, by_packages))):
        file = root.resolve(path).canonical
        if file is not None and root.host(file).is_file():
            yield file


def writes_resolver(root: ImageRoot) -> bool:
    """Whether ifupdown's DHCP client writes the name servers of a lease into /etc/resolv.conf unchanged. In this case,
    init also writes the name servers into the file (take_resolver in initramfs/init/second).

    The result is false for an image whose ifupdown uses udhcpc, because we do not know what the image's own script of
    udhcpc does.
    """
    if _is_there(root, _DHCLIENT_PROGRAM):
        return _dhclient_writes(root)
    return not _is_there(root, _UDHCPC_PROGRAM) and _is_there(root, _DHCPCD_PROGRAM) and _dhcpcd_writes(root)


def keeps_resolver(root: ImageRoot) -> bool:
    """Whether the image's /etc/resolv.conf has the right name servers for every boot. The result is true when
    dhclient's configuration sets the same name servers by `supersede`, or does not request name servers. In both cases,
    the name servers in the file do not depend on the lease, and init does not change the file.
    """
    file, conf = _regular(root, _RESOLV_CONF), _regular(root, _DHCLIENT_CONF)
    named = tuple(_NAME_SERVER.findall(root.read_text(file))) if file is not None else ()
    if not named or conf is None or not _is_there(root, _DHCLIENT_PROGRAM) or _has_other_writer(root):
        return False
    return fixed_name_servers(root.read_text(conf)) in ((), named)


def _dhclient_writes(root: ImageRoot) -> bool:
    conf = _regular(root, _DHCLIENT_CONF)
    return conf is not None and not _has_other_writer(root) and takes_name_servers(root.read_text(conf))


def _has_other_writer(root: ImageRoot) -> bool:
    """Whether a hook script of dhclient may write /etc/resolv.conf in another way than dhclient's own script. It is
    enough to check that no script mentions make_resolv_conf, because ``refuse_hooks`` accepts only scripts that are as
    a package has delivered them. The scripts for systemd-resolved, which come with the dhclient of Debian 13, do
    nothing without systemd-resolved.
    """
    idle = () if _is_there(root, _RESOLVED) else _OF_RESOLVED
    return any("make_resolv_conf" in root.read_text(each) for each in _scripts(root) if each.name not in idle)


def _dhcpcd_writes(root: ImageRoot) -> bool:
    """Whether dhcpcd's hook 20-resolv.conf writes /etc/resolv.conf itself. The result is false if the image has
    resolvconf(8), because the hook then calls resolvconf instead of writing the file.
    """
    conf = _regular(root, _DHCPCD_CONF)
    if conf is None or not _is_there(root, _DHCPCD_WRITER):
        return False
    own = any(_is_there(root, path) for path in (*OWN_NAME_SERVERS, *RESOLVCONF))
    return not own and takes_name_servers_of_dhcpcd(root.read_text(conf))


def _is_there(root: ImageRoot, path: PurePosixPath) -> bool:
    return root.resolve(path).canonical is not None
