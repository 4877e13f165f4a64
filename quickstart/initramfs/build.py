"""Write the initramfs. Two builds with equal `Recipe` write the same bytes, for any user and at any time, if the
versions of QuickStart, of the compression libraries and of squashfs-tools are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from quickstart.errors import StartSetError
from quickstart.host.cpulimit import START_SET_LIMIT_S, cpu_limit
from quickstart.initramfs.digests import list_bytes, listed
from quickstart.initramfs.facts import NOTHING, Watched
from quickstart.initramfs.guestconfig import Given, GuestConfig, HandOff, Served
from quickstart.initramfs.layout import image_part_b, part_a, part_b
from quickstart.initramfs.loadercache import cache_facts
from quickstart.initramfs.modules import IMAGE_MODULES, WANTED, module_set, queues
from quickstart.initramfs.newc import MAX_FIELD, CpioEntry, Sink, write_archive
from quickstart.initramfs.payload import check_kernel, packing
from quickstart.initramfs.prefetch import NOTHING_KNOWN, Prefetch
from quickstart.initramfs.programs import Programs
from quickstart.initramfs.serving import Delivery, bound_files
from quickstart.initramfs.takeover import network_service
from quickstart.inspect.cloudinit import asks_ec2_anywhere, early_start, has_cloud_init
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.modprobe import module_options
from quickstart.inspect.unit.apparmor import confined_paths
from quickstart.inspect.unit.dhcpclient import (
    client_does_ipv6,
    client_with_identifier,
    metric_of_client,
    sent_by_client,
)
from quickstart.inspect.unit.hooks import writes_resolver
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.mounted import fstab_options, late_places, tmp_options
from quickstart.inspect.unit.pidone import raises_core_limit, raises_nr_open
from quickstart.inspect.unit.sysctl import content_sums, kernel_settings
from quickstart.inspect.unit.tmpfiles import packages_files_with_settings, written_settings
from quickstart.model import MIB, Initramfs, Profile, ReferenceImage, StartSet
from quickstart.model.rootdisk import RootDisk
from quickstart.model.words import KNOWN_FILE_SYSTEMS, FileSystem, Payload
from quickstart.parse.printable import brief
from quickstart.store.store import source_digest

BUILD_DIGITS = 32
_NO_EFFECT = ("auto", "nouser", "silent")
# tmpfiles.d(5) of systemd's own: /run/nologin during a boot.
_NOLOGIN = PurePosixPath("/usr/lib/tmpfiles.d/systemd-nologin.conf")
# `quickstart disable` makes this link (reference/guestpkg/scripts/quickstart).
_STAMP, _OFF = PurePosixPath("/.quickstart"), "1:off"
# The limit for each part without the start set. Our parts have 6 MiB, and half of this are modules.
_BESIDE_BYTES = 64 * MIB
# For programs and libraries, zstd takes 0.3 s, gzip 0.1 s and lz4 0.1 s. For the worst data that we have found, zstd
# takes 0.7 s, gzip 2.7 s and lz4 0.5 s.
_S_OF_A_MIB = 3.0
_SLOW = (
    "are the files in /lib/modules of the image those of its kernel's package? "
    "If so, take the payload cpio or lz4, which are packed faster"
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All inputs of an initramfs. Two of these inputs, the superblock and the prefetch plan (the list of reads that
    init requests in advance), come from ``disk``. ``disk`` is a root disk with the files of the reference image. In a
    rebuild (`quickstart rebuild`), ``disk`` is the disk of an existing machine. The content of this disk is then the
    reference image.
    """

    profile: Profile
    reference: ReferenceImage
    disk: RootDisk
    interface: str
    start_set: StartSet
    unit: UnitStart
    programs: Programs
    prefetch: Prefetch = NOTHING_KNOWN
    served: Served = Served.FAST
    hand_off: HandOff = HandOff.STAY
    delivery: Delivery = Delivery.FAST
    payload: Payload = Payload.CPIO
    watched: Watched = NOTHING
    given: Given = field(default_factory=Given)

    @property
    def bound_by_unit(self) -> Mapping[str, tuple[PurePosixPath, ...]]:
        """For each unit, the packed files that are bind-mounted over the files of the root volume. The key is the name
        of the unit. The result is empty unless the delivery is OVERLAY and the application's files come from /fast.
        """
        if self.delivery is Delivery.FAST or self.served is not Served.FAST:
            return {}
        root = ImageRoot(self.reference.tree)
        return {each.unit: bound_files(self.start_set, root, each) for each in self.unit.all_units}

    @property
    def bound(self) -> tuple[PurePosixPath, ...]:
        """The packed files that are bind-mounted over the files of the root volume for at least one of the units. The
        paths are sorted.
        """
        return tuple(sorted({path for paths in self.bound_by_unit.values() for path in paths}))


