"""Use a user's own root file system (a directory or a tar archive) as the reference image (docs/users/build.md). The
reference image is a copy of this root, with only a few additions.

This module makes three additions. It adds the directory /fast, because the start set is mounted over /fast. If fstab
has no line for the root volume, the module adds this line. Unless the user refuses the package quickstart-guest, the
module adds this package.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door
from quickstart.host.unchanged import digest_of
from quickstart.host.witness import ForeignOwnerError
from quickstart.inspect.firstboot import is_unborn
from quickstart.inspect.foreign.directory import read_directory
from quickstart.inspect.foreign.home import NotHome, bring_home, foreign_members, limits_of_disk
from quickstart.inspect.foreign.members import DeviceNode
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import IMAGE_TIME_S, MIB, Profile, ReferenceImage
from quickstart.parse.printable import brief, command
from quickstart.reference import customise, entry, guest
from quickstart.reference.fstab import RootLine, root_volume
from quickstart.store.context import Context
from quickstart.store.store import Store, key_of, source_digest
from quickstart.store.treehash import tree_hash

_NAMESPACE = uuid.UUID("0d0c7be2-5d7e-4b0a-8a55-0a3c5d1f2b00")
# The first bytes of a compressed archive, and the program with which tar reads it.
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))
# tar(5): the magic of a header, and the two empty records at the end of an archive.
_TAR_MAGIC_AT, _TAR_MAGIC, _TAR_END_BYTES = 257, b"ustar", 1024
_MOST_DEVICES, _DEVICE_PATH_BYTES = 4096, 1024
_MOUNT_POINTS = ("proc", "sys", "dev", "run")
_HOW_TO_TAR = "make it with tar --xattrs --xattrs-include='*' --acls --numeric-owner -C ROOT -c . (plain, gzip, xz or zstd)"


@dataclass(frozen=True)
class Rootfs:
    """The user's root file system. ``kind`` is ``directory`` or ``tar``. ``digest`` is the hash of the directory tree,
    or the SHA-256 of the archive.
    """

    path: Path
    kind: str
    digest: str


def examine(path: Path) -> Rootfs:
    """The root at ``path``, which is a directory or a tar archive. Reading a directory needs root.

    Raises BadInputError for any other file, and for the directory / of the host.
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
        return Rootfs(path.resolve(), "tar", digest_of(file.fileno(), path))


def _hash_of(directory: Path) -> str:
    """The hash of everything that is copied from ``directory``. Device nodes and sockets are left out, and mount points
    count as empty directories. Raises BadInputError when a file cannot be read, or when a file has an owner that only
    root could keep in the copy.
    """
    try:
        return tree_hash(directory, as_copied_s=IMAGE_TIME_S)
    except ForeignOwnerError as error:
        raise _of_strangers(directory, error) from error
    except OSError as error:
        raise BadInputError(
            f"{directory} cannot be read whole: {error}",
            hint="give a directory that no running system writes to",
        ) from error


def _of_strangers(directory: Path, error: ForeignOwnerError) -> BadInputError:
    """The exception for a directory with a file whose owner an ordinary user cannot keep in a copy."""
    path = PurePosixPath(os.fsdecode(error.filename))
    named = path.relative_to(directory) if path.is_relative_to(directory) else path
    return BadInputError(
        f"{directory} cannot be copied with its owners: {brief(str(named))} {error.strerror}, which only root can keep",
        hint=f"build as root, or let root make a tar, and give that: {_HOW_TO_TAR}",
    )


def _check_tar(path: Path) -> tuple[str, ...]:
    """The argv of the program that decompresses the archive. The result is empty for an uncompressed archive. Raises
    BadInputError when the file is not a tar archive, or when an uncompressed archive is cut off before its end mark.
    """
    with path.open("rb") as file:
        head = file.read(512)
        for magic, tool in _COMPRESSED:
            if head.startswith(magic):
                door.need_tools(tool)
                return (tool, "-dc")
        if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] != _TAR_MAGIC:
            raise BadInputError(f"{path} is not a tar archive", hint=_HOW_TO_TAR)
        file.seek(-min(_TAR_END_BYTES, path.stat().st_size), os.SEEK_END)
        if file.read() != bytes(_TAR_END_BYTES):
            raise BadInputError(f"{path} is cut: it has no end of archive", hint="copy or make it again")
    return ()


def rootfs_inputs(rootfs: Rootfs, *, guest_package: bool = True) -> Mapping[str, object]:
    """The inputs on which the reference image depends. These inputs include the content of ``rootfs``, but not its
    path.
    """
    return {
        "kind": rootfs.kind,
        "digest": rootfs.digest,
        "recipe": source_digest(
            "quickstart.reference", "quickstart.inspect.foreign", "quickstart.store.treehash"
        ),
        **guest.inputs(guest_package),
    }


