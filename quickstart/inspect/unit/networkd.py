"""Check whether the image's configuration of systemd-networkd and netplan asks for more than an early start sets up
(systemd.network(5), systemd.link(5), netplan(5)).

Init gives the network card the address that DHCP offers, and sets up nothing else. When a configuration asks for more
(a fixed address, a bridge, a route), a stock boot gives the application another network than an early start does. The
reference boot does not show what a file configures for other network cards, so the build reads the files. At each boot
of a machine with cloud-init, init checks the same files with a shorter list of keywords (initramfs/init/cloud).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.dhcpconf import NO_NAME, HostName, NameRule, Sent
from quickstart.inspect.unit.files import sections, texts_of
from quickstart.inspect.unit.lines import first_fault
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.parse.printable import brief

_PLACES = ("/etc/systemd/network", "/usr/local/lib/systemd/network", "/usr/lib/systemd/network")
_PATTERNS = ("*.network", "*.netdev", "*.link", "*.network.d/*.conf", "*.link.d/*.conf", "*.netdev.d/*.conf")
_NETPLAN = ("/etc/netplan/*.yaml", "/usr/lib/netplan/*.yaml")
# The files of these packages are for containers and virtual machines of the machine.
_SYSTEMDS = frozenset({"systemd", "udev"})
_OF_MANAGER = tuple(
    f"{place}/systemd/{name}"
    for place in ("/etc", "/usr/local/lib", "/usr/lib")
    for name in ("networkd.conf", "networkd.conf.d/*.conf")
)
_FORWARDING = frozenset({"IPv4Forwarding", "IPv6Forwarding"})
# Settings that a card gets from networkd in addition to its address. An application can do without them for some
# seconds.
_NETWORK_KEYS = """
    ConfigureWithoutCarrier DHCP DNS DNSDefaultRoute DNSOverTLS DNSSEC DNSSECNegativeTrustAnchors Description
    Domains EmitLLDP IPv6AcceptRA IPv6DuplicateAddressDetection IPv6LinkLocalAddressGenerationMode
    IPForward IPv6PrivacyExtensions IgnoreCarrierLoss KeepConfiguration LLDP LLMNR LinkLocalAddressing MulticastDNS NTP"""
_DHCP_KEYS = """
    Anonymize ClientIdentifier DUIDRawData DUIDType Hostname IAID RouteMetric RoutesToDNS RoutesToNTP SendHostname
    SendRelease UseDNS UseDomains UseHostname UseMTU UseNTP UseSIP UseTimezone"""
# systemd.link(5): a card's name comes from the recorded boot.
_LINK_KEYS = """
    Alias AlternativeName AlternativeNamesPolicy Description MACAddressPolicy MTUBytes Name NamePolicy RxBufferSize TxBufferSize
    WakeOnLan"""
_ANY = frozenset("*")
_OF_NETWORK: Mapping[str, frozenset[str]] = {
    "[Match]": _ANY,
    "[Network]": frozenset(_NETWORK_KEYS.split()),
    "[Link]": frozenset(("MTUBytes", "RequiredFamilyForOnline", "RequiredForOnline")),
    "[DHCPv4]": frozenset(_DHCP_KEYS.split()),
    "[DHCP]": frozenset(_DHCP_KEYS.split()),
    "[DHCPv6]": _ANY,
    "[IPv6AcceptRA]": _ANY,
}
_OF_LINK: Mapping[str, frozenset[str]] = {"[Match]": _ANY, "[Link]": frozenset(_LINK_KEYS.split())}
# The only values of DHCP= with an IPv4 address.
_WITH_IPV4 = frozenset({"yes", "true", "on", "1", "y", "t", "ipv4", "both", "v4"})
# The booleans of systemd.syntax(7) and of YAML.
_YES = frozenset({"yes", "true", "on", "1", "y", "t"})
_NO = frozenset({"no", "false", "off", "0", "n", "f"})
_NO_IPV4_LINK_LOCAL = frozenset({"no", "false", "off", "0", "n", "f", "ipv6"})
# Interfaces of containers, virtual machines and tunnels, by the names that their programs give them.
_MADE_LATER = re.compile(
    r"(?:docker|veth|br-|virbr|vnet|lxc|lxd|cni|cali|flannel|cilium|podman|tun|tap|wg|tailscale)[\w.*-]*"
)
# A line in YAML's block style, without blanks at its ends; lines in another style are not accepted.
_NETPLAN_LINE = re.compile(
    r"(?:#.*|---|network:|ethernets:|match:|[A-Za-z0-9_.-]+-overrides:|version:\s*\d+|renderer:\s*networkd"
    r"|dhcp4:\s*(?:true|yes|on)|dhcp6:\s*\w+|optional:\s*\w+|mtu:\s*\d+|critical:\s*\w+|accept-ra:\s*\w+"
    r"|(?:use|send)-(?:dns|domains|hostname|mtu|ntp):\s*\w+|route-metric:\s*\d+"
    r"|wakeonlan:\s*\w+|(?:macaddress|name|set-name|driver|dhcp-identifier):\s*[^\s\[{&*|>#]\S*)?\s*(?:#.*)?"
)
# The name of a card.
_NETPLAN_NAME = re.compile(r"[A-Za-z0-9_.-]+:\s*(?:#.*)?")
_NETPLAN_OTHERS = re.compile(
    r"(?:bridges|bonds|vlans|vrfs|wifis|modems|tunnels|routes|routing-policy|addresses|nameservers|openvswitch"
    r"|nm-devices|dummy-devices|virtual-ethernets|interfaces|parameters|link-local|\S+-devices):"
)
# A machine has a few, of a KiB each.
_MOST_FILES = 256
_MOST_CHARACTERS = 1 << 20


def refuse_networkd(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a file of networkd, netplan or systemd-udevd that asks for anything
    other than one network card with the address that DHCP offers.
    """
    left = _MOST_CHARACTERS
    for path in _few(unit, own_files(root)):
        text = root.read_text(path)
        left -= len(text)
        if left < 0:
            raise _refusal(unit, path, "is too long to be looked through")
        if why := _why_not(path, text):
            raise _refusal(unit, path, why)


