"""Make the reference image with debootstrap. For each suite (Debian release), the module makes one base image. For a
profile, the module copies the base image, and adds the profile's packages to the copy.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError, CommandError, HostLacksError, ReferenceImageError
from quickstart.host import door
from quickstart.host.files import free_bytes
from quickstart.model import IMAGE_TIME_S, MIB, Profile, ReferenceImage
from quickstart.reference import customise, entry, guest, variant
from quickstart.reference.confine import COMPILER, NOT_CONFINED, TARGET, confiner, run_in
from quickstart.reference.sources import Sources, host_sources
from quickstart.reference.variant import Variant
from quickstart.store.context import Context
from quickstart.store.store import Entry, Store, key_of, source_digest

# The machine that Debian's installer makes with "SSH server" and no desktop, without what only real hardware needs.
BASE_PACKAGES = (
    "cron",
    "dbus",
    "e2fsprogs",
    "ifupdown",
    "init",
    "initramfs-tools",
    "iproute2",
    "isc-dhcp-client",
    "kmod",
    "libpam-systemd",
    "linux-image-cloud-amd64",
    "logrotate",
    "netbase",
    "openssh-server",
    "procps",
    "rsyslog",
    "systemd",
    "systemd-sysv",
    "udev",
    "zstd",
)
# Without the last option, debootstrap trusts any archive where the host has no keyring.
FIRST_STAGE = ("--foreign", "--variant=minbase", "--force-check-gpg")
# The keyrings that debootstrap's scripts name for a suite (/usr/share/debootstrap/scripts), and what brings them.
_KEYRING_PACKAGES = {
    "debian-archive-keyring.gpg": "debian-archive-keyring",
    "ubuntu-archive-keyring.gpg": "ubuntu-keyring",
}
_NEED_BYTES = 3 * 1024 * MIB
# The largest file that debootstrap downloads and removes again is a suite's list of packages: unpacked, it has 50 MB.
_LEAST_FREE_BYTES = 128 * MIB
_NAMESPACE = uuid.UUID("6f0c3c8e-4a43-4a52-9d8e-5b1f5f1f2a00")


def reference_inputs(
    profile: Profile, differing: Variant | None = None, *, guest_package: bool = True
) -> Mapping[str, object]:
    """The inputs on which the content of the reference image depends. The profile's name is not one of these inputs."""
    return {
        "base": _base_inputs(profile.suite),
        "packages": list(profile.packages),
        "hash": source_digest("quickstart.store.treehash"),
        **({"units": list(profile.units)} if differing else {}),
        **variant.inputs(differing),
        **guest.inputs(guest_package),
    }


def _base_inputs(suite: str) -> Mapping[str, object]:
    return {
        "suite": suite,
        "packages": list(BASE_PACKAGES),
        "recipe": source_digest("quickstart.reference"),
    }


def root_uuid(inputs: Mapping[str, object]) -> str:
    """The UUID of the root file system, which is computed from ``inputs``. Different inputs give different UUIDs."""
    return str(uuid.uuid5(_NAMESPACE, key_of("reference", inputs)))


def make_reference(
    profile: Profile,
    context: Context,
    differing: Variant | None = None,
    *,
    guest_package: bool = True,
) -> ReferenceImage:
    """The profile's reference image or, with ``differing``, a variant of this image with a few differences. If the
    store does not have the image yet, the function makes the image. Making the image needs root.

    Raises BadInputError for a suite or package that does not exist, HostLacksError when the host lacks a tool or disk
    space, and ReferenceImageError when a step fails.
    """

    inputs = reference_inputs(profile, differing, guest_package=guest_package)

    store, progress = context.store, context.progress

    def make(directory: Path) -> None:
        _check_host(store)
        base = make_base(profile.suite, context).path
        begin_s = time.time()
        root, log = directory / "root", directory / "install.log"
        image = _Image(root, confiner(store), log)
        with progress.step("reference: copy the base"):
            door.run(["cp", "-a", "--reflink=auto", base / "root", root], timeout_s=900)
        with progress.step(f"reference: install {' '.join(profile.packages)}"):
            _install(image, profile.packages, host_sources(profile.suite))
        if guest_package:
            with progress.step("reference: quickstart-guest"), guest.deb_in(root):
                image.run(guest.INSTALL)
        if differing:
            with progress.step(f"reference: {differing.name}"):
                _apply(differing, profile, image)
        with progress.step("reference: the distribution's initramfs"):
            # Set only here, because it makes some packages change more than times (Python's compiled files).
            fixed = {"SOURCE_DATE_EPOCH": str(IMAGE_TIME_S)}
            image.run(("update-initramfs", "-u", "-k", "all"), fixed)
            customise.end(root, root_uuid(inputs))
            customise.fix_times(root, begin_s)
        with progress.step("reference: hash the image"):
            entry.write_facts(directory, root_uuid(inputs), "root")

    made = store.get_or_make("reference", inputs, make)
    return entry.load(made.path, ("debootstrap", made.key))


def _check_host(store: Store) -> None:
    door.need_root("making a reference image (debootstrap, chroot)")
    door.need_tools("debootstrap", "cp", COMPILER)
    free = free_bytes(store.root)
    if free < _NEED_BYTES:
        raise HostLacksError(
            f"{store.root} has {free // MIB} MiB free, a reference image needs {_NEED_BYTES // MIB} MiB",
            hint="free some space, or set QUICKSTART_CACHE to another file system",
        )