def reference_of(
    profile: Profile, rootfs: Rootfs, context: Context, *, guest_package: bool = True
) -> ReferenceImage:
    """The user's root as a reference image. If the store does not have the image yet, the function copies the root into
    the store. Copying needs the rights of the user root.

    Raises BadInputError when the root lacks something that a machine needs. The message names everything that
    is missing.
    """
    store, progress = context.store, context.progress
    inputs = rootfs_inputs(rootfs, guest_package=guest_package)
    if store.find("reference", inputs) is None:
        door.need_root("copying a root file system with its owners")
        door.need_tools("unshare", "setpriv")

    def make(directory: Path) -> None:
        tree = directory / "root"
        if rootfs.kind == "directory":
            with progress.step(f"reference: copy {rootfs.path}"):
                left_out = copy_directory(rootfs, tree, store, profile.disk_mib * MIB)
        else:
            with progress.step(f"reference: unpack {rootfs.path}"):
                left_out = unpack(rootfs.path, tree, profile.disk_mib * MIB, rootfs.digest)
        if left_out.sockets:
            progress.note(
                f"left out, as sockets are not copied: {', '.join(map(brief, left_out.sockets[:20]))}"
            )
        check_devices(left_out.devices, rootfs.path)
        with progress.step("reference: check and hash"):
            check_machine(ImageRoot(tree), rootfs.path)
            own = RootLine(str(uuid.uuid5(_NAMESPACE, key_of("reference", inputs))), "root")
            volume = complete(tree, own)
            guest.forget_build(tree)
            if guest_package and not guest.place(tree):
                progress.note("the root has no dpkg: quickstart-guest was left out")
            entry.write_facts(directory, volume.uuid, volume.label, left_out.devices)

    image = entry.load(store.get_or_make("reference", inputs, make).path, (rootfs.kind, rootfs.digest))
    check_packages(ImageRoot(image.tree), profile, rootfs.path)
    return image


def copy_directory(rootfs: Rootfs, tree: Path, store: Store, disk_bytes: int) -> NotHome:
    """Copy the directory ``rootfs`` to ``tree``, with owners, modes, ACLs, extended attributes, times, hard links and
    holes. The content of file systems that are mounted in the directory is not copied.

    Return the device nodes and sockets, which are not copied. Raises BadInputError when a disk of ``disk_bytes`` bytes
    cannot hold the data, or when the directory changes during the copy.
    """
    if store.root.resolve().is_relative_to(rootfs.path):
        raise BadInputError(
            f"the store {store.root} lies in {rootfs.path}", hint="set QUICKSTART_CACHE to another directory"
        )
    try:
        members = read_directory(rootfs.path, IMAGE_TIME_S * 10**9)
        left_out = bring_home(members, tree, limits_of_disk(disk_bytes), str(rootfs.path))
    except ForeignOwnerError as error:
        raise _of_strangers(rootfs.path, error) from error
    except OSError as error:
        raise _not_copied(rootfs.path, error) from error
    # The copy is hashed, because the owner could have changed the source and then restored it.
    if _hash_of(tree) != rootfs.digest:
        raise BadInputError(
            f"{rootfs.path} changed while it was copied",
            hint="give a directory that no running system writes to",
        )
    return left_out


