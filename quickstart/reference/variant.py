"""Define variants of a reference image: images of the same packages with a few differences. The definition of a
variant lists all its differences.

``TUNED`` is a Debian that is tuned for a fast boot without any tool that is not part of Debian (configuration
`standard-tuned`). ``of_bench`` makes a variant in which an application can answer requests from outside the guest.
`build` never uses a variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quickstart.model import Profile
from quickstart.profile import BenchLayer
from quickstart.reference import customise


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The differences of a variant. ``purged`` are packages that are removed. ``written`` are the texts of
    files, by guest path without the first slash.

    ``enabled`` are units that are enabled in addition to the profile's units. If ``enabled`` is not empty, all other
    units are disabled. ``disabled`` are units that stay disabled, although an enabled unit would enable them. When
    ``enabled`` is empty, all units stay as their packages configure them. ``ran`` are commands (argv) that run in the
    image at the end.
    """

    name: str
    purged: tuple[str, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    enabled: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    ran: tuple[tuple[str, ...], ...] = ()


_PRESET = "etc/systemd/system-preset/00-quickstart.preset"

TUNED = Variant(
    name="tuned",
    purged=("ifupdown", "isc-dhcp-client", "rsyslog"),
    written={
        # MODULES=dep looks for the device of /, which does not work in a chroot. `list` with the modules of that device has the
        # same effect: initramfs.conf(5), "MODULES".
        "etc/initramfs-tools/conf.d/quickstart": "MODULES=list\n",
        "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
        # Only IPv4, as with `iface … inet dhcp`, so that nothing waits for the duplicate detection of an IPv6 address.
        "etc/systemd/network/80-ethernet.network": (
            "[Match]\nType=ether\n\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
        ),
    },
    enabled=("cron.service", "ssh.service", "systemd-networkd.service"),
    # On the standard image, nothing waits for network-online.target either (allow-hotplug).
    disabled=("systemd-networkd-wait-online.service",),
)


# This runs in the image, because a link of the image, followed on this host, could lead out of the image.
_WRITE = 'install -D -m 0644 /dev/null "$1" && printf %s "$2" >"$1"'


def of_bench(layer: BenchLayer) -> Variant:
    """The variant in which the application answers the readiness request of the bench."""
    files = tuple(("sh", "-c", _WRITE, "sh", path, text) for path, text in layer.files)
    return Variant(name="bench", ran=(*files, *(("sh", "-e", "-c", line) for line in layer.commands)))


def together(first: Variant | None, second: Variant | None) -> Variant | None:
    """The variant ``first``, in which the commands of ``second`` run after the commands of ``first``. All other
    differences come from ``first``, for example which units are enabled. If only one variant is given, the result is
    this variant.
    """
    if first is None or second is None:
        return first or second
    return replace(first, name=f"{first.name} {second.name}", ran=(*first.ran, *second.ran))


def inputs(variant: Variant | None) -> Mapping[str, object]:
    """The inputs of a reference image that come from the variant. The result is empty without a variant."""
    return {"variant": dataclasses.asdict(variant)} if variant else {}


def preset(variant: Variant, profile: Profile) -> str:
    """The text of a systemd.preset(5) file that enables the units of the variant and the profile, and disables all
    other units. systemd obeys the first line that matches a unit.
    """
    units = (*variant.enabled, *profile.units)
    return "".join(f"enable {unit}\n" for unit in units) + "disable *\n"


def write_files(variant: Variant, profile: Profile, tree: Path) -> None:
    """Write the variant's files below ``tree``."""
    chosen = {_PRESET: preset(variant, profile)} if variant.enabled else {}
    for name, text in {**variant.written, **chosen}.items():
        customise.write(tree, name, text)


def commands(variant: Variant) -> tuple[list[str], ...]:
    """The commands that run in the image after the packages are installed and the variant's files are written."""
    return (
        *([["apt-get", "-y", "-q", "purge", *variant.purged]] if variant.purged else []),
        *([["systemctl", "preset-all"]] if variant.enabled else []),
        *([["systemctl", "disable", *variant.disabled]] if variant.disabled else []),
        *map(list, variant.ran),
    )
