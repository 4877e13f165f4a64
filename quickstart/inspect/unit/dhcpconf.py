"""The configuration of DHCP clients that init's own client can stand in for (pure; dhclient.conf(5), dhcpcd.conf(5)).

Init's client asks for an address, a router and name servers, and sends no client identifier. A configuration that
asks for another address, leaves out the router or sends an identifier gives the machine another network in a
stock boot. What is not on the lists below may do so.
"""

from __future__ import annotations

import re

# Statements that change neither the address nor the routes that dhclient asks for and takes.
_DHCLIENT_STATEMENT = re.compile(
    r"option \S+ code \d+ = .+|send (?:host-name|fqdn\.\S+)\b.*|send dhcp-lease-time \d+"
    r"|(?:(?:also )?request|ignore) [\w., -]+"
    r"|(?:timeout|retry|reboot|select-timeout|initial-interval|initial-delay|backoff-cutoff) \d+"
    r"|(?:supersede|prepend|append|default) (?:domain-name|domain-search|domain-name-servers|host-name|ntp-servers|dhcp6\.\S+) .*"
)
# What init's client takes of a lease.
_TAKEN = frozenset(("routers", "subnet-mask"))
_OWN_RESOLVER = re.compile(
    r"^[^#\n]*\b(?:supersede|prepend|append|default)\s+(?:domain-name|domain-search|dhcp6\.)", re.MULTILINE
)
# Lines of dhcpcd.conf. `option` adds to what dhcpcd asks for; it always asks for routers and the subnet mask.
_DHCPCD_LINE = re.compile(
    r"(?:hostname|hostname_short|fqdn|controlgroup|vendorclassid|option|nohook|interface|ssid)\b[\w., \t:-]*"
    r"|require[ \t]+(?:dhcp_server_identifier|option_54)|slaac[ \t]+(?:private|hwaddr)(?:[ \t]+temporary)?"
    r"|(?:persistent|background|debug|quiet|noarp|nodelay|noipv4ll|noipv6|noipv6rs|ipv6|ipv6rs|ipv4|dhcp|dhcp6|release|nodev|nolink)"
    r"|(?:noconfigure_ipv6|ipv6ra_\w+|waitip)(?:[ \t]+[46]+)?"
    r"|(?:timeout|reboot|metric|leasetime|initial_interval|backoff_cutoff|ipv4ll_time)[ \t]+\d+"
)


def other_dhclient_statement(text: str) -> str:
    """The first statement of a dhclient.conf for which init's client cannot stand in, or an empty string."""
    if hidden := re.search(r'"[^"\n]*#.*', text):
        return hidden[0]
    statements = (" ".join(each.split()) for each in re.sub(r"#.*", "", text).split(";"))
    return next((each for each in statements if each and not _is_init_s(each)), "")


def other_dhcpcd_line(text: str) -> str:
    """The first line of a dhcpcd.conf for which init's client cannot stand in, or an empty string."""
    lines = (re.sub(r"#.*", "", line).strip() for line in text.splitlines())
    return next((each for each in lines if each and not _DHCPCD_LINE.fullmatch(each)), "")


def takes_name_servers(text: str) -> bool:
    """Whether dhclient, with this dhclient.conf, writes a lease's name servers into /etc/resolv.conf unchanged."""
    bare = re.sub(r"#.*", "", text)
    asks = all("domain-name-servers" in words for words in re.findall(r"\brequest\b([^;]*)", bare))
    return asks and _OWN_RESOLVER.search(bare) is None and re.search(r"\bignore\b", bare) is None


def _is_init_s(statement: str) -> bool:
    """Whether init's DHCP client does what the statement says, or an application does without that."""
    words = set(re.split(r"[\s,]+", statement))
    if statement.startswith("request") and not words >= _TAKEN:
        return False
    if statement.startswith("ignore") and words & {*_TAKEN, "broadcast-address", "interface-mtu"}:
        return False
    return _DHCLIENT_STATEMENT.fullmatch(statement) is not None