def build_id(recipe: Recipe, config: GuestConfig) -> str:
    """The build ID, which part A and part B of the initramfs both contain. The build ID is a hash of the inputs of
    both parts. One of these inputs is the image's hash, which covers the contents of the packed files.

    The inputs of the build ID contain what the build computes from the traces, but not the traces themselves. So two
    traces from which the build computes the same inputs give the same initramfs. The build ID does not depend on the
    payload (the form in which the initramfs is stored) either, because init finds the same files with every payload.
    """
    files = [
        (str(f.path), f.kind.value, f.mode, f.size_bytes, f.mtime_s, f.ctime_s, f.target, str(f.hard_link_to))
        for f in recipe.start_set.files
    ]
    parts = (
        recipe.reference.image_hash.encode(),
        repr((files, config, recipe.prefetch)).encode(errors="surrogateescape"),
        *(program.read_bytes() for program in recipe.programs.all),
        source_digest("quickstart.initramfs").encode(),
    )
    whole = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
    return whole.hexdigest()[:BUILD_DIGITS]


def root_mount(root: ImageRoot) -> tuple[str, str]:
    """The file system type and mount options of the root volume, from the image's fstab(5). The result does not have
    the options that begin with ``x-``, because they are for programs such as systemd (mount(8)), nor ``auto``,
    ``nouser`` and ``silent``, which have no effect on a root volume. BusyBox would pass such an option to the kernel,
    and the kernel refuses the option.

    Raises StartSetError unless the type is ext4, XFS or btrfs.
    """
    # A link in the image is followed in the image, not on this host.
    fstab = root.resolve(PurePosixPath("/etc/fstab")).canonical
    for line in root.read_text(fstab).splitlines() if fstab is not None else ():
        words = line.split()
        if len(words) >= 4 and not words[0].startswith("#") and words[1] == "/":
            if words[2] not in list(FileSystem):
                raise StartSetError(
                    f"the root volume is {brief(words[2])}; only {KNOWN_FILE_SYSTEMS} can be started early",
                    hint="correct fstab's line for / if it is wrong",
                )
            own = [
                option
                for option in words[3].split(",")
                if not option.lower().startswith("x-") and option not in _NO_EFFECT
            ]
            return words[2], ",".join(own) or "defaults"
    raise StartSetError("the image's /etc/fstab has no root volume", hint="add a line for /")


def write_initramfs(recipe: Recipe, target: Path) -> Initramfs:
    """Write the initramfs to ``target``. Raises:

    - StartSetError when the unpacked size of the initramfs exceeds the profile's memory budget
    - BadInputError when the image's kernel cannot unpack the recipe's payload (the form in which the initramfs is
      stored)
    - UnsupportedUnitError when the image's modprobe.d forbids a kernel module of the initramfs

    When the start set alone exceeds the memory budget, or has a file that is too large for a newc archive, the function
    writes nothing to ``target``. The function raises BadInputError when writing takes far more CPU time than an
    initramfs of this budget needs. The CPU time has a limit because the image determines how many bytes the function
    must unpack and compress.
    """
    limit_s = START_SET_LIMIT_S + _S_OF_A_MIB * recipe.profile.budget_mib
    with cpu_limit("the image's modules and packed files", limit_s, _SLOW):
        return _write(recipe, target)


def _write(recipe: Recipe, target: Path) -> Initramfs:
    profile, start_set = recipe.profile, recipe.start_set
    check_sizes(profile, start_set)
    root = ImageRoot(recipe.reference.tree)
    check_kernel(root, recipe.reference.kernel_version, recipe.payload)
    config = _config(recipe, root)
    file_system = FileSystem(config.root_fstype)
    wanted = (*WANTED, file_system, *queues(config.settings), *(IMAGE_MODULES if config.image else ()))
    modules = module_set(root, recipe.reference.kernel_version, wanted)
    names = frozenset(each.name for each in modules.modules)
    modules = replace(modules, options=module_options(root, recipe.unit.unit, names))
    target.unlink(missing_ok=True)
    in_part_b = tuple(part_b(config, start_set, root))
    if config.image:
        in_part_b = image_part_b(in_part_b)
    digests = list_bytes(listed(in_part_b))
    in_part_a = part_a(config, modules, start_set, root, recipe.programs, digests, recipe.prefetch)
    most_bytes = profile.budget_mib * MIB + _BESIDE_BYTES
    a_bytes, a_unpacked_bytes = _append(target, in_part_a, recipe.payload, most_bytes)
    b_bytes, b_unpacked_bytes = _append(target, in_part_b, recipe.payload, most_bytes)
    unpacked_bytes = a_unpacked_bytes + b_unpacked_bytes
    # The budget is for memory, which is the same for every form of the archive.
    _check_budget(profile, start_set, unpacked_bytes, "the initramfs has")
    # If the profile names a secret file, the whole archive is secret.
    target.chmod(0o600 if profile.files.secrets else 0o644)
    return Initramfs(
        path=target,
        size_bytes=a_bytes + b_bytes,
        part_a_bytes=a_bytes,
        part_b_bytes=b_bytes,
        unpacked_bytes=unpacked_bytes,
        sha256=_sha256(target),
    )


