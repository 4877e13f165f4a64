"""Choose the backend that starts a machine. Only this module uses the class of a launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quickstart.guest import Launcher
from quickstart.launch import accel, archive
from quickstart.launch.accel import Accelerator
from quickstart.launch.qemu import QemuLauncher
from quickstart.model import Artefact
from quickstart.model.words import Target
from quickstart.store.context import Context
from quickstart.store.store import Store


def launcher_of(artefact: Artefact, context: Context, *, keep: bool = False) -> Launcher:
    """The launcher that starts machines from ``artefact``. The artefact's target determines the launcher."""
    match artefact.target:
        case Target.QEMU | Target.DISK:
            return launcher_for(artefact.kernel, context, keep=keep)


def launcher_for(kernel: Path, context: Context, *, keep: bool = False) -> Launcher:
    """A launcher that starts QEMU with an accelerator that works on this host. A guest's workspace is a temporary
    directory with the guest's logs. With ``keep``, the launcher does not remove the workspaces, and a note names each
    workspace.
    """

    def note(place: Path) -> None:
        context.progress.note(f"the guest's workspace is kept: {place}")

    with context.progress.step("choose an accelerator"):
        accelerator = accel.choose(kernel, context.store)
    return launcher_on(accelerator, context.store, note if keep else None)


def launcher_on(
    accelerator: Accelerator, store: Store, keep: Callable[[Path], None] | None = None
) -> Launcher:
    """A launcher that starts QEMU with ``accelerator``. With ``keep``, the launcher does not remove the guests'
    workspaces, which are temporary directories with the logs.
    """
    return QemuLauncher(accelerator, archive.agent_binary(store), keep=keep)


def launchers(store: Store) -> Callable[[Accelerator], Launcher]:
    """A function that takes an accelerator, and returns a launcher that starts QEMU with this accelerator. The bench
    (class Bench in measure/run.py) needs this function in place of a single launcher, because the clock of each
    measurement determines the accelerator.
    """
    agent = archive.agent_binary(store)
    return lambda accelerator: QemuLauncher(accelerator, agent)
