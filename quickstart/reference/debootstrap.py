"""The reference image by debootstrap: one base a suite, copied and completed by each profile's packages."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from quickstart.errors import BadInputError, CommandError, HostLacksError, ReferenceImageError
from quickstart.host import door
from quickstart.host.files import free_bytes
from quickstart.host.namespaces import own_namespaces
from quickstart.host.progress import Progress
from quickstart.model import IMAGE_TIME_S, MIB, Profile, ReferenceImage
from quickstart.reference import customise, entry, guest, variant
from quickstart.reference.sources import Sources, host_sources
from quickstart.reference.variant import Variant
from quickstart.store.store import Store, key_of, source_digest

# The machine that Debian's installer makes with "SSH server" and no desktop, less what only hardware needs.
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
_NEED_BYTES = 3 * 1024 * MIB
_NAMESPACE = uuid.UUID("6f0c3c8e-4a43-4a52-9d8e-5b1f5f1f2a00")


def reference_inputs(
    profile: Profile, differing: Variant | None = None, *, guest_package: bool = True
) -> Mapping[str, object]:
    """What the reference image depends on: never the profile's name, only what goes into the image."""
    return {
        "base": _base_inputs(profile.suite),
        "packages": list(profile.packages),
        "hash": source_digest("quickstart.store.treehash"),
        **({"unit": profile.unit} if differing else {}),
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
    """The root file system's UUID: the same for the same inputs, different for any other image."""
    return str(uuid.uuid5(_NAMESPACE, key_of("reference", inputs)))


def make_reference(
    profile: Profile,
    store: Store,
    progress: Progress,
    differing: Variant | None = None,
    *,
    guest_package: bool = True,
) -> ReferenceImage:
    """The profile's reference image, or a variant of it, out of the store, made first when it is not there (as root).

    Raises BadInputError for a suite or package that does not exist, HostLacksError, ReferenceImageError.
    """

    inputs = reference_inputs(profile, differing, guest_package=guest_package)

    def make(directory: Path) -> None:
        _check_host(store)
        base = _make_base(profile.suite, store, progress)
        begin_s = time.time()
        root, log = directory / "root", directory / "install.log"
        with progress.step("reference: copy the base"):
            door.run(["cp", "-a", "--reflink=auto", base / "root", root], timeout_s=900)
        with progress.step(f"reference: install {' '.join(profile.packages)}"):
            _install(root, profile.packages, host_sources(profile.suite), log)
        if guest_package:
            with progress.step("reference: quickstart-guest"), guest.deb_in(root):
                _in_chroot(root, [*guest.INSTALL], log, {})
        if differing:
            with progress.step(f"reference: {differing.name}"):
                _apply(differing, profile, root, log)
        with progress.step("reference: the distribution's initramfs"):
            # Only here: packages that see this variable change more than times (Python's compiled files).
            fixed = {"SOURCE_DATE_EPOCH": str(IMAGE_TIME_S)}
            _in_chroot(root, ["update-initramfs", "-u", "-k", "all"], log, fixed)
            customise.end(root, root_uuid(inputs))
            customise.fix_times(root, begin_s)
        with progress.step("reference: hash the image"):
            entry.write_facts(directory, root_uuid(inputs), "root")

    made = store.get_or_make("reference", inputs, make)
    return entry.load(made.path, ("debootstrap", made.key))


def _check_host(store: Store) -> None:
    door.need_root("making a reference image (debootstrap, chroot)")
    door.need_tools("debootstrap", "unshare", "chroot", "busybox", "cp")
    store.root.mkdir(parents=True, exist_ok=True)
    free = free_bytes(store.root)
    if free < _NEED_BYTES:
        raise HostLacksError(
            f"{store.root} has {free // MIB} MiB free, a reference image needs {_NEED_BYTES // MIB} MiB",
            hint="free some space, or set QUICKSTART_CACHE to another file system",
        )


def _make_base(suite: str, store: Store, progress: Progress) -> Path:
    def make(directory: Path) -> None:
        begin_s = time.time()
        sources = host_sources(suite)
        root = directory / "root"
        log = directory / "debootstrap.log"
        with progress.step(f"reference: debootstrap {suite}"):
            mirror = [sources.mirror] if sources.mirror else []
            try:
                words: tuple[str | Path, ...] = (root, "--variant=minbase", suite, root, *mirror)
                _by_script("debootstrap.sh", words, log, sources.environment)
            except CommandError as error:
                raise _debootstrap_failed(suite, error) from error
        with progress.step("reference: kernel, systemd, ssh, cron"):
            _install(root, BASE_PACKAGES, sources, directory / "install.log")
            customise.configure(root)
            customise.fix_times(root, begin_s)

    return store.get_or_make("base", _base_inputs(suite), make).path


def _debootstrap_failed(suite: str, error: CommandError) -> Exception:
    if "No such script" in error.tail:
        return BadInputError(f"debootstrap knows no suite {suite!r}", hint="for example bookworm or trixie")
    return ReferenceImageError(
        f"debootstrap of {suite} failed\n{error.tail}", hint="is the package archive in reach?"
    )


def _install(root: Path, packages: tuple[str, ...], sources: Sources, log: Path) -> None:
    customise.begin(root, sources.lines)
    options = ("-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold")
    try:
        _in_chroot(root, ["apt-get", "-q", "update"], log, sources.environment)
        _in_chroot(root, ["apt-get", *options, "upgrade"], log, sources.environment)
        _in_chroot(root, ["apt-get", *options, "install", *packages], log, sources.environment)
        _in_chroot(root, ["apt-get", "clean"], log, sources.environment)
    except CommandError as error:
        unknown = re.findall(
            r"Unable to locate package (\S+)|Package '(\S+)' has no installation candidate", error.tail
        )
        if unknown:
            names = ", ".join(first or second for first, second in unknown)
            raise BadInputError(
                f"no such package in the archive: {names}", hint="see `packages` in the profile"
            ) from error
        raise ReferenceImageError(f"installing packages in {root} failed\n{error.tail}") from error


def _apply(differing: Variant, profile: Profile, root: Path, log: Path) -> None:
    variant.write_files(differing, profile, root)
    try:
        for command in variant.commands(differing):
            _in_chroot(root, command, log, {})
    except CommandError as error:
        raise ReferenceImageError(
            f"making the variant {differing.name} of {root} failed\n{error.tail}"
        ) from error


def _in_chroot(root: Path, argv: list[str], log: Path, env: Mapping[str, str]) -> None:
    _by_script("in-chroot.sh", (root, *argv), log, env)


def _by_script(name: str, words: tuple[str | Path, ...], log: Path, env: Mapping[str, str]) -> None:
    """Run a script of ours in namespaces of its own."""
    with resources.as_file(resources.files("quickstart.reference").joinpath(name)) as script:
        door.run([*own_namespaces(), "sh", script, *words], timeout_s=1800, log=log, env=env)
