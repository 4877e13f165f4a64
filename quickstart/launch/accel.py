"""Choose an accelerator for QEMU. The result is KVM if a test guest has booted with KVM on this host, and otherwise
TCG.

The existence of /dev/kvm is not enough, because nested KVM can hang or abort. So a tiny guest must boot within a time
limit. The tiny guest consists of the kernel and of an init script for BusyBox that prints one line. The result is kept
in the store, and is valid until the host reboots, or until the kernel, QEMU or our launch code changes.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import digest_of
from quickstart.host.workspace import workspace
from quickstart.initramfs.newc import char_device, directory, regular, write_archive
from quickstart.launch import jail
from quickstart.launch.drain import drained, hand_over, whole_text
from quickstart.store.kept import check_place
from quickstart.store.ownfiles import document_of
from quickstart.store.store import Store, key_of, source_digest

_WORD = "quickstart-accelerator-works"
_LIMIT_S = 20
_INIT = b"""#!/busybox sh
echo quickstart-accelerator-works
/busybox poweroff -f
"""


@dataclass(frozen=True)
class Accelerator:
    """An accelerator. ``qemu`` are QEMU's arguments for this accelerator. ``why`` is the reason for the choice."""

    name: str
    qemu: tuple[str, ...]
    why: str


def tcg(why: str) -> Accelerator:
    """The accelerator TCG with the host's clock. ``why`` is the reason for the choice."""
    return Accelerator("tcg", ("-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"), why)


def _kvm(why: str) -> Accelerator:
    return Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"), why)


def choose(kernel: Path, store: Store) -> Accelerator:
    """The accelerator KVM if a tiny guest with ``kernel`` has booted with KVM, and otherwise TCG. The result also has
    the reason for the choice.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return tcg("/dev/kvm is not there or not ours to use")
    works = _verdict(kernel, store)
    return (
        _kvm("a guest was seen to boot") if works else tcg(f"a guest on KVM did not come up in {_LIMIT_S} s")
    )


def _verdict(kernel: Path, store: Store) -> bool:
    version = door.run(["qemu-system-x86_64", "--version"], timeout_s=30).stdout.decode().splitlines()[0]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The kernel counts by its content, because an image and its artefacts have the same kernel. In another jail, less
    # may work.
    with opened_regular(kernel) as fd:
        digest = digest_of(fd, kernel)
    inputs = {"boot": boot_id, "qemu": version, "kernel": digest, "jail": source_digest("quickstart.launch")}
    kept = store.root / "verdicts" / f"{key_of('kvm', inputs)}.json"
    check_place(store.root, kept.parent)
    if (before := _kept(kept)) is not None:
        return before
    works = _try_kvm(kernel)
    store.make_stage(kept.parent.name)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.unlink(missing_ok=True)
    with partial.open("x") as file:
        file.write(json.dumps({"works": works, **inputs}))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(kept)
    return works


def _kept(path: Path) -> bool | None:
    """The result of an earlier test of KVM, which is stored in the file ``path``. None when the file does not exist
    or is damaged. For example, a power failure may leave an empty file.
    """
    with suppress(OSError, ValueError):
        if isinstance(works := document_of(path).get("works"), bool):
            return works
    return None


def _try_kvm(kernel: Path) -> bool:
    stream = io.BytesIO()
    entries = (
        directory("dev"),
        char_device("dev/console", 0o600, 5, 1),
        regular("busybox", door.tool_path("busybox"), 0o755),
        regular("init", _INIT, 0o755),
    )
    write_archive(stream, entries)
    with (
        workspace("quickstart-kvm-") as place,
        jail.made_jail(place, kvm=True) as cell,
        drained(place / "console.log") as said,
    ):
        initrd = cell.directory / "initrd"
        initrd.write_bytes(stream.getvalue())
        files = ("-kernel", jail.put_kernel(cell, kernel), "-initrd", jail.given(cell, initrd))
        argv = ("-M", "q35", *_kvm("").qemu, "-m", "256", "-nodefaults", "-no-reboot")
        argv += ("-no-user-config", *jail.SANDBOX, "-display", "none", "-serial", "stdio")
        tried = door.background(
            jail.limited(
                (*argv, *files, "-append", "console=ttyS0 panic=-1 quiet"), jail.largest_file(None, "")
            ),
            output=said.writers[0],
            identity=cell.identity,
            env=cell.environment,
            cwd=cell.directory,
        )
        with tried as process:
            hand_over(said)
            door.has_ended(process, _LIMIT_S)
        said.drain.join()
        return _WORD in whole_text(said.logs[0].read(0).data)
