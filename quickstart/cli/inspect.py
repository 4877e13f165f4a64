"""`quickstart inspect`: say what is on a disk, and whether QuickStart could make the disk start fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines.ownsystem import look_into
from quickstart.host.beneath import opened_regular
from quickstart.host.workspace import workspace
from quickstart.image.qcow2 import Form, is_qcow2
from quickstart.launch.rawdisk import made_raw
from quickstart.model import MIB
from quickstart.model.disk import WHOLE_DISK, Inspected, Partition
from quickstart.parse.printable import brief
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root


@click.command()
@click.argument("disk", type=click.Path(path_type=Path))
@JSON
def inspect(disk: Path, as_json: bool) -> None:
    """Say what DISK is: its partitions, file systems, boot loader and system, and why QuickStart could not make it
    fast. DISK is a raw or qcow2 image, and is not changed.

    A small guest of QuickStart reads the disk. Nothing on the disk is executed. The exit status is 1 when there are
    reasons against the disk.
    """

    def work(verb: Verb) -> int:
        found = _inspected(disk.absolute(), verb)
        verb.result(_document(found), lambda console: _show(console, found))
        return 1 if found.refusals else 0

    sys.exit(run_verb("inspect", as_json, work, as_root=True))


def _inspected(disk: Path, verb: Verb) -> Inspected:
    with ExitStack() as stack:
        with opened_regular(disk) as fd:
            given_as_qcow2 = is_qcow2(fd)
        if given_as_qcow2:
            # QEMU would read the header after us. In between, the file's owner could make the disk depend on another
            # file.
            place = stack.enter_context(workspace("quickstart-inspect-"))
            with verb.display().step(f"copy {disk.name}"):
                disk = made_raw(disk, place, Form.GIVEN)
        store = stack.enter_context(Store(default_root(), verb.display().note))
        return look_into(disk, Context(store, verb.display()))


def _document(found: Inspected) -> dict[str, object]:
    entry = found.entry
    return {
        "size_bytes": found.facts.size_bytes,
        "table": found.facts.table.value,
        "partitions": [_partition(found, each) for each in found.facts.partitions],
        "system": found.system,
        "root": found.root_name,
        "loaders": [each.value for each in found.loaders],
        "entry": None
        if entry is None
        else {
            "title": entry.title,
            "kernel": entry.kernel,
            "initramfs": list(entry.initramfs),
            "command_line": entry.command_line,
        },
        "initramfs_maker": found.initramfs_maker.value,
        "network": [each.value for each in found.network],
        "cloud_init": found.has_cloud_init,
        "grows_root": found.grows_root,
        "refusals": list(found.refusals),
    }


def _partition(found: Inspected, partition: Partition) -> dict[str, object]:
    return {
        "number": partition.number,
        "begin_bytes": partition.begin_bytes,
        "size_bytes": partition.size_bytes,
        "type_id": partition.type_id,
        "part_uuid": partition.part_uuid,
        "name": partition.name,
        "content": partition.kind,
        "uuid": partition.uuid,
        "label": partition.label,
        "free_bytes": partition.content.free_bytes if partition.content else None,
        "clean": partition.is_clean,
        "roles": list(_roles(found, partition)),
    }


def _roles(found: Inspected, partition: Partition) -> Iterator[str]:
    for role, number in (("root", found.root), ("boot", found.boot), ("esp", found.esp)):
        if number == partition.number:
            yield role


def _show(console: Console, found: Inspected) -> None:
    facts = found.facts
    say(console, f"{'table':12}{facts.table.value}, {facts.size_bytes // MIB} MiB")
    for each in facts.partitions:
        name = "whole disk" if each.number == WHOLE_DISK else f"partition {each.number}"
        free = f", {each.content.free_bytes // MIB} MiB free" if each.content else ""
        clean = "" if each.is_clean else ", not unmounted"
        roles = " ".join(_roles(found, each))
        say(
            console,
            f"{'':12}{name:13}{each.size_bytes // MIB:7} MiB  {brief(each.kind) or '-':12}{roles}{free}{clean}",
        )
    entry = found.entry
    # The words are the disk's: one that is long or has many blanks would fill a line, and go on as one of ours.
    rows = (
        ("system", found.system or "not found"),
        ("root", found.root_name or "not found"),
        ("loader", ", ".join(found.loaders) or "none"),
        ("entry", entry.title if entry else "not found"),
        ("kernel", entry.kernel if entry else ""),
        ("initramfs", f"{' '.join(entry.initramfs)} ({found.initramfs_maker})" if entry else ""),
        ("options", entry.command_line if entry else ""),
        ("network", ", ".join(found.network) or "none"),
        ("first boot", "cloud-init" if found.has_cloud_init else "no cloud-init"),
        ("growth", "the first boot enlarges the root" if found.grows_root else "none"),
    )
    for name, value in rows:
        if value:
            say(console, f"{name:12}{brief(value)}")
    for reason in found.refusals:
        say(console, f"refused: {reason}", "red")
    if not found.refusals:
        say(console, "nothing speaks against this disk")