def _not_copied(source: Path, error: OSError) -> Exception:
    """The exception to raise when copying ``source`` has failed. When the disk of the store is full, the exception is a
    HostLacksError with this reason. Otherwise, the exception is a BadInputError that says that ``source`` cannot be
    copied.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostLacksError(
            f"{source} does not fit into the store", hint="free some space, or set QUICKSTART_CACHE"
        )
    return BadInputError(
        f"{source} cannot be copied whole: {error}", hint="give a directory that no running system writes to"
    )


def unpack(path: Path, tree: Path, disk_bytes: int, digest: str = "") -> NotHome:
    """Unpack the tar archive at ``path`` into the directory ``tree``. No file is written outside of ``tree``, and no
    link is followed.

    Return the device nodes and sockets, which are not unpacked. Raises BadInputError in these three cases.

    - The archive cannot be unpacked completely.
    - The archive has more data than a disk of ``disk_bytes`` bytes can hold.
    - The archive's SHA-256 is not ``digest``.
    """
    try:
        with foreign_members(path, "tar", _check_tar(path), digest) as members:
            return bring_home(members, tree, limits_of_disk(disk_bytes), str(path))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _not_copied(path, error) from error


def check_devices(devices: tuple[DeviceNode, ...], source: Path) -> None:
    """Raise BadInputError when there are more than _MOST_DEVICES device nodes. Also raise BadInputError when debugfs(8)
    could not read the path of a device node, because the path has a line break or is too long.
    """
    if len(devices) > _MOST_DEVICES:
        raise BadInputError(
            f"{source} has {len(devices)} device nodes; up to {_MOST_DEVICES} are taken",
            hint="remove what no service needs",
        )
    for node in devices:
        if {"\n", "\r"} & set(node.path) or len(os.fsencode(node.path)) > _DEVICE_PATH_BYTES:
            raise BadInputError(
                f"{source} has a device node with a line break in its name, or more than {_DEVICE_PATH_BYTES} bytes: "
                f"{node.path[:200]!a}",
                hint="rename it, or move it up",
            )


def check_machine(root: ImageRoot, source: Path) -> None:
    """Raise BadInputError when ``root`` lacks something that a machine needs. The message names everything
    that is missing.
    """
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
        faults += _kernel_faults(root, version)
    if root.resolve(PurePosixPath("/usr/share/initramfs-tools/init")).canonical is None:
        faults.append("its initramfs is not made by initramfs-tools: install that in place of dracut")
    if is_unborn(root):
        faults.append(
            "its /etc/machine-id asks for a first boot, in which systemd enables units by its presets: make it an empty file"
        )
    # We write into two of these, where the host would resolve a link from its own root. Init moves its mounts onto the others.
    for name, may_lack in (("etc", False), ("fast", True), *((name, False) for name in _MOUNT_POINTS)):
        path = root.base / name
        if path.is_symlink() or not (path.is_dir() or (may_lack and not path.exists())):
            faults.append(f"its /{name} is not a directory")
    if faults:
        raise BadInputError(f"{source} cannot be the root of a machine:", details=faults)


def _kernel_faults(root: ImageRoot, version: str) -> Iterator[str]:
    """A fault for each file that the image lacks for its kernel ``version``. The version comes from a file name of
    the image, so it may be any text.
    """
    said = brief(version)
    modules = root.resolve(PurePosixPath(f"/lib/modules/{version}/modules.dep")).canonical
    if modules is None:
        yield f"it has no /lib/modules/{said} with modules.dep: install the kernel's package whole"
    if root.resolve(PurePosixPath(f"/boot/initrd.img-{version}")).canonical is None:
        run = command("update-initramfs", "-c", "-k", version) or "update-initramfs"
        yield f"it has no /boot/initrd.img-{said}: run {run} in it"


def complete(tree: Path, own: RootLine) -> RootLine:
    """Add the directory /fast and a line for the root volume in fstab, if they are missing. Return the UUID and the
    label for the root volume. ``own`` has a UUID and a label that QuickStart has chosen. If fstab does not give the
    UUID or the label, the missing value comes from ``own``.
    """
    fast, file, etc = tree / "fast", tree / "etc/fstab", tree / "etc"
    if not fast.exists():
        fast.mkdir()
        fast.chmod(0o755)
        os.utime(fast, (IMAGE_TIME_S, IMAGE_TIME_S))
    text = guest.text_of(ImageRoot(tree), PurePosixPath("/etc/fstab")) if os.path.lexists(file) else ""
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
    """Raise BadInputError when the root lacks packages of the profile according to dpkg's database. The message names
    these packages. A root without a dpkg database is not checked.
    """
    status = root.resolve(PurePosixPath("/var/lib/dpkg/status")).canonical
    if status is None:
        return
    have = set(profile.packages).intersection(installed_packages(guest.text_of(root, status)))
    if missing := [name for name in profile.packages if name not in have]:
        raise BadInputError(
            f"{source} lacks packages of the profile {profile.name}: {', '.join(missing)}",
            hint="install them there; a root that was given is not changed",
        )


def installed_packages(status: str) -> Iterator[str]:
    """The names of the packages that are installed according to dpkg's status file (deb822). The result also has the
    names of virtual packages that the installed packages provide.
    """
    for stanza in guest.stanzas(status):
        fields = dict(re.findall(r"^(Package|Status|Provides): *(.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").split()[-1:] == ["installed"]:
            # NAME (= VERSION), …; no version has a comma (deb-version(7)).
            provided = (each[0] for each in re.finditer(r"[^,]+", fields.get("Provides", "")))
            for each in chain((fields.get("Package", ""),), provided):
                if name := each.partition("(")[0].strip():
                    yield name
