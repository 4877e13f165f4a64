"""What another image of the same packages differs in: one row a difference, so that a reader sees that there is nothing else.

``TUNED`` is what somebody makes of Debian who wants it to boot fast and has no other tool (configuration `standard-tuned`);
``of_bench`` what a profile's application needs to be asked from outside. No `build` takes a variant.
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
    """``purged`` packages, ``written`` files (by their guest paths without the first /), ``enabled`` units beside the profile's,
    ``disabled`` those that an enabled one brings along. Every unit that is named in neither is disabled; without ``enabled`` all
    stay as their packages have them. ``ran`` is run in the image last (argv)."""

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
        # MODULES=dep asks which device / is on, which a chroot cannot answer. `list` with the modules of that device comes to
        # the same: initramfs.conf(5), "MODULES".
        "etc/initramfs-tools/conf.d/quickstart": "MODULES=list\n",
        "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
        # IPv4 alone, as `iface … inet dhcp` has it: nothing waits for an IPv6 address to be found free.
        "etc/systemd/network/80-ethernet.network": (
            "[Match]\nType=ether\n\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
        ),
    },
    enabled=("cron.service", "ssh.service", "systemd-networkd.service"),
    # On the standard image nothing waits for network-online.target either (allow-hotplug).
    disabled=("systemd-networkd-wait-online.service",),
)


# In the image: a link of its, followed on this host, could lead out of it.
_WRITE = 'install -D -m 0644 /dev/null "$1" && printf %s "$2" >"$1"'


def of_bench(layer: BenchLayer) -> Variant:
    """The image in which the bench's request is answered."""
    files = tuple(("sh", "-c", _WRITE, "sh", path, text) for path, text in layer.files)
    return Variant(name="bench", ran=(*files, *(("sh", "-e", "-c", line) for line in layer.commands)))


def together(first: Variant | None, second: Variant | None) -> Variant | None:
    """Both: the second's commands run after all of the first's. Only ``first`` may say which units are enabled."""
    if first is None or second is None:
        return first or second
    return replace(first, name=f"{first.name} {second.name}", ran=(*first.ran, *second.ran))


def inputs(variant: Variant | None) -> Mapping[str, object]:
    """What the variant adds to a reference image's inputs; the base itself adds nothing."""
    return {"variant": dataclasses.asdict(variant)} if variant else {}


def preset(variant: Variant, profile: Profile) -> str:
    """systemd.preset(5): the first line that matches a unit decides."""
    units = (*variant.enabled, profile.unit)
    return "".join(f"enable {unit}\n" for unit in units) + "disable *\n"


def write_files(variant: Variant, profile: Profile, tree: Path) -> None:
    """Write the variant's files below ``tree``."""
    chosen = {_PRESET: preset(variant, profile)} if variant.enabled else {}
    for name, text in {**variant.written, **chosen}.items():
        customise.write(tree, name, text)


def commands(variant: Variant) -> tuple[list[str], ...]:
    """What has to run in the image, after its packages and the variant's files are there."""
    return (
        *([["apt-get", "-y", "-q", "purge", *variant.purged]] if variant.purged else []),
        *([["systemctl", "preset-all"]] if variant.enabled else []),
        *([["systemctl", "disable", *variant.disabled]] if variant.disabled else []),
        *map(list, variant.ran),
    )
