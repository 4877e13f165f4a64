"""Prepare the disk of an artefact that boots by itself (`build --image`, `build --target disk`) for the bench.

The bench must know when the application answers. So the system on a copy of the disk appends the launch agent to its
own initramfs and to ours. Apart from this, the copy boots as a fresh copy of the disk does. The store keeps the copies.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import read_manifest
from quickstart.engines.ownsystem import ImageDisk, copy_disk, examined, execute_in, script_of
from quickstart.errors import BadInputError
from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import changed, digest_of_data
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.disk.own import esp_place, system_path
from quickstart.inspect.disk.unified import append_archive
from quickstart.launch.archive import PORT_NAME, agent_binary, launch_cpio
from quickstart.measure.configuration import Boot
from quickstart.measure.results import DISK_CONFIGURATIONS, STOCK_CONFIGURATIONS, Cell
from quickstart.model import Artefact
from quickstart.model.words import Firmware, Target
from quickstart.store.context import Context
from quickstart.store.store import source_digest

_STAGE, _DISK, _STOCK = "bench-disk", "disk.raw", "stock-initramfs.img"


@dataclass(frozen=True, kw_only=True)
class _Copies:
    """The files of a prepared disk in the store: the disk, and the system's own initramfs without the launch agent."""

    disk: Path
    stock_initramfs: Path


def prepare_disk(cell: Cell, context: Context, port: str = PORT_NAME) -> Boot:
    """The files and settings that a machine needs to boot the disk of ``cell`` by its own boot loader. The launch agent
    sends its messages to ``port`` (launch/archive.py).

    Raises BadInputError when the artefact of the cell does not boot by itself, was built with other kernel options, or
    was changed by a machine.
    """
    out = Path(cell.profile)
    with output.in_use(out):
        artefact = artefacts.load(out)
        check_disk(artefact, cell)
        copies = _copies(artefact, cell.configuration, context, port)
        is_stock = cell.configuration in STOCK_CONFIGURATIONS
        return Boot(
            configuration=cell.configuration,
            command_line=cell.command_line,
            kernel=artefact.kernel,
            initrds=(copies.stock_initramfs if is_stock else artefact.initramfs,),
            volume=copies.disk,
            fetched=(),
            attached=True,
            cmdline=artefact.stock_cmdline if is_stock else artefact.cmdline,
            memory_mib=artefact.memory_mib,
            mac=artefact.mac,
            # By it, init knows the machine on which cloud-init has not been.
            uuid=artefact.uuid,
            ready=artefact.ready,
            unit=read_manifest(out).unit or artefact.profile_name,
            delivery="" if is_stock else Delivery.OVERLAY.value,
            firmware=Firmware(cell.firmware) if cell.firmware else None,
            root_at_bytes=artefact.root_at_bytes,
        )


def check_disk(artefact: Artefact, cell: Cell) -> None:
    """Raise BadInputError when the bench cannot measure ``cell`` with ``artefact``."""
    if artefact.target is not Target.DISK:
        raise BadInputError(
            f"{artefact.directory} has no boot loader",
            hint="only an OUT of `build --image` or `build --target disk` is measured with --disk",
        )
    if not artefacts.is_as_built(artefact):
        raise BadInputError(
            f"a machine has written to the disk of {artefact.directory}, and the bench measures first boots",
            hint=f"quickstart rebuild {artefact.directory}, or build it again",
        )
    if cell.configuration not in DISK_CONFIGURATIONS:
        raise BadInputError(f"a disk has no configuration {cell.configuration}")
    is_stock = cell.configuration in STOCK_CONFIGURATIONS
    options = "stock" if is_stock else read_manifest(artefact.directory).kernel_options
    if cell.command_line != options:
        raise BadInputError(
            f"the entry of {artefact.directory} for {cell.configuration} has the kernel options {options}, not "
            f"{cell.command_line}",
            hint=f"measure this configuration with --command-line {options}",
        )


def _copies(artefact: Artefact, configuration: str, context: Context, port: str) -> _Copies:
    with opened_regular(artefact.disk) as fd:
        digest = digest_of_data(fd, artefact.disk)
    agent = launch_cpio(agent_binary(context.store), artefact.ready, {}, port)
    inputs = {
        "disk": digest,
        "configuration": configuration,
        "agent": hashlib.sha256(agent).hexdigest(),
        "recipe": source_digest(
            "quickstart.bench.disks",
            "quickstart.engines.ownsystem",
            "quickstart.image.targets",
            "quickstart.inspect.disk",
        ),
    }

    def make(place: Path) -> None:
        with examined(artefact.disk, context) as image:
            if image.digest != digest:
                raise changed(artefact.disk)
            copy_disk(image.path, place / _DISK)
            (place / _STOCK).write_bytes(image.initrd.read_bytes())
            with context.progress.step(f"the launch agent for {configuration}"):
                execute_in(
                    place / _DISK, image.system, "measured", _files(image, configuration, agent), context
                )

    place = context.store.get_or_make(_STAGE, inputs, make).path
    return _Copies(disk=place / _DISK, stock_initramfs=place / _STOCK)


def _files(image: ImageDisk, configuration: str, agent: bytes) -> dict[str, bytes | Path]:
    entry = image.found.entry
    if entry is None:
        raise AssertionError(f"{image.source} has no entry")
    stock: PurePosixPath = system_path(image.found, entry.initramfs[0])
    files: dict[str, bytes | Path] = {
        "measured": script_of("measured"),
        "launch.cpio": agent,
        "way": f"{configuration} {stock}\n".encode(),
        **esp_place(image.found),
    }
    if image.unified:
        with_agent = image.unified.with_name("with-agent")
        append_archive(image.unified, agent, with_agent)
        files["unified"] = with_agent
    return files