def sent_by_networkd(root: ImageRoot, unit: str) -> Sent:
    """What networkd sends to a DHCP server, and what it requests from the server. ``refuse_networkd`` must have
    accepted the image's files. Raises UnsupportedUnitError when two files for network cards disagree about the host
    name, because only the running machine shows which file applies to its card.
    """
    found: dict[HostName, PurePosixPath] = {}
    texts = {path: root.read_text(path) for path in own_files(root)}
    for path, text in texts.items():
        if path.suffix == ".yaml":
            found[_name_by_netplan(text)] = path
        elif path.suffix == ".network" and not _is_of_others(text):
            drop_ins = [texts[each] for each in texts if each.parent.name == f"{path.name}.d"]
            found[_name_by_networkd((text, *drop_ins))] = path
    if len(found) > 1:
        raise _refusal(unit, list(found.values())[-1], "has another host name for DHCP than other files have")
    return Sent(next(iter(found), HostName(NameRule.NETWORKD)), routes=True)


def later_forwarding(root: ImageRoot) -> tuple[KernelSetting, ...]:
    """The kernel settings for forwarding that networkd writes because of networkd.conf(5). networkd writes them when it
    starts, some seconds after an early start (manager_set_ip_forwarding in networkd's networkd-sysctl.c, since systemd
    256).
    """
    paths = (each for pattern in _OF_MANAGER for each in root.glob(PurePosixPath(pattern)))
    files = (file for path in paths if (file := root.resolve(path).canonical) and root.host(file).is_file())
    found = sections(texts_of(root, files, "networkd.conf")).get("[Network]", ())
    return tuple(
        KernelSetting(f"net/{name[:4].lower()}/conf/{card}/forwarding", value, is_packages=False)
        for name, value in found
        if name in _FORWARDING and value
        for card in ("default", "all")
    )


def takes_host_name(root: ImageRoot) -> bool:
    """Whether networkd may give the host name of a lease to a machine without a name (UseHostname=, which is on unless
    a file says otherwise).
    """
    texts = [(path, root.read_text(path)) for path in own_files(root)]
    return not texts or any(
        _is_taken_by_netplan(text) if path.suffix == ".yaml" else _is_taken_by_networkd(text)
        for path, text in texts
        if path.suffix == ".yaml" or (path.suffix == ".network" and not _is_of_others(text))
    )


def _is_taken_by_networkd(text: str) -> bool:
    return _of_dhcp((text,)).get("UseHostname", "").lower() not in _NO


def _is_taken_by_netplan(text: str) -> bool:
    return not _is_off_in_netplan(text, "use-hostname")


def _name_by_networkd(texts: tuple[str, ...]) -> HostName:
    """The host name that networkd sends with ``texts``, a .network file and its drop-ins (systemd.network(5)).
    networkd also reads the section [DHCP], the older name of [DHCPv4].
    """
    given = _of_dhcp(texts)
    if given.get("SendHostname", "").lower() in _NO or given.get("Anonymize", "").lower() in _YES:
        return NO_NAME
    fixed = given.get("Hostname", "")
    if "." in fixed:
        return NO_NAME
    return HostName(fixed=fixed) if fixed else HostName(NameRule.NETWORKD)


def _of_dhcp(texts: tuple[str, ...]) -> Mapping[str, str]:
    found = sections(texts)
    return {name: value for section in ("[DHCP]", "[DHCPv4]") for name, value in found.get(section, ())}


def _name_by_netplan(text: str) -> HostName:
    return NO_NAME if _is_off_in_netplan(text, "send-hostname") else HostName(NameRule.NETWORKD)


