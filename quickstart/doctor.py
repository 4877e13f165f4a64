"""Check whether this host has the tools and facilities that QuickStart needs. For each tool or facility that is
missing or broken, name the command that installs or repairs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import CommandError, MissingToolError, NeedsRootError
from quickstart.host import door, userns
from quickstart.host.files import free_bytes
from quickstart.host.workspace import workspace
from quickstart.launch import accel
from quickstart.model import MIB
from quickstart.store.context import Context
from quickstart.store.store import Store
from quickstart.volume.nfs import nfs_server

FOUND, MISSING, BROKEN = "found", "missing", "broken"
_LIMIT_S = 60.0
_NEED_MIB = 4096
# The keyring of the suites that were tested (/usr/share/debootstrap/scripts).
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# A call of each tool that does next to nothing and succeeds when the tool works.
_TRIALS: dict[str, tuple[str, ...]] = {
    "qemu-system-x86_64": ("--version",),
    "qemu-img": ("--version",),
    "debootstrap": ("--version",),
    "gpgv": ("--version",),
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


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. ``need`` names the tool or facility that QuickStart needs. ``state`` is found, missing
    or broken. ``mend`` is a command or advice for the user, or empty. ``optional`` says that QuickStart also works
    without the tool or facility. Without an optional tool or facility, QuickStart works more slowly, or `quickstart
    bench` cannot use all storage models.
    """

    need: str
    state: str
    detail: str
    mend: str
    optional: bool = False


def examine(context: Context) -> tuple[Finding, ...]:
    """Check everything that QuickStart needs on this host. The function checks the tools first. At the end, it tries
    KVM with a tiny guest.
    """
    with context.progress.step("look at the tools"):
        tools = [_tool(name, arguments) for name, arguments in _TRIALS.items()]
        rest = [_keyring(), _static_libc(), _owners(), _space(context.store)]
    with context.progress.step("try the accelerator"):
        kvm = _accelerator(context.store)
    return (*tools, *rest, _nfs(), kvm)


def _tool(name: str, arguments: tuple[str, ...]) -> Finding:
    def trial() -> str:
        done = door.run([name, *arguments], timeout_s=_LIMIT_S)
        return (done.stdout or done.stderr).decode(errors="replace").partition("\n")[0]

    return _tried(name, door.package_of(name), trial)


def _tried(name: str, package: str, trial: Callable[[], str]) -> Finding:
    try:
        return Finding(need=name, state=FOUND, detail=trial(), mend="")
    except MissingToolError as error:
        return Finding(need=name, state=MISSING, detail=error.message, mend=error.hint or "")
    except CommandError as error:
        return Finding(
            need=name,
            state=BROKEN,
            detail="; ".join(error.lines),
            mend=f"apt-get install --reinstall {package}",
        )


def _keyring() -> Finding:
    """Check that the file with Debian's signing keys exists. Without these keys, debootstrap cannot check the
    signature of a package archive, and refuses the archive.
    """
    if KEYRING.is_file():
        return Finding(need=KEYRING.name, state=FOUND, detail=str(KEYRING), mend="")
    mend = f"apt-get install {door.package_of(KEYRING.name)}"
    return Finding(need=KEYRING.name, state=MISSING, detail=f"{KEYRING} is not there", mend=mend)


def _static_libc() -> Finding:
    """Check libc.a, the static C library. Without this library, the compiler cannot link QuickStart's launch agent,
    because the launch agent is a static program.
    """

    def trial() -> str:
        with workspace("quickstart-doctor-") as place:
            source = place / "trial.c"
            source.write_text("int main(void) { return 0; }\n")
            argv: list[str | Path] = ["cc", "-static", "-o", source.with_suffix(""), source]
            door.run(argv, timeout_s=_LIMIT_S, env={"TMPDIR": str(place)})
        return "a static program was linked"

    finding = _tried("libc.a", door.package_of("libc.a"), trial)
    if finding.state == BROKEN:
        return Finding(
            need="libc.a",
            state=MISSING,
            detail=finding.detail,
            mend=f"apt-get install {door.package_of('libc.a')}",
        )
    return finding


def _nfs() -> Finding:
    """Check the NFS server. Only `quickstart bench` needs an NFS server. The bench uses this server for the storage
    model nfs-100m when the bench measures times by the host's clock (`kvm` or `wall`).
    """
    try:
        return Finding(need="NFS server", state=FOUND, detail=nfs_server(), mend="", optional=True)
    except MissingToolError as error:
        return Finding(
            need="NFS server", state=MISSING, detail=error.message, mend=error.hint or "", optional=True
        )
    except CommandError as error:
        mend = f"apt-get install --reinstall {door.package_of('ganesha.nfsd')}"
        return Finding(
            need="NFS server", state=BROKEN, detail="; ".join(error.lines), mend=mend, optional=True
        )


def _owners() -> Finding:
    """Check whether this user may make images whose files have several owners. Root may make such images. Any other
    user needs subordinate IDs (subuid(5)) and the right to make user namespaces.
    """
    need = "owners in images"
    if os.geteuid() == 0:
        return Finding(need=need, state=FOUND, detail="this is root", mend="")
    try:
        ids = userns.subordinate_ids()
        userns.check_namespaces()
    except NeedsRootError as error:
        return Finding(
            need=need,
            state=MISSING,
            detail=error.message,
            mend=(error.hint or "").removesuffix(userns.OR_ROOT),
        )
    return Finding(
        need=need,
        state=FOUND,
        detail=f"a user namespace with the subordinate ids from {ids.first_uid} on",
        mend="",
    )


def _space(store: Store) -> Finding:
    free_mib = free_bytes(store.root) // MIB
    detail = f"{free_mib} MiB free for {store.root}"
    if free_mib >= _NEED_MIB:
        return Finding(need="disk space", state=FOUND, detail=detail, mend="")
    return Finding(
        need="disk space",
        state=MISSING,
        detail=f"{detail}, {_NEED_MIB} needed",
        mend="QUICKSTART_CACHE=/a/larger/disk quickstart …",
    )


def _accelerator(store: Store) -> Finding:
    """Try KVM with a tiny guest. The guest boots the kernel of a reference image in the store. If the store has no
    kernel, the guest boots a kernel from /boot of this host.
    """
    kernels = [*store.root.glob("reference/*/root/boot/vmlinuz-*"), *Path("/boot").glob("vmlinuz-*")]
    # A link of an image leads to a file of the host's.
    plain = [path for path in kernels if path.is_file() and not path.is_symlink()]
    readable = sorted(path for path in plain if os.access(path, os.R_OK))
    if not readable:
        return Finding(
            need="KVM",
            state=MISSING,
            detail="not tried: no kernel to boot",
            mend="quickstart build, then again",
            optional=True,
        )
    try:
        accelerator = accel.choose(readable[-1], store)
    except MissingToolError as error:
        return Finding(need="KVM", state=MISSING, detail=error.message, mend=error.hint or "", optional=True)
    if accelerator.name == "kvm":
        return Finding(need="KVM", state=FOUND, detail=accelerator.why, mend="")
    present = Path("/dev/kvm").exists()
    mend = "nothing to do: TCG serves, more slowly"
    return Finding(
        need="KVM", state=BROKEN if present else MISSING, detail=accelerator.why, mend=mend, optional=True
    )