def _config(recipe: Recipe, root: ImageRoot) -> GuestConfig:
    fstype, options = root_mount(root)
    if fstype != recipe.disk.superblock.file_system:
        raise StartSetError(
            f"the image's /etc/fstab says that the root volume is {fstype}, and it is {recipe.disk.superblock.file_system}",
            hint="correct the line for /",
        )
    network = network_service(root) if recipe.hand_off is not HandOff.STAY else ""
    client = client_with_identifier(root, network)
    config = GuestConfig(
        build="",
        superblock=recipe.disk.superblock,
        root_fstype=fstype,
        root_flags=recipe.disk.root_flags,
        root_options=options,
        late_places=late_places(root),
        is_disabled=root.link_target(_STAMP) == _OFF,
        interface=recipe.interface,
        unit=recipe.unit,
        ready=recipe.profile.ready,
        hand_off=recipe.hand_off,
        network=network,
        early=early_start(root, recipe.profile.early),
        user_data=recipe.profile.user_data,
        ec2_alone=asks_ec2_anywhere(root),
        served=recipe.served,
        bound=recipe.bound_by_unit,
        watched=recipe.watched,
        image=recipe.payload.value if recipe.payload is Payload.SQUASHFS else "",
        settings=(*kernel_settings(root), *written_settings(root)),
        content_sums=content_sums(root, packages_files_with_settings(root))
        + cache_facts(root, recipe.start_set, recipe.bound),
        confined=confined_paths(root),
        raises_nr_open=raises_nr_open(root),
        stops_core_dumps=raises_core_limit(root),
        tmp_options=tmp_options(root),
        shm_options=fstab_options(root, "/dev/shm") or "",  # noqa: S108
        proc_options=fstab_options(root, "/proc") or "",
        cloud_init=has_cloud_init(root),
        resolver=writes_resolver(root),
        client=client,
        metric=metric_of_client(root, client, recipe.unit.unit),
        leaves_ipv6=client_does_ipv6(root, network),
        given=recipe.given,
        sent=sent_by_client(root, network, recipe.unit.unit),
        nologin=root.resolve(_NOLOGIN).canonical is not None,
    )
    return replace(config, build=build_id(recipe, config))


def append_files(initramfs: Initramfs, entries: Iterable[CpioEntry]) -> Initramfs:
    """Append one more archive with files of the image. The added files may be secret. So the initramfs file gets the
    mode 0600, and only the owner of the initramfs file may read it.
    """
    initramfs.path.chmod(0o600)
    more, unpacked = _append(initramfs.path, entries, Payload.CPIO)
    return replace(
        initramfs,
        size_bytes=initramfs.size_bytes + more,
        unpacked_bytes=initramfs.unpacked_bytes + unpacked,
        sha256=_sha256(initramfs.path),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sizes(profile: Profile, start_set: StartSet) -> None:
    """Raise StartSetError when a file has 4 GiB or more (newc has 32 bits for the size), or when the start
    set alone exceeds the memory budget.
    """
    for file in start_set.files:
        if file.size_bytes > MAX_FIELD:
            raise StartSetError(
                f"{file.path} has {file.size_bytes} bytes; an initramfs holds files of less than 4 GiB",
                hint="exclude it: `exclude` in the profile's [files], or `data` when it is data",
            )
    _check_budget(profile, start_set, start_set.size_bytes, "the start set alone has")


def _check_budget(profile: Profile, start_set: StartSet, size_bytes: int, what: str) -> None:
    if size_bytes > profile.budget_mib * MIB:
        largest = sorted(start_set.files, key=lambda file: -file.size_bytes)[:3]
        names = ", ".join(f"{file.path} ({file.size_bytes / MIB:.1f} MiB)" for file in largest)
        raise StartSetError(
            f"{what} {size_bytes / MIB:.1f} MiB, the profile's budget is {profile.budget_mib} MiB; largest: {names}",
            hint="exclude files, or raise memory.budget_mib in the profile",
        )


def _append(
    target: Path, entries: Iterable[CpioEntry], payload: Payload, most_bytes: int | None = None
) -> tuple[int, int]:
    """Append one archive to ``target``. Return two sizes in bytes: the size of the archive in the file, and its
    unpacked size. Raises StartSetError before more than ``most_bytes`` bytes go into the archive.
    """
    with target.open("ab") as file:
        begin = file.tell()
        with packing(file, payload) as sink:
            room = sink if most_bytes is None else _Room(sink, most_bytes)
            unpacked_bytes = write_archive(room, entries)
        return file.tell() - begin, unpacked_bytes


class _Room:
    """A sink (the destination of an archive) that takes at most ``most_bytes`` bytes. The limit is for the kernel
    modules. Their size is known only when the archive is written, because the image's modules.dep decides which modules
    are written. The size of the start set is known earlier.
    """

    def __init__(self, sink: Sink, most_bytes: int) -> None:
        self._sink, self._most_bytes, self._left_bytes = sink, most_bytes, most_bytes

    def write(self, data: bytes, /) -> object:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise StartSetError(
                f"the initramfs has more than {self._most_bytes // MIB} MiB, far more than the profile's budget",
                hint="are the files in /lib/modules of the image those of its kernel's package?",
            )
        return self._sink.write(data)