def _is_off_in_netplan(text: str, wanted: str) -> bool:
    """Whether the ``dhcp4-overrides`` of a network card in a netplan file switch the option ``wanted`` off."""
    overrides = ""
    for line in text.splitlines():
        key, _, value = line.partition("#")[0].strip().partition(":")
        overrides = key if key.endswith("-overrides") else overrides
        if key == wanted and overrides == "dhcp4-overrides" and value.strip().lower() in _NO:
            return True
    return False


def _few(unit: str, paths: Iterator[PurePosixPath]) -> tuple[PurePosixPath, ...]:
    files = tuple(itertools.islice(paths, _MOST_FILES + 1))
    if len(files) > _MOST_FILES:
        raise _refusal(unit, files[-1], f"is one of more than {_MOST_FILES} such files")
    return files


def _refusal(unit: str, path: PurePosixPath, why: str) -> UnsupportedUnitError:
    return UnsupportedUnitError(
        f"{unit} cannot be started early: {brief(str(path))} {why}, and init's network is that of DHCP",
        hint="let DHCP configure the network card in the image",
    )


def own_files(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The files of networkd, netplan and systemd-udevd for network cards, except the files of systemd itself and masked
    files.
    """
    paths = [
        path for place in _PLACES for each in _PATTERNS for path in root.glob(PurePosixPath(place) / each)
    ]
    paths += [path for each in _NETPLAN for path in root.glob(PurePosixPath(each))]
    packages = owners(root, paths) if paths else {}
    for path in paths:
        is_systemds = path in packages and packages[path].package in _SYSTEMDS
        canonical = root.resolve(path).canonical
        # A link to /dev/null is a mask.
        if not is_systemds and canonical is not None and root.host(canonical).is_file():
            yield path


def _why_not(path: PurePosixPath, text: str) -> str:
    """The reason why the file rules out an early start. The reason is a sentence without its subject, which is the
    file. The result is empty when the file does not rule out an early start.
    """
    if path.suffix == ".yaml":
        other = _other_netplan_line(text)
        return f"has `{brief(other.strip())}`" if other is not None else ""
    kind = path.suffix if path.suffix != ".conf" else PurePosixPath(path.parent.stem).suffix
    if kind == ".netdev":
        return "adds a network interface"
    if fault := first_fault(text):
        return f"has {fault}"
    if kind == ".network" and _is_of_others(text):
        return ""
    known = _OF_LINK if kind == ".link" else _OF_NETWORK
    given = sections((text,))
    for section, found in given.items():
        names = known.get(section, frozenset())
        for name, value in found:
            if not {name, "*"} & names or not _is_plain(name, value, section):
                return f"has `{brief(f'{name}={value}')}` in {brief(section)}"
    is_whole = path.suffix == ".network"
    if is_whole and not any(name == "DHCP" for name, _ in given.get("[Network]", ())):
        return "has a card without DHCP"
    return ""


def _is_of_others(text: str) -> bool:
    """Whether the file only keeps networkd away from interfaces that other programs make, such as Docker's."""
    found = sections((text,))
    given = [(section, *each) for section in ("[Match]", "[Link]") for each in found.get(section, ())]
    names = [
        word
        for section, name, value in given
        if (section, name) == ("[Match]", "Name")
        for word in value.split()
    ]
    return (
        found.keys() <= {"[Match]", "[Link]"}
        and {(section, name) for section, name, _ in given}
        <= {("[Match]", "Name"), ("[Link]", "Unmanaged"), ("[Link]", "RequiredForOnline")}
        and bool(names)
        and all(_MADE_LATER.fullmatch(word) for word in names)
    )


def _is_plain(name: str, value: str, section: str) -> bool:
    if (section, name) == ("[Network]", "DHCP"):
        return value.lower() in _WITH_IPV4
    if (section, name) == ("[Network]", "LinkLocalAddressing"):
        return value.lower() in _NO_IPV4_LINK_LOCAL
    # With these values, a card that has a MAC address of its own keeps this address.
    return name != "MACAddressPolicy" or value in ("persistent", "none")


def _other_netplan_line(text: str) -> str | None:
    """The first line of a netplan file that asks for more than DHCP, or None. Below `match:`, a `macaddress:` selects a
    card. Elsewhere, a line with `macaddress:` gives the card another MAC address, so such a line asks for more than
    DHCP.
    """
    match_at: int | None = None
    for line in text.splitlines():
        words = line.lstrip()
        if not words or words.startswith("#"):
            continue
        indent = len(line) - len(words)
        if match_at is not None and indent <= match_at:
            match_at = None
        if words.startswith("match:"):
            match_at = indent
        if not _is_plain_netplan(line.strip()) or (words.startswith("macaddress:") and match_at is None):
            return line
    return None


def _is_plain_netplan(line: str) -> bool:
    if _NETPLAN_OTHERS.match(line):
        return False
    return bool(_NETPLAN_LINE.fullmatch(line) or _NETPLAN_NAME.fullmatch(line))