def make_base(suite: str, context: Context) -> Entry:
    """The base image of ``suite``. One run of debootstrap makes this image, and then the packages BASE_PACKAGES are
    installed in the image. The image's tree is the directory ``root`` of the store's entry. If the store does not have
    the image yet, the function makes the image. Making the image needs root.

    Raises BadInputError for a suite or package that does not exist, HostLacksError when the host lacks a tool or disk
    space, and ReferenceImageError when a step fails.
    """
    store, progress = context.store, context.progress

    def make(directory: Path) -> None:
        begin_s = time.time()
        sources, program = host_sources(suite), confiner(store)
        root = directory / "root"
        log = directory / "debootstrap.log"
        with progress.step(f"reference: debootstrap {suite}"):
            try:
                _debootstrap(_Image(root, program, log), suite, sources)
            except CommandError as error:
                raise _debootstrap_failed(suite, error) from _cause(root, error)
        with progress.step("reference: kernel, systemd, ssh, cron"):
            _install(_Image(root, program, directory / "install.log"), BASE_PACKAGES, sources)
            customise.configure(root)
            customise.fix_times(root, begin_s)

    return store.get_or_make("base", _base_inputs(suite), make)


@dataclass(frozen=True)
class _Image:
    """An image that is being made: its ``root``, the confiner that runs its programs, and the log for their output."""

    root: Path
    confiner: Path
    log: Path

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a command of the image without a network."""
        run_in(self.root, argv, self.confiner, self.log, env or {})

    def fetch(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Run a command of the image that fetches packages. The command has a network, and runs no script of
        a package.
        """
        run_in(self.root, argv, self.confiner, self.log, env, network=True)

    def unpack(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Run a command of the host that fetches packages and unpacks them into `TARGET`. The command has a
        network, and runs no script of a package.
        """
        run_in(self.root, argv, self.confiner, self.log, env, network=True, host_tools=True)


def _debootstrap(image: _Image, suite: str, sources: Sources) -> None:
    """Run both stages of debootstrap under the confiner, which gives a program rights only over the image. In the first
    stage, the host's debootstrap unpacks packages. In the second stage, debootstrap's copy in the image runs the
    scripts of these packages.
    """
    for directory in (image.root, image.root / "dev"):
        directory.mkdir()
        directory.chmod(0o755)
    mirror = (sources.mirror,) if sources.mirror else ()
    argv = ("debootstrap", *FIRST_STAGE, suite, str(TARGET), *mirror)
    # In a container, debootstrap leaves /proc, /sys and /dev as they are.
    container = {"container": "lxc"}
    image.unpack(argv, {**sources.environment, **container})
    image.run(("/debootstrap/debootstrap", "--second-stage"), container)


def _cause(root: Path, error: CommandError) -> Exception:
    """The reason why debootstrap has failed in ``root``: a full disk, or ``error`` itself. When the disk is full,
    debootstrap only says that it could not download a list of packages. debootstrap also removes the incomplete list,
    so the disk has some free space again. So a disk with less than _LEAST_FREE_BYTES of free space counts as full.
    """
    if free_bytes(root) >= _LEAST_FREE_BYTES:
        return error
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    full.__cause__ = error
    return full


def _debootstrap_failed(suite: str, error: CommandError) -> Exception:
    if error.returncode == NOT_CONFINED:
        return _not_confined(error)
    if "No such script" in error.tail:
        return BadInputError(f"debootstrap knows no suite {suite!r}", hint="for example bookworm or trixie")
    lacking = re.search(r"keyring file not available (/\S+)", error.tail)
    if lacking:
        package = _KEYRING_PACKAGES.get(Path(lacking[1]).name)
        install = f"apt-get install {package}" if package else "install the package that has this file"
        return HostLacksError(
            f"the archive of {suite} cannot be trusted: {lacking[1]}, which checks its signature, is not there",
            hint=install,
        )
    return ReferenceImageError(
        f"debootstrap of {suite} failed",
        hint="is the package archive in reach?",
        details=error.tail.splitlines(),
    )


def _not_confined(error: CommandError) -> Exception:
    return HostLacksError(
        "programs of an image cannot be confined here",
        hint="mend what the line above names",
        details=error.tail.splitlines(),
    )


def _install(image: _Image, packages: tuple[str, ...], sources: Sources) -> None:
    """Upgrade and install packages. All packages are fetched before the first one is installed, so that the packages'
    scripts can run without a network.
    """
    customise.begin(image.root, sources.lines)
    apt = ("apt-get", "-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold")
    try:
        image.fetch(("apt-get", "-q", "update"), sources.environment)
        for wanted in (("upgrade",), ("install", *packages)):
            image.fetch((*apt, "--download-only", *wanted), sources.environment)
            image.run((*apt, "--no-download", *wanted))
        image.run(("apt-get", "clean"))
    except CommandError as error:
        if error.returncode == NOT_CONFINED:
            raise _not_confined(error) from error
        unknown = re.findall(
            r"Unable to locate package (\S+)|Package '(\S+)' has no installation candidate", error.tail
        )
        if unknown:
            names = ", ".join(first or second for first, second in unknown)
            raise BadInputError(
                f"no such package in the archive: {names}", hint="see `packages` in the profile"
            ) from error
        raise ReferenceImageError(
            f"installing packages in {image.root} failed", details=error.tail.splitlines()
        ) from error


def _apply(differing: Variant, profile: Profile, image: _Image) -> None:
    variant.write_files(differing, profile, image.root)
    try:
        for command in variant.commands(differing):
            image.run(command)
    except CommandError as error:
        raise ReferenceImageError(
            f"making the variant {differing.name} of {image.root} failed", details=error.tail.splitlines()
        ) from error
