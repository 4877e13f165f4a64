"""Boots of nginx with companions of our own, which start before it (docs/users/stacks.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quickstart.initramfs.guestconfig import unit_config_text
from quickstart.inspect.unit import read_stack
from quickstart.inspect.unit.model import UnitStart
from tests.vm.conftest import guest_file
from tests.vm.parity import of_start, small_root
from tests.vm.parity_adopted import boot

PLACE = "/fast/quickstart/parity"
NGINX = "nginx.service"
_UNITS = "usr/lib/systemd/system"


def booted(
    artefact: Path,
    base: Path,
    command: str,
    units: Mapping[str, str],
    files: Mapping[str, str],
    from_image: tuple[str, ...] = (),
    falls_back: bool = False,
) -> list[str]:
    """One boot of nginx behind the services of ``units``, a map from names to texts, and of the units ``from_image``.
    Returns the lines that ``command`` prints.

    Of ``files``, `pre` and `post` are run by a shell before and after the main process of the first companion. The others are below
    PLACE, with the units' own files.
    """
    root = small_root(artefact, base)
    places = base / "etc/systemd/system"
    (places / "sockets.target.wants").mkdir(parents=True)
    for name in (NGINX, *from_image):
        (base / _UNITS / name).write_text(guest_file(artefact, f"/{_UNITS}/{name}"))
    for name, text in units.items():
        (places / name).write_text(text)
    for name in (*units, *from_image):
        if name.endswith(".socket"):
            (places / f"sockets.target.wants/{name}").symlink_to(f"../{name}")
    services = [name for name in (*from_image, *units) if name.endswith(".service")]
    stack = read_stack(root, (*services, NGINX))
    ours = {f"units/{name}": text for name, text in units.items()} | dict(files)
    for number, unit in enumerate(stack.companions, 1):
        # With `+`: as root, and without what confines the unit.
        added = (f"command {when} + /bin/sh sh {PLACE}/{when}\n" for when in ("pre", "post") if when in files)
        ours[f"{number}/description"] = of_start(unit, root) + ("".join(added) if number == 1 else "")
        ours[f"{number}/config"] = unit_config_text(unit)
    lines = of_start(stack, root).splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if line.startswith("companion-socket ")), len(lines))
    last = next((at for at, line in enumerate(lines) if line.startswith("journal-socket ")), first)
    ours["sockets"] = "".join(lines[first:last])
    ours["config"] = _config(stack)
    # As initramfs/layout.py has it.
    hook = """for place in $Q/parity/[0-9]*; do
        companion=$Q/companions/${place##*/}
        mkdir -p $companion
        cp $place/description $companion/unit
        cp $place/config $companion/config
        for name in bin busybox adopt; do ln -s ../../$name $companion/$name; done
    done
    cat $Q/parity/sockets >>$Q/unit
    cat $Q/parity/config >>$Q/config
    . $Q/config"""
    return boot(artefact, command, ours, hook, falls_back=falls_back).splitlines()


def _config(stack: UnitStart) -> str:
    """What init's configuration has of the companions, behind what it has without them."""
    numbers = " ".join(str(number) for number in range(1, len(stack.companions) + 1))
    sockets = " ".join(str(len(each.sockets)) for each in stack.companions)
    lines = [
        f"COMPANIONS='{numbers}'",
        f"COMPANION_UNITS='{' '.join(each.unit for each in stack.companions)}'",
        f"GROUPS_OF_ALL='{' '.join(each.group for each in stack.all_units)}'",
        f"COMPANION_SOCKETS='{sockets}'",
        f"ON_BUS={'yes' if stack.on_bus else ''}",
    ]
    return "".join(f"{line}\n" for line in lines)
