"""A user's own root, a directory or a tar, as the reference image (docs/build.md): copied, and left as it is but for two things.

These are the directory /fast, where the start set is bound, and a line for the root volume in an fstab that has none. The package
quickstart-guest comes with them unless it is not wanted.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError, CommandError, HostLacksError
from quickstart.host import door
from quickstart.imageroot import ImageRoot
from quickstart.model import IMAGE_TIME_S, Profile, ReferenceImage
from quickstart.progress import Progress
from quickstart.reference import customise, entry, guest
from quickstart.reference.fstab import RootLine, root_volume
from quickstart.store import Store, key_of, source_digest
from quickstart.treehash import tree_hash

_NAMESPACE = uuid.UUID("0d0c7be2-5d7e-4b0a-8a55-0a3c5d1f2b00")
# What a compressed archive begins with, and the program that tar asks to read it.
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))
# tar(5): the magic of a header, and the two empty records at the end.
_TAR_MAGIC_AT, _TAR_MAGIC, _TAR_END_BYTES = 257, b"ustar", 1024
_MOUNT_POINTS = ("proc", "sys", "dev", "run")
_HOW_TO_TAR = "make it with tar --xattrs --xattrs-include='*' --acls --numeric-owner -C ROOT -c . (plain, gzip, xz or zstd)"


@dataclass(frozen=True)
class Rootfs:
    """What the user gave: ``kind`` is ``directory`` or ``tar``, ``digest`` the tree's hash or the file's SHA-256."""

    path: Path
    kind: str
    digest: str


def examine(path: Path) -> Rootfs:
    """The root at ``path`` (a directory or a tar; a directory needs root to be read).

    Raises BadInputError for what is neither, and for the host's own root.
    """
    if path.is_dir():
        if path.samefile("/"):
            raise BadInputError("/ is this host's own root", hint=f"give a copy, or a tar: {_HOW_TO_TAR}")
        door.need_root("reading and copying a root directory")
        return Rootfs(path.resolve(), "directory", _hash_of(path.resolve()))
    if not path.is_file():
        raise BadInputError(
            f"{path} is neither a directory nor a file", hint="--rootfs takes a directory or a tar"
        )
    _check_tar(path)
    with path.open("rb") as file:
        return Rootfs(path.resolve(), "tar", hashlib.file_digest(file, "sha256").hexdigest())


def _hash_of(directory: Path) -> str:
    try:
        return tree_hash(directory)
    except OSError as error:
        raise BadInputError(
            f"{directory} cannot be read whole: {error}",
            hint="give a directory that no running system writes to",
        ) from error


def _check_tar(path: Path) -> None:
    """A plain tar has to begin and end as one: cut between two members, tar itself takes it for whole."""
    with path.open("rb") as file:
        head = file.read(512)
        for magic, tool in _COMPRESSED:
            if head.startswith(magic):
                door.need_tools(tool)
                return
        if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] != _TAR_MAGIC:
            raise BadInputError(f"{path} is not a tar archive", hint=_HOW_TO_TAR)
        file.seek(-min(_TAR_END_BYTES, path.stat().st_size), os.SEEK_END)
        if file.read() != bytes(_TAR_END_BYTES):
            raise BadInputError(f"{path} is cut: it has no end of archive", hint="copy or make it again")


def rootfs_inputs(rootfs: Rootfs, *, guest_package: bool = True) -> Mapping[str, object]:
    """What the reference image of ``rootfs`` depends on: its content, never where it lies."""
    return {
        "kind": rootfs.kind,
        "digest": rootfs.digest,
        "recipe": source_digest("quickstart.reference", "quickstart.treehash"),
        **guest.inputs(guest_package),
    }


def reference_of(
    profile: Profile, rootfs: Rootfs, store: Store, progress: Progress, *, guest_package: bool = True
) -> ReferenceImage:
    """The user's root as a reference image, out of the store or copied now (as root).

    Raises BadInputError, naming all that is missing, when no machine can be made of it.
    """
    inputs = rootfs_inputs(rootfs, guest_package=guest_package)
    if store.find("reference", inputs) is None:
        door.need_root("copying a root file system with its owners")
        door.need_tools("cp", "tar")

    def make(directory: Path) -> None:
        tree = directory / "root"
        if rootfs.kind == "directory":
            with progress.step(f"reference: copy {rootfs.path}"):
                copy_directory(rootfs, tree, store)
        else:
            with progress.step(f"reference: unpack {rootfs.path}"):
                unpack(rootfs.path, tree)
        with progress.step("reference: check and hash"):
            check_machine(ImageRoot(tree), rootfs.path)
            own = RootLine(str(uuid.uuid5(_NAMESPACE, key_of("reference", inputs))), "root")
            volume = complete(tree, own)
            guest.forget_build(tree)
            if guest_package and not guest.place(tree):
                progress.note("the root has no dpkg: quickstart-guest was left out")
            entry.write_facts(directory, volume.uuid, volume.label)

    image = entry.load(store.get_or_make("reference", inputs, make).path, (rootfs.kind, rootfs.digest))
    check_packages(ImageRoot(image.tree), profile, rootfs.path)
    return image


def copy_directory(rootfs: Rootfs, tree: Path, store: Store) -> None:
    """Copy with owners, modes, ACLs, attributes, times, hard links, holes and nodes, never into what is mounted there."""
    if store.root.resolve().is_relative_to(rootfs.path):
        raise BadInputError(
            f"the store {store.root} lies in {rootfs.path}", hint="set QUICKSTART_CACHE to another directory"
        )
    kept = "--preserve=mode,ownership,timestamps,links,xattr"
    options = ("-dR", kept, "--one-file-system", "--reflink=auto", "--sparse=auto")
    _into_store(["cp", *options, rootfs.path, tree], rootfs.path)
    for point in _mount_points(rootfs.path):
        # The time is that of what is mounted, and changes while it lives.
        os.utime(tree / point, (IMAGE_TIME_S, IMAGE_TIME_S))
    if _hash_of(rootfs.path) != rootfs.digest:
        raise BadInputError(
            f"{rootfs.path} changed while it was copied",
            hint="give a directory that no running system writes to",
        )


def _mount_points(directory: Path) -> list[Path]:
    """Directories below, relative, on which another file system is mounted."""
    device, found = directory.stat().st_dev, []
    for base, names, _ in os.walk(directory):
        mounted = [name for name in names if os.lstat(f"{base}/{name}").st_dev != device]
        found += [Path(base, name).relative_to(directory) for name in mounted]
        names[:] = [name for name in names if name not in mounted]
    return [point for point in found if not (directory / point).is_symlink()]


def unpack(path: Path, tree: Path) -> None:
    """Unpack a tar below ``tree``: names stay inside (tar(1) drops a leading /, refuses ``..`` and delays links that lead out).

    Raises BadInputError for an archive that tar does not take whole.
    """
    tree.mkdir()
    # An archive without a member for its root leaves it so, whatever the umask.
    tree.chmod(0o755)
    options = ("--numeric-owner", "--same-owner", "-p", "--xattrs", "--xattrs-include=*", "--acls")
    try:
        _into_store(["tar", "-x", *options, "-C", tree, "-f", path], path)
    except CommandError as error:
        raise BadInputError(
            f"{path} cannot be unpacked whole\n{error.tail.rstrip()}", hint=f"is it cut? {_HOW_TO_TAR}"
        ) from error


def _into_store(argv: list[str | Path], source: Path) -> None:
    """Run what fills the store; raises HostLacksError when that is full, CommandError for any other fault."""
    try:
        door.run(argv, timeout_s=3600)
    except CommandError as error:
        if "No space left on device" in error.tail:
            raise HostLacksError(
                f"{source} does not fit into the store", hint="free some space, or set QUICKSTART_CACHE"
            ) from error
        raise


def check_machine(root: ImageRoot, source: Path) -> None:
    """Raise BadInputError with every thing that a machine of ours needs and ``root`` lacks."""
    faults = []
    if not root.base.stat().st_mode & stat.S_IXOTH:
        faults.append("its root directory may be entered by root only: chmod 755")
    init = root.resolve(PurePosixPath("/sbin/init")).canonical
    if init is None or init.name != "systemd":
        faults.append(
            "its /sbin/init is not systemd: install systemd-sysv in it (a tar is made with -C ROOT -c .)"
        )
    version = entry.newest_kernel(root)
    if version is None:
        faults.append(
            "it has no kernel /boot/vmlinuz-VERSION: install linux-image-amd64 or linux-image-cloud-amd64"
        )
    else:
        modules = root.resolve(PurePosixPath(f"/lib/modules/{version}/modules.dep")).canonical
        if modules is None:
            faults.append(
                f"it has no /lib/modules/{version} with modules.dep: install the kernel's package whole"
            )
        if root.resolve(PurePosixPath(f"/boot/initrd.img-{version}")).canonical is None:
            faults.append(f"it has no /boot/initrd.img-{version}: run update-initramfs -c -k {version} in it")
    if root.resolve(PurePosixPath("/usr/share/initramfs-tools/init")).canonical is None:
        faults.append("its initramfs is not made by initramfs-tools: install that in place of dracut")
    # We write in two of them, and the host would follow a link its own way; on the others init moves its mounts.
    for name, may_lack in (("etc", False), ("fast", True), *((name, False) for name in _MOUNT_POINTS)):
        path = root.base / name
        if path.is_symlink() or not (path.is_dir() or (may_lack and not path.exists())):
            faults.append(f"its /{name} is not a directory")
    if faults:
        raise BadInputError("\n  ".join((f"{source} cannot be the root of a machine:", *faults)))


def complete(tree: Path, own: RootLine) -> RootLine:
    """Add what a machine needs; the volume's UUID and label: those that fstab wants, else ``own``."""
    fast, file, etc = tree / "fast", tree / "etc/fstab", tree / "etc"
    if not fast.exists():
        fast.mkdir()
        fast.chmod(0o755)
        os.utime(fast, (IMAGE_TIME_S, IMAGE_TIME_S))
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise BadInputError("/etc/fstab is not a plain file", hint="put the file itself there")
    text = file.read_text(errors="surrogateescape") if file.exists() else ""
    volume = root_volume(text)
    if volume is None:
        status = etc.stat()
        with file.open("a") as stream:
            stream.write(("" if text.endswith("\n") or not text else "\n") + customise.fstab(own.uuid))
        for path, times in (
            (file, (IMAGE_TIME_S * 10**9,) * 2),
            (etc, (status.st_atime_ns, status.st_mtime_ns)),
        ):
            os.utime(path, ns=times)
        return own
    return RootLine(volume.uuid or own.uuid, volume.label or own.label)


def check_packages(root: ImageRoot, profile: Profile, source: Path) -> None:
    """Raise BadInputError, naming them, when packages of the profile are not installed; only dpkg is asked."""
    status = root.resolve(PurePosixPath("/var/lib/dpkg/status")).canonical
    if status is None:
        return
    have = installed_packages(root.read_text(status))
    if missing := [name for name in profile.packages if name not in have]:
        raise BadInputError(
            f"{source} lacks packages of the profile {profile.name}: {', '.join(missing)}",
            hint="install them there; a root that was given is not changed",
        )


def installed_packages(status: str) -> frozenset[str]:
    """The packages that dpkg's status file (deb822) calls installed, with what they provide."""
    found: set[str] = set()
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Provides): *(.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").split()[-1:] == ["installed"]:
            # NAME (= VERSION), …; no version has a comma (deb-version(7)).
            provided = (each.partition("(")[0] for each in fields.get("Provides", "").split(","))
            found.update(name.strip() for name in (fields.get("Package", ""), *provided))
    return frozenset(found - {""})
