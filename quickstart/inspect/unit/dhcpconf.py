"""Find out whether init's own DHCP client can stand in for the image's DHCP client, depending on the configuration of
the image's client (dhclient.conf(5), dhcpcd.conf(5)). The functions are pure.

Init's client asks for an address, a router, routes and name servers. Init's client sends the host name that the image's
client would send. Init's client sends no vendor class, and no identifier that a configuration sets. With a
configuration that asks for another address, leaves out the router or sends an identifier, the network of a stock boot
differs from the network that init sets up. The lists below have the statements that have no such effect on the network.
If a configuration has any other statement, init's client cannot stand in for the image's client.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Statements that do not change the address and the routes that dhclient requests and uses.
_DHCLIENT_STATEMENT = re.compile(
    r"option \S+ code \d+ = .+|send fqdn\.\S+ .*|send dhcp-lease-time \d+"
    r"|send host-name ?(?:= ?)?(?:gethostname\(\)|\"[A-Za-z0-9.-]{1,63}\")"
    r"|(?:(?:also )?request|ignore) [\w., -]+"
    r"|(?:timeout|retry|reboot|select-timeout|initial-interval|initial-delay|backoff-cutoff) \d+"
    r"|(?:supersede|prepend|append|default) (?:domain-name|domain-search|domain-name-servers|host-name|ntp-servers|dhcp6\.\S+) .*"
)
_DHCLIENT_OWN_NAME = re.compile(r"(?:supersede|prepend|append|default) host-name .*")
_DHCLIENT_NAME = re.compile(r'send host-name ?(?:= ?)?(?:gethostname\(\)|"(.*)")')
# Classless static routes (RFC 3442). dhclient has no name of its own for them.
_DHCLIENT_ROUTES = re.compile(r"option (\S+) code 121 = .+")
_DHCPCD_ROUTES = frozenset({"classless_static_routes", "121"})
# A search list (RFC 3397).
_DHCLIENT_SEARCH, _DHCPCD_SEARCH = "domain-search", frozenset({"domain_search", "119"})
_DHCLIENT_NAME_SERVERS = "domain-name-servers"
_DHCPCD_NAME_SERVERS = frozenset({"domain_name_servers", "6"})
# The options of a lease that init's client uses.
_TAKEN = frozenset(("routers", "subnet-mask"))
_OWN_RESOLVER = re.compile(
    r"^[^#\n]*\b(?:supersede|prepend|append|default)\s+(?:domain-name|domain-search|dhcp6\.)", re.MULTILINE
)
# Lines of dhcpcd.conf. `option` adds an option that dhcpcd requests. dhcpcd always requests routers and the subnet
# mask.
_DHCPCD_LINE = re.compile(
    r"(?:hostname|hostname_short|fqdn|controlgroup|vendorclassid|option|nohook|interface|ssid)\b[\w., \t:-]*"
    r"|require[ \t]+(?:dhcp_server_identifier|option_54)|slaac[ \t]+(?:private|hwaddr)(?:[ \t]+temporary)?"
    r"|(?:persistent|background|debug|quiet|noarp|nodelay|noipv4ll|noipv6|noipv6rs|ipv6|ipv6rs|ipv4|dhcp|dhcp6|release|nodev|nolink)"
    r"|(?:noconfigure_ipv6|ipv6ra_\w+|waitip)(?:[ \t]+[46]+)?"
    r"|(?:timeout|reboot|metric|leasetime|initial_interval|backoff_cutoff|ipv4ll_time)[ \t]+\d+"
)


class NameRule(enum.Enum):
    """Which host names a DHCP client sends as the machine's own name (option 12). The values are words in init's
    configuration, which find_host_name in initramfs/init/first reads. The rules describe the DHCP clients of Debian 12
    (bookworm).
    """

    NONE = ""
    DHCLIENT = "dhclient"
    """Any name, even `localhost`."""
    DHCPCD = "dhcpcd"
    """Any name except `localhost` and `localhost.DOMAIN`."""
    SHORT = "short"
    """The same names as with DHCPCD, but only the part before the first dot."""
    NETWORKD = "networkd"
    """Any name without a dot, except `localhost`. networkd sends a name with a dot in option 81 instead."""


@dataclass(frozen=True)
class HostName:
    """The host name that a client sends. If ``fixed`` is not empty, the client sends ``fixed``. Otherwise, the client
    sends the machine's own name if ``rule`` allows this name.
    """

    rule: NameRule = NameRule.NONE
    fixed: str = ""


NO_NAME = HostName()


class SearchRule(enum.Enum):
    """How a client writes the domains of a lease into /etc/resolv.conf if it asks for a list of domains (option 119).
    The values are words in init's configuration, which write_domains in initramfs/init/udhcpc reads.
    """

    NONE = ""
    """The client does not ask for the list, or init does not write that file."""
    DHCLIENT = "dhclient"
    """The domain (option 15) comes before the list, unless it is in the list (dhclient-script(8))."""
    DHCPCD = "dhcpcd"
    """The list alone, or the domain if there is no list (dhcpcd's hook 20-resolv.conf)."""


@dataclass(frozen=True)
class Sent:
    """The part of a DHCP client's request that may change the server's answer. ``name`` is the host name. ``routes``
    says whether the client asks for classless static routes, and ``search`` whether it asks for a search list.
    """

    name: HostName = NO_NAME
    routes: bool = False
    search: SearchRule = SearchRule.NONE


NOTHING_SENT = Sent()


def other_dhclient_statement(text: str) -> str:
    """The first statement in a dhclient.conf with which init's client cannot stand in for dhclient, or an empty
    string.
    """
    if hidden := re.search(r'"[^"\n]*#.*', text):
        return hidden[0]
    return next((each for each in _statements(text) if not _is_init_s(each)), "")


def other_dhcpcd_line(text: str) -> str:
    """The first line in a dhcpcd.conf with which init's client cannot stand in for dhcpcd, or an empty string."""
    return next((each for each in _lines(text) if not _DHCPCD_LINE.fullmatch(each)), "")


def sent_by_dhclient(text: str) -> Sent:
    """What dhclient sends to a DHCP server and asks for, if its dhclient.conf is ``text``. ``other_dhclient_statement``
    must have accepted ``text``.
    """
    name, asked, names = NO_NAME, set[str](), set[str]()
    for statement in _statements(text):
        if found := _DHCLIENT_NAME.fullmatch(statement):
            name = HostName(fixed=found[1]) if found[1] else HostName(NameRule.DHCLIENT)
        elif found := _DHCLIENT_ROUTES.fullmatch(statement):
            names.add(found[1])
        elif statement.startswith("request"):
            asked = set(_words(statement))
        elif statement.startswith("also request"):
            asked |= set(_words(statement))
    return Sent(
        name, bool(names & asked), SearchRule.DHCLIENT if _DHCLIENT_SEARCH in asked else SearchRule.NONE
    )


def gives_host_name(text: str) -> bool:
    """Whether dhclient, with the dhclient.conf ``text``, adds a host name to a lease that may have none. dhclient's
    script then gives this host name to a machine without a host name.
    """
    return any(_DHCLIENT_OWN_NAME.fullmatch(statement) for statement in _statements(text))


def sent_by_dhcpcd(text: str) -> Sent:
    """What dhcpcd sends to a DHCP server and asks for, if its dhcpcd.conf is ``text``. ``other_dhcpcd_line`` must have
    accepted ``text``.
    """
    name, is_short, is_fqdn = NO_NAME, False, False
    asked = set[str]()
    for line in _lines(text):
        keyword, *words = _words(line)
        if keyword in ("hostname", "hostname_short"):
            is_short |= keyword == "hostname_short"
            if words:
                name = HostName(fixed=words[0])
            elif name == NO_NAME:
                name = HostName(NameRule.DHCPCD)
        elif keyword == "fqdn":
            is_fqdn = words != ["disable"]
        elif keyword == "option":
            asked.update(words)
    if is_short and name.fixed:
        name = HostName(fixed=name.fixed.partition(".")[0])
    elif is_short:
        name = HostName(NameRule.SHORT)
    # RFC 4702, 3.1: then the name is in option 81 and not in option 12.
    search = SearchRule.DHCPCD if _DHCPCD_SEARCH & asked else SearchRule.NONE
    return Sent(NO_NAME if is_fqdn else name, bool(_DHCPCD_ROUTES & asked), search)


def takes_name_servers(text: str) -> bool:
    """Whether dhclient, with the dhclient.conf ``text``, writes the name servers of a lease into /etc/resolv.conf
    without a change.
    """
    bare = re.sub(r"#.*", "", text)
    asks = all("domain-name-servers" in words for words in re.findall(r"\brequest\b([^;]*)", bare))
    return asks and _OWN_RESOLVER.search(bare) is None and re.search(r"\bignore\b", bare) is None


def takes_name_servers_of_dhcpcd(text: str) -> bool:
    """Whether dhcpcd asks for name servers for each interface, and its hook writes these name servers into
    /etc/resolv.conf. ``text`` is dhcpcd's dhcpcd.conf, and ``other_dhcpcd_line`` must have accepted it.
    """
    lines = [_words(line) for line in _lines(text)]
    own = (number for number, (keyword, *_) in enumerate(lines) if keyword in ("interface", "ssid"))
    asked = {
        word for keyword, *words in lines[: next(own, len(lines))] if keyword == "option" for word in words
    }
    skipped = {word for keyword, *words in lines if keyword == "nohook" for word in words}
    return not asked.isdisjoint(_DHCPCD_NAME_SERVERS) and not any("resolv" in word for word in skipped)


def fixed_name_servers(text: str) -> tuple[str, ...] | None:
    """The name servers that dhclient, with the dhclient.conf ``text``, writes into /etc/resolv.conf in place of the
    lease's name servers. The result is empty if dhclient leaves the name servers in the file unchanged. The result is
    None if the name servers depend on the lease.
    """
    fixed: tuple[str, ...] | None = None
    asks, ignores = True, False
    for verb, *words in map(_words, _statements(text)):
        if verb == "also":
            asks |= _DHCLIENT_NAME_SERVERS in words
        elif verb == "request":
            asks = _DHCLIENT_NAME_SERVERS in words
        elif verb == "ignore":
            ignores |= _DHCLIENT_NAME_SERVERS in words
        elif words[:1] == [_DHCLIENT_NAME_SERVERS]:
            if verb != "supersede":
                return None
            fixed = tuple(words[1:])
    return fixed if fixed or (asks and not ignores) else ()


def takes_advertisements(text: str) -> bool:
    """Whether dhcpcd handles IPv6 router advertisements, and makes the IPv6 addresses itself. ``text`` is dhcpcd's
    dhcpcd.conf, and ``other_dhcpcd_line`` must have accepted it.
    """
    return not any(_words(line)[0] in ("noipv6", "noipv6rs") for line in _lines(text))


def _statements(text: str) -> Iterator[str]:
    statements = (" ".join(each.split()) for each in re.sub(r"#.*", "", text).split(";"))
    return (each for each in statements if each)


def _lines(text: str) -> Iterator[str]:
    lines = (re.sub(r"#.*", "", line).strip() for line in text.splitlines())
    return (each for each in lines if each)


def _words(statement: str) -> list[str]:
    return re.split(r"[\s,]+", statement)


def _is_init_s(statement: str) -> bool:
    """Whether init's DHCP client can stand in for dhclient with ``statement`` of a dhclient.conf. init's client can
    stand in when it also does what the statement says, or when an application does not need the effect of the
    statement.
    """
    words = set(_words(statement))
    if statement.startswith("request") and not words >= _TAKEN:
        return False
    if statement.startswith("ignore") and words & {*_TAKEN, "broadcast-address", "interface-mtu"}:
        return False
    return _DHCLIENT_STATEMENT.fullmatch(statement) is not None
