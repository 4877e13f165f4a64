"""Find the names that files of the image give to network cards with certain MAC addresses (udev(7), systemd.link(5)).

Init gives the machine's network card the name that the card had in the reference boot. A file of the image may name a
card by its MAC address, and the card of another machine has another MAC address. So a stock boot of the other machine
may give the other card a name that differs from the name in the reference boot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments
from quickstart.inspect.unit.hooks import udev_rules
from quickstart.inspect.unit.networkd import own_files
from quickstart.parse.printable import brief

_RULE_MAC = re.compile(r"\bATTRS?\{address\}\s*==\s*\"([^\"]*)\"")
_RULE_NAME = re.compile(r"\bNAME\s*:?=\s*\"([^\"]*)\"")
_MATCH_KEYS = frozenset({"MACAddress", "PermanentMACAddress"})
# A pattern of init's shell. udev has the same patterns, with `|` between them.
_PATTERN = re.compile(r"[0-9A-Za-z:*?\[\]-]{1,64}")


def names_by_mac(root: ImageRoot, unit: str) -> tuple[tuple[str, str], ...]:
    """Pairs of a MAC address and the name that a file gives to the card with this address. The MAC address may be a
    shell pattern.

    Raises UnsupportedUnitError for a MAC address that init's shell could not use as a pattern.
    """
    found = tuple(dict.fromkeys((*_of_rules(root), *_of_links(root))))
    for mac, _ in found:
        if not _PATTERN.fullmatch(mac):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: a file of the image names the network card with the MAC address"
                f" {brief(mac)}, which init does not understand",
                hint="remove it from /etc/udev/rules.d or /etc/systemd/network in the image",
            )
    return found


def _of_rules(root: ImageRoot) -> Iterator[tuple[str, str]]:
    for file in udev_rules(root):
        for line in root.read_text(file).replace("\\\n", "").splitlines():
            mac, name = _RULE_MAC.search(line), _RULE_NAME.search(line)
            if mac and name and not line.lstrip().startswith("#"):
                yield from ((each, name[1]) for each in mac[1].split("|") if each)


def _of_links(root: ImageRoot) -> Iterator[tuple[str, str]]:
    for file in own_files(root):
        text = root.read_text(file) if file.suffix == ".link" else ""
        names = [value for key, value in assignments((text,), "[Link]") if key == "Name"]
        for key, value in assignments((text,), "[Match]"):
            if key in _MATCH_KEYS and names:
                yield from ((each.lower(), names[-1]) for each in value.split())
