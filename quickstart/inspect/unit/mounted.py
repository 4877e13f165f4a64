"""Find the file systems that a boot mounts before it starts a service (fstab(5), systemd.mount(5)).

Init mounts only the root volume and the file systems of /dev, /proc, /sys and /run. If a stock boot of the image mounts
a tmpfs on /tmp, init also mounts a tmpfs there. At any other mount point, an application that starts early uses the
directory of the root volume. When systemd mounts the file system later, the mount hides what the application has
written there, and options such as noexec come too late.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import (
    UNIT_PATHS,
    assignments,
    directives,
    drop_ins_of,
    unit_file,
    unit_texts,
)
from quickstart.inspect.unit.place import place_of
from quickstart.inspect.unit.pulled import is_started, started_of
from quickstart.inspect.unit.words import unescape_name, words_of
from quickstart.parse.printable import brief

_FSTAB = PurePosixPath("/etc/fstab")
# The fstab of a machine with many disks has a few KiB.
_MOST_FSTAB_BYTES = 256 << 10
_TYPES = (".mount", ".automount")
# The kernel's own file systems, which init mounts as systemd does.
_KERNELS = tuple(map(PurePosixPath, ("/dev", "/proc", "/sys", "/run")))
# The file system of nfs-common. Only the services of NFS have files in it.
_PIPES = "rpc_pipefs"
# Options that init also uses for these file systems (docs/internals/guest.md, "Mounts"). All of them except /dev are
# noexec.
_USUAL = frozenset({"defaults", "rw", "nodev", "nosuid", "nofail", "auto"})
# No service has its files in these directories.
_UNUSED = tuple(map(PurePosixPath, ("/boot", "/efi")))
# Debian 13 has this unit in each image. Administrators of Debian 12 copy it into /etc. Init mounts the same file
# system, and systemd takes it over.
_TMP = "tmp.mount"
_PLACES_OF_TMP = ("/etc/systemd/system", UNIT_PATHS[-1])
# Options of tmpfs(5), and systemd's own word for options without which the mount may also work (systemd.mount(5),
# x-systemd.graceful-option=).
_TMP_OPTIONS = re.compile(r"[a-z0-9_=%,.-]+")
_GRACEFUL = "x-systemd.graceful-option="
# From fstab's line for one of these places, init also takes the options that match. In a stock boot,
# systemd-remount-fs applies them to the kernel's own file systems, and systemd-fstab-generator makes a mount of /tmp.
# Both happen before any service.
_MADE_BY_INIT = {
    "/dev/shm": ("tmpfs", re.compile(r"noexec|size=\d+[kmgKMG%]?")),  # noqa: S108
    "/proc": (
        "proc",
        re.compile(r"hidepid=(?:[0124]|off|noaccess|invisible|ptraceable)|gid=\d+"),
    ),
    "/tmp": (  # noqa: S108
        "tmpfs",
        re.compile(
            r"nodev|nosuid|noexec|(?:strict|rel|no)atime|size=\d+[kmgKMG%]?|nr_inodes=\d+[kmgKMG]?|mode=[0-7]{3,4}"
        ),
    ),
}
# Options that only say what init does anyway, for each of these places.
_SAID_ALREADY = frozenset(
    {*_USUAL, "noexec", "relatime", "strictatime", "noatime", "mode=1777", "mode=01777"}
)
# Directories that come before the generator's units (systemd.unit(5), "Unit File Load Path").
_BEFORE_GENERATED = UNIT_PATHS[:3]
# With each of these options, a file system is mounted in spite of noauto (systemd.mount(5)). An automount happens when
# a process opens the mount point.
_MADE_ALL_THE_SAME = (
    "x-systemd.automount",
    "comment=systemd.automount",
    "x-systemd.before=",
    "x-systemd.required-by=",
    "x-systemd.wanted-by=",
)
# Directives that look for a file when the unit starts, or that give it to the unit (systemd.exec(5)).
_USING = frozenset(
    (
        *("EnvironmentFile", "Environment", "PIDFile", "BindPaths", "BindReadOnlyPaths", "ReadWritePaths"),
        *("StandardInput", "StandardOutput", "StandardError", "LoadCredential", "LoadCredentialEncrypted"),
    )
)
_USING_PREFIXES = ("Condition", "Assert", "Exec")
# A path in a word, also behind a prefix, behind the name of an option, and in the text of a command.
_PATH = re.compile(r"""(?:^|(?<=[\s=:,!|@+\-"'(<>]))/[^\s:,"')]*""")
# fstab(5): a blank and other characters by their number.
_OCTAL = re.compile(r"\\([0-7]{3})")
_FOR_MOUNTS = frozenset({"RequiresMountsFor", "WantsMountsFor"})
_DIRECTORIES = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache", "LogsDirectory": "/var/log"}


@dataclass(frozen=True)
class _Mount:
    """A mount. ``source`` names the unit, or the line of fstab, that asks for the mount. ``is_certain`` is false if
    systemd makes the mount only for a unit that needs it. It is also false for a file system such as rpc_pipefs, in
    which only the units that need the mount have files.
    """

    place: PurePosixPath
    source: str
    is_certain: bool


def refuse_mounts(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a file system that a stock boot mounts before the unit starts. The function allows
    the root volume and the file systems that init mounts. The function also allows a file system on /boot or /efi,
    unless the unit needs this file system, or names a file in it. An early start would look for this file in the
    directory of the root volume.
    """
    needed = sorted({str(path) for path in needed_paths(root, unit)})
    looked_at = sorted({*needed, *(str(path) for path in _looked_at(root, unit))})
    for mount in (*_of_fstab(root), *_of_units(root)):
        used = looked_at if _is_late(mount) else needed
        if _has_below(used, str(mount.place)) or (mount.is_certain and not _is_late(mount)):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {mount.source} mounts {brief(str(mount.place))},"
                " and an early start comes before that",
                hint="remove the mount from the image, or add noauto to its line when the application has nothing there",
            )


def late_places(root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The places at and below /boot and /efi at which a boot may mount a file system, sorted. A boot may make even a
    mount with noauto, for another unit that needs it. The result does not have places below other places of the result.
    """
    found: list[PurePosixPath] = []
    mounts = (each.place for each in (*_of_fstab(root), *_of_units(root)))
    for place in sorted({each for each in mounts if _is_below(each, _UNUSED)}):
        if not _is_below(place, tuple(found[-1:])):
            found.append(place)
    return tuple(found)


def _is_late(mount: _Mount) -> bool:
    """Whether an early start is allowed although systemd makes the mount only later."""
    return mount.is_certain and _is_below(mount.place, _UNUSED)


def _has_below(paths: Sequence[str], place: str) -> bool:
    """Whether ``place``, or a path below it, is one of the sorted ``paths``."""
    return any(
        paths[at] == place or paths[at].startswith(f"{place}/")
        for at in (bisect_left(paths, place), bisect_left(paths, f"{place}/"))
        if at < len(paths)
    )


def tmp_options(root: ImageRoot) -> tuple[str, ...]:
    """The options for the tmpfs that a boot mounts on /tmp, as one string for each attempt of init. Init tries the
    strings in order, until the kernel accepts one. The result is empty when a boot of the image does not mount /tmp.

    Raises UnsupportedUnitError for a mount of /tmp that is not a tmpfs or that has unusual options. Also raises it for a
    /tmp that is a link: systemd does not start tmp.mount then (ConditionPathIsSymbolicLink=).
    """
    if root.host(PurePosixPath("/tmp")).is_symlink():  # noqa: S108
        raise UnsupportedUnitError(
            "/tmp is a link, so it is not what an early start would find",  # noqa: S108
            hint="make /tmp a directory",
        )
    if (said := fstab_options(root, "/tmp")) is not None:  # noqa: S108
        return (said or "rw",)
    try:
        texts = unit_texts(root, _TMP)
    except (StartSetError, UnsupportedUnitError):
        # The unit does not exist, or it is masked.
        return ()
    if not is_started(root, _TMP):
        return ()
    found = directives(assignments(texts, "[Mount]"))
    options = found.get("Options", ("",))[-1].replace("%%", "%")
    if found.get("Type", ("",))[-1] != "tmpfs" or not _TMP_OPTIONS.fullmatch(options):
        raise UnsupportedUnitError(
            f"{_TMP} mounts /tmp in an unusual way: {brief(options)}", hint="use the package's own tmp.mount"
        )
    words = options.split(",")
    # For init, an empty list means an image without such a mount. So the list has at least one option.
    plain = [word for word in words if not word.startswith("x-")] or ["rw"]
    graceful = [word.removeprefix(_GRACEFUL) for word in words if word.startswith(_GRACEFUL)]
    return tuple(dict.fromkeys(",".join(each) for each in ((*plain, *graceful), plain)))


def fstab_options(root: ImageRoot, place: str) -> str | None:
    """The options that init takes from fstab's line for ``place`` (/dev/shm, /proc or /tmp), in addition to the options
    that init gives to this file system anyway. The result is None when fstab has no such line, or when init cannot
    mount the file system in the way that the line demands.
    """
    return _followed_options(root, list(_rows(root)), place)


def _followed_options(root: ImageRoot, rows: Sequence[Sequence[str]], place: str) -> str | None:
    """The options that ``fstab_options`` returns if ``rows`` are the lines of fstab."""
    rows = [words for words in rows if PurePosixPath(words[1]) == PurePosixPath(place)]
    fs_type, known = _MADE_BY_INIT[place]
    if len(rows) != 1 or rows[0][2] != fs_type:
        return None
    is_tmp = place.startswith("/tmp")  # noqa: S108
    if is_tmp and _has_own_tmp(root):
        return None
    options = _options(rows[0])
    said = {"defaults", "rw", "auto", "nofail"} if is_tmp else _SAID_ALREADY
    kept = [each for each in options if each not in said or known.fullmatch(each)]
    return ",".join(kept) if all(map(known.fullmatch, kept)) else None


def _has_own_tmp(root: ImageRoot) -> bool:
    """Whether the mount of /tmp depends on a unit file that takes precedence over fstab, or on a drop-in."""
    places = (root.resolve(PurePosixPath(each)).canonical for each in _BEFORE_GENERATED)
    return any(_TMP in root.names(each) for each in places if each is not None) or bool(
        drop_ins_of(root, _TMP)
    )


def _options(words: Sequence[str]) -> tuple[str, ...]:
    return tuple((words[3] if len(words) > 3 else "defaults").split(","))


def _rows(root: ImageRoot) -> Iterator[list[str]]:
    """The words of each line of fstab that mounts another file system than the root volume."""
    file = root.resolve(_FSTAB).canonical
    lines = (
        root.read_text(file, _MOST_FSTAB_BYTES).splitlines()
        if file is not None and root.host(file).is_file()
        else ()
    )
    for words in (line.split() for line in lines if not line.lstrip().startswith("#")):
        if len(words) >= 3 and words[1].startswith("/") and words[1] != "/" and words[2] != "swap":
            yield words


def _of_fstab(root: ImageRoot) -> Iterator[_Mount]:
    rows = list(_rows(root))
    # This is computed once for each place, because an fstab may have thousands of rows for one place.
    followed = {place for place in _MADE_BY_INIT if _followed_options(root, rows, place) is not None}
    for words in rows:
        # systemd-fstab-generator follows the links of the image.
        place = place_of(root, _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[1]))
        options = frozenset(_options(words))
        if _is_below(place, _KERNELS) and options <= _usual_options(place):
            continue
        if str(place) in followed:
            continue
        # A disk with nofail that is missing now may exist on another machine. Its mount would then hide what was
        # written there.
        is_left_out = "noauto" in options and not any(
            each == "auto" or each.startswith(_MADE_ALL_THE_SAME) for each in options
        )
        yield _Mount(place, f"{_FSTAB} ({brief(words[0])})", not is_left_out and words[2] != _PIPES)


def _usual_options(place: PurePosixPath) -> frozenset[str]:
    return _USUAL if place.is_relative_to("/dev") else _USUAL | {"noexec"}


def _of_units(root: ImageRoot) -> Iterator[_Mount]:
    """The mounts of the image's mount units and automount units, except the units that are masked and the
    mounts that init makes itself.
    """
    names = {
        path.name
        for place in UNIT_PATHS
        for kind in _TYPES
        for path in root.glob(PurePosixPath(place) / f"*{kind}")
    }
    started = started_of(root, names)
    for name in sorted(names):
        place = PurePosixPath("/" + unescape_name(name.rpartition(".")[0]).lstrip("/"))
        if place == PurePosixPath("/") or _is_below(place, _KERNELS):
            continue
        try:
            file = unit_file(root, name)
        except (StartSetError, UnsupportedUnitError):
            # The unit is masked.
            continue
        if name != _TMP or str(file.parent) not in _PLACES_OF_TMP:
            # A unit that needs rpc_pipefs waits for it.
            kind = directives(assignments(unit_texts(root, name), "[Mount]")).get("Type", ("",))[-1]
            yield _Mount(place, name, name in started and kind != _PIPES)


def needed_paths(root: ImageRoot, unit: str) -> Iterator[PurePosixPath]:
    """The paths that the unit needs. Before systemd starts the unit, systemd mounts the file systems that contain these
    paths. For the unit, systemd mounts even such a file system that it otherwise does not mount at boot.
    """
    texts = unit_texts(root, unit)
    for name, value in assignments(texts, "[Unit]"):
        if name in _FOR_MOUNTS:
            yield from (PurePosixPath(word) for word in words_of(unit, value))
    for name, value in assignments(texts, "[Service]"):
        if name in _DIRECTORIES:
            yield from (PurePosixPath(_DIRECTORIES[name]) / word for word in words_of(unit, value))
        elif name == "WorkingDirectory" and value.lstrip("-").startswith("/"):
            yield from (PurePosixPath(word) for word in words_of(unit, value.lstrip("-")))


def _looked_at(root: ImageRoot, unit: str) -> Iterator[PurePosixPath]:
    """The paths in those directives of the unit that look for a file, or use it, when the unit starts."""
    texts = unit_texts(root, unit)
    for section in ("[Unit]", "[Service]"):
        for name, value in assignments(texts, section):
            if name in _USING or name.startswith(_USING_PREFIXES):
                paths = (path for word in words_of(unit, value) for path in _PATH.findall(word))
                yield from (place_of(root, path) for path in paths)


def _is_below(place: PurePosixPath, above: tuple[PurePosixPath, ...]) -> bool:
    return any(place.is_relative_to(each) for each in above)
