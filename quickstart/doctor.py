"""What this host has of what QuickStart needs, and the one line that mends what it lacks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import CommandError, MissingToolError, NeedsRootError
from quickstart.host import door, userns
from quickstart.host.files import free_bytes, temporary_directory
from quickstart.host.progress import Progress
from quickstart.launch import accel
from quickstart.model import MIB
from quickstart.store.store import Store
from quickstart.volume.nfs import nfs_server

FOUND, MISSING, BROKEN = "found", "missing", "broken"
_LIMIT_S = 60.0
_NEED_MIB = 4096
# A call of each tool that does next to nothing and succeeds when the tool works.
_TRIALS: dict[str, tuple[str, ...]] = {
    "qemu-system-x86_64": ("--version",),
    "qemu-img": ("--version",),
    "debootstrap": ("--version",),
    "mkfs.ext4": ("-V",),
    "debugfs": ("-V",),
    "busybox": ("true",),
    "strace": ("-V",),
    "cc": ("--version",),
    "musl-gcc": ("--version",),
    "unshare": ("--version",),
    "setpriv": ("--version",),
    "prlimit": ("--version",),
    "chroot": ("--version",),
    "cp": ("--version",),
    "tar": ("--version",),
    "gzip": ("--version",),
    "xz": ("--version",),
    "zstd": ("--version",),
}


@dataclass(frozen=True)
class Finding:
    """One need: ``state`` is found, missing or broken; ``mend`` is the line that mends it, empty when nothing is to do.

    Without an ``optional`` need QuickStart works all the same, slower.
    """

    need: str
    state: str
    detail: str
    mend: str
    optional: bool = False


def examine(store: Store, progress: Progress) -> tuple[Finding, ...]:
    """Look at every need, in the order in which a build meets them; tries KVM with a tiny guest."""
    with progress.step("look at the tools"):
        tools = [_tool(name, arguments) for name, arguments in _TRIALS.items()]
        rest = [_static_libc(), _owners(), _space(store)]
    with progress.step("try the accelerator"):
        kvm = _accelerator(store)
    return (*tools, *rest, _nfs(), kvm)


def _tool(name: str, arguments: tuple[str, ...]) -> Finding:
    def trial() -> str:
        done = door.run([name, *arguments], timeout_s=_LIMIT_S)
        return (done.stdout or done.stderr).decode(errors="replace").partition("\n")[0]

    return _tried(name, door.package_of(name), trial)


def _tried(name: str, package: str, trial: Callable[[], str]) -> Finding:
    try:
        return Finding(name, FOUND, trial(), "")
    except MissingToolError as error:
        return Finding(name, MISSING, error.message, error.hint or "")
    except CommandError as error:
        return Finding(name, BROKEN, error.message, f"apt-get install --reinstall {package}")


def _static_libc() -> Finding:
    """The launch agent is linked statically: a compiler without libc.a cannot do it."""

    def trial() -> str:
        with tempfile.TemporaryDirectory(prefix="quickstart-", dir=temporary_directory()) as name:
            source = Path(name) / "trial.c"
            source.write_text("int main(void) { return 0; }\n")
            door.run(["cc", "-static", "-o", source.with_suffix(""), source], timeout_s=_LIMIT_S)
        return "a static program was linked"

    finding = _tried("libc.a", door.package_of("libc.a"), trial)
    if finding.state == BROKEN:
        return Finding("libc.a", MISSING, finding.detail, f"apt-get install {door.package_of('libc.a')}")
    return finding


def _nfs() -> Finding:
    """Only the bench needs it, for the storage nfs-100m by the host's clock."""
    try:
        return Finding("NFS server", FOUND, nfs_server(), "", optional=True)
    except MissingToolError as error:
        return Finding("NFS server", MISSING, error.message, error.hint or "", optional=True)
    except CommandError as error:
        mend = f"apt-get install --reinstall {door.package_of('ganesha.nfsd')}"
        return Finding("NFS server", BROKEN, error.message, mend, optional=True)


def _owners() -> Finding:
    """Who may make an image with owners of its own: root, or whoever gets a user namespace with ids of his."""
    need = "owners in images"
    if os.geteuid() == 0:
        return Finding(need, FOUND, "this is root", "")
    try:
        ids = userns.subordinate_ids()
        userns.check_namespaces()
    except NeedsRootError as error:
        return Finding(need, MISSING, error.message, (error.hint or "").removesuffix(userns.OR_ROOT))
    return Finding(need, FOUND, f"a user namespace with the subordinate ids from {ids.first_uid} on", "")


def _space(store: Store) -> Finding:
    free_mib = free_bytes(store.root) // MIB
    detail = f"{free_mib} MiB free for {store.root}"
    if free_mib >= _NEED_MIB:
        return Finding("disk space", FOUND, detail, "")
    return Finding(
        "disk space", MISSING, f"{detail}, {_NEED_MIB} needed", "QUICKSTART_CACHE=/a/larger/disk quickstart …"
    )


def _accelerator(store: Store) -> Finding:
    """The verdict of a tiny guest on KVM; it needs a kernel: of the store's images, else the host's own."""
    kernels = [*store.root.glob("reference/*/root/boot/vmlinuz-*"), *Path("/boot").glob("vmlinuz-*")]
    readable = sorted(path for path in kernels if os.access(path, os.R_OK))
    if not readable:
        return Finding(
            "KVM", MISSING, "not tried: no kernel to boot", "quickstart build, then again", optional=True
        )
    try:
        accelerator = accel.choose(readable[-1], store)
    except MissingToolError as error:
        return Finding("KVM", MISSING, error.message, error.hint or "", optional=True)
    if accelerator.name == "kvm":
        return Finding("KVM", FOUND, accelerator.why, "")
    present = Path("/dev/kvm").exists()
    mend = "nothing to do: TCG serves, more slowly"
    return Finding("KVM", BROKEN if present else MISSING, accelerator.why, mend, optional=True)
