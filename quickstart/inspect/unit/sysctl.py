"""Read the kernel settings in an image's sysctl.d(5), as systemd-sysctl(8) does. Init applies these settings before the
application starts, because some settings have an effect only once in the life of a process or a socket
(net.core.somaxconn, user.max_user_namespaces, vm.mmap_rnd_bits). When the content of a settings file of a package
changes, the machine boots the stock way. The function ``content_sums`` lists the checksums of the packages' settings
files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.delivered import changed
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import UNIT_PATHS, assignments, drop_ins_of, hidden_at
from quickstart.parse.printable import brief

# If two files have the same name, the first one counts. When an administrator's file changes, the machine boots the
# stock way (unit/before.py).
ADMINISTRATORS = ("/etc/sysctl.d", "/usr/local/lib/sysctl.d")
_PACKAGES = ("/usr/lib/sysctl.d", "/lib/sysctl.d")
# The service that writes the settings in a stock boot, and the places of the administrator's units that may change
# it.
SERVICE = "systemd-sysctl.service"
ADMINISTRATORS_UNITS = tuple(map(PurePosixPath, UNIT_PATHS[:-1]))
_HOW_IT_RUNS = ("Exec", "Condition", "Assert")
# systemd ends a line at each of these.
_LINE_ENDS = re.compile(r"[\n\r\0]")
_BLANKS = " \t"
_GLOB = re.compile(r"[*?\[]")
# Init's shell reads it byte by byte.
_MOST_HIDDEN_CHARACTERS = 16 << 10
# Comments and lines `KEY = VALUE`, where a key has either dots or slashes between its words.
_HIDDEN = re.compile(
    r"(?:[ \t]*(?:[#;][ -~\t]*|(?:-[ \t]*)?(?:[\w-]+(?:\.[\w-]+)+|[\w-]+(?:/[\w-]+)+)[ \t]*=[ -~\t]*)?(?:\n|\Z))*",
    re.ASCII,
)
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_SWAPPED = str.maketrans("./", "/.")
_MOST_CHARACTERS = 1 << 20
# Each pattern is compared with each key, part by part. Debian's images have a few patterns and some hundred keys.
_MOST_COMPARED = 1 << 20
# The limit for the keys that patterns spare. Init reads these keys behind each pattern at each boot.
_MOST_SPARED_CHARACTERS = 64 << 10


@dataclass(frozen=True)
class KernelSetting:
    """A kernel setting. ``key`` is a path below /proc/sys, or a pattern of such paths (glob(7)) that does not apply to
    the paths in ``spared``. A key that begins with a slash is a complete path or a pattern of complete paths. The
    module inspect/unit/tmpfiles.py makes the settings with such keys.

    ``is_packages`` says that the setting is only in files of packages. Each upgrade of a package writes the package's
    files again, so init compares the content of these files, and not their times.
    """

    key: str
    value: str
    is_packages: bool
    spared: tuple[str, ...] = ()


@dataclass(frozen=True)
class HiddenSetting(KernelSetting):
    """A setting in a file that is not world-readable. ``file`` is the canonical path of this file. The content of the
    file must not enter our initramfs, so ``value`` is empty, and init reads the file on the volume.
    """

    file: str = ""


@dataclass(frozen=True)
class _File:
    text: str
    is_packages: bool
    hidden_in: str


def kernel_settings(root: ImageRoot, *, with_hidden: bool = False) -> tuple[KernelSetting, ...]:
    """The settings that systemd-sysctl(8) would write, in the order in which it writes them. The result is empty when
    the image masks systemd-sysctl.service or changes how it runs.

    The result does not have settings that the service would refuse, and settings whose keys lead out of /proc/sys.
    Raises UnsupportedUnitError when the settings files have more than 1 MiB of text together, or too many patterns.
    Also raises this error for a file that is not world-readable, if init could not read this file as systemd-sysctl
    does.

    ``with_hidden`` is for callers that need the settings which the rest of the boot writes, and not the settings which
    go into our initramfs. With ``with_hidden``, the result also has the values in files that are not world-readable. In
    this case, the result is empty only when the image masks systemd-sysctl.service, and not when the image changes how
    the service runs.
    """
    if _is_masked(root) if with_hidden else _is_changed(root):
        return ()
    # The value None means a key to which patterns do not apply.
    found: dict[str, KernelSetting | None] = {}
    files = tuple(_files(root))
    for file in files:
        is_packages = file.is_packages
        for key, value in _assignments(file.text):
            earlier = found.get(key)
            is_hidden = isinstance(earlier, HiddenSetting)
            if key in found and not is_hidden and (earlier.value if earlier else None) == value:
                if earlier is not None:
                    found[key] = replace(earlier, is_packages=earlier.is_packages and is_packages)
                continue
            # A setting that is set again moves to the end of the order.
            found.pop(key, None)
            if value is None:
                found[key] = None
            elif file.hidden_in and not with_hidden:
                found[key] = HiddenSetting(key, "", is_packages, file=file.hidden_in)
            else:
                found[key] = KernelSetting(key, value, is_packages)
    plain = [key for key in found if not _GLOB.search(key)]
    patterns = [key for key in found if _GLOB.search(key)]
    if len(plain) * _parts(patterns) + len(patterns) * _parts(plain) > _MOST_COMPARED:
        raise UnsupportedUnitError(
            f"the image's sysctl.d has {len(patterns)} patterns and {len(plain)} keys, too many to compare",
            hint="take away what is not needed of it",
        )
    for file in files:
        if file.hidden_in and not with_hidden:
            _refuse_ambiguous(file, found)
    settings = (each for each in found.values() if each and each.key and ".." not in each.key.split("/"))
    return tuple(_with_spared(settings, plain))


def _refuse_ambiguous(file: _File, found: Mapping[str, KernelSetting | None]) -> None:
    """Raise UnsupportedUnitError unless init's script ``settings-of`` would apply the settings in ``file`` in the same
    way as systemd-sysctl. The script does so if all lines have a plain key and a plain value, if no other file mentions
    one of the keys, and if the file belongs to the administrator.
    """
    # When one of these files changes, the machine boots the stock way. No list of sums has these files.
    path = PurePosixPath(file.hidden_in)
    is_compared = str(path) == "/etc/sysctl.conf" or str(path.parent) in ADMINISTRATORS
    is_plain = len(file.text) <= _MOST_HIDDEN_CHARACTERS and _HIDDEN.fullmatch(file.text)
    if not (is_compared and is_plain and _is_alone(file, found)):
        raise UnsupportedUnitError(
            f"the image's {file.hidden_in} has kernel settings that not all users may read, and that init cannot make in"
            " the same way as systemd-sysctl",
            hint=f"chmod a+r {file.hidden_in} (and a+x its directories), or set each key in one file alone",
        )


def _is_alone(file: _File, found: Mapping[str, KernelSetting | None]) -> bool:
    patterns = [key for key in found if _GLOB.search(key)]
    return all(
        isinstance(setting := found[key], HiddenSetting)
        and setting.file == file.hidden_in
        and not any(_may_match(pattern, key) for pattern in patterns)
        for key in {key for key, _ in _assignments(file.text)}
    )


def _with_spared(settings: Iterable[KernelSetting], plain: Sequence[str]) -> Iterator[KernelSetting]:
    """The settings, in which each pattern has its field ``spared``. This field has the keys of ``plain`` to which the
    pattern does not apply.
    """
    left = _MOST_SPARED_CHARACTERS
    for each in settings:
        if not _GLOB.search(each.key):
            yield each
            continue
        spared = tuple(key for key in plain if _may_match(each.key, key))
        left -= sum(map(len, spared))
        if left < 0:
            raise UnsupportedUnitError(
                f"the image's sysctl.d has patterns that match keys of more than {_MOST_SPARED_CHARACTERS} characters,"
                f" the last is {brief(each.key)}",
                hint="take away what is not needed of it",
            )
        yield replace(each, spared=spared)


def _parts(keys: Iterable[str]) -> int:
    return sum(key.count("/") + 1 for key in keys)


def _is_masked(root: ImageRoot) -> bool:
    return any(root.link_target(place / SERVICE) == "/dev/null" for place in ADMINISTRATORS_UNITS)


def _is_changed(root: ImageRoot) -> bool:
    """Whether the administrator has changed systemd-sysctl.service. A changed service might write other
    values than init does.
    """
    for place in (root.resolve(directory).canonical for directory in ADMINISTRATORS_UNITS):
        if place is not None and SERVICE in root.names(place):
            return True
    places = (root.resolve(path).canonical for path in drop_ins_of(root, SERVICE).values())
    files = (place for place in places if place is not None and root.host(place).is_file())
    return any(
        name.startswith(_HOW_IT_RUNS)
        for text in map(root.read_text, files)
        for section in ("[Unit]", "[Service]")
        for name, _ in assignments((text,), section)
    )


def _may_match(pattern: str, key: str) -> bool:
    """Whether glob(7) may expand ``pattern`` to ``key``. For a pattern with brackets, the result may be true
    even when glob(7) does not expand it to ``key``.
    """
    ours, theirs = pattern.split("/"), key.split("/")
    return len(ours) == len(theirs) and all(
        "[" in part or fnmatchcase(name, part) for part, name in zip(ours, theirs, strict=True)
    )


def _assignments(text: str) -> Iterator[tuple[str, str | None]]:
    """The key and value of each line, by the rules of sysctl.d(5). The value is None for a line `-KEY`."""
    for line in _LINE_ENDS.split(text):
        line = line.strip(_BLANKS)
        if not line or line[0] in "#;":
            continue
        name, is_assignment, value = line.partition("=")
        if not is_assignment and line[0] != "-":
            continue
        yield (
            _normalized(name.removeprefix("-").strip(_BLANKS)),
            value.strip(_BLANKS) if is_assignment else None,
        )


def _normalized(name: str) -> str:
    """The path below /proc/sys for the key ``name``. When the first separator in the key is a dot, the function swaps
    dots and slashes.
    """
    first = re.search(r"[./]", name)
    path = name.translate(_SWAPPED) if first is not None and first[0] == "." else name
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def unpacked_files(root: ImageRoot) -> frozenset[PurePosixPath]:
    """The settings files in the packages' directories that belong to no package or differ from the file in their
    package. The maker of the image has put these files there or has changed them, so they count as the administrator's
    files.
    """
    names = [path for each in _PACKAGES for path in _in(root, each)]
    targets = {path: file for path in names if (file := root.resolve(path).canonical) is not None}
    own = changed(root, [file for file in targets.values() if root.host(file).is_file()])
    # A link counts as well as the file behind it.
    return own | {path for path, file in targets.items() if file in own}


def _in(root: ImageRoot, directory: str) -> Iterator[PurePosixPath]:
    below = root.resolve(PurePosixPath(directory)).canonical
    for name in root.names(below) if below is not None and root.host(below).is_dir() else ():
        if below is not None and name.endswith(".conf") and not name.startswith("."):
            yield below / name


def _files(root: ImageRoot) -> Iterator[_File]:
    """The settings files, sorted by name. When several directories have a file of the same name, the result has only
    the file of the first directory.
    """
    files: dict[str, tuple[PurePosixPath, bool]] = {}
    own = unpacked_files(root)
    for directory in (*ADMINISTRATORS, *_PACKAGES):
        for path in _in(root, directory):
            is_packages = directory in _PACKAGES and root.resolve(path).canonical not in own
            files.setdefault(path.name, (path, is_packages))
    left = _MOST_CHARACTERS
    for name in sorted(files, key=os.fsencode):
        path, is_packages = files[name]
        canonical = root.resolve(path).canonical
        if canonical is None or not root.host(canonical).is_file():
            continue
        text = root.read_text(canonical)
        left -= len(text)
        if left < 0:
            raise UnsupportedUnitError(
                f"the image's sysctl.d has more than {_MOST_CHARACTERS} characters, the last read is {path}",
                hint="take away what is not needed of it",
            )
        is_hidden = hidden_at(root, canonical) is not None and any(_assignments(text))
        yield _File(text, is_packages, str(canonical) if is_hidden else "")


def content_sums(root: ImageRoot, more: Iterable[PurePosixPath]) -> bytes:
    """A line for each of the packages' files with kernel settings, in the format of sha256sum(1). The line has the sum
    of the file's content, and the file's path without the leading slash. If the administrator replaces or masks a file
    in the packages' directory by a file of the same name, there is no line for the packages' file. ``more`` are the
    packages' files of tmpfiles.d that write kernel settings. There is one more line if the link /sbin/init does not name
    systemd.

    The script ``settings-files`` of init makes the same lines in the guest. The script does not know whether
    systemd-sysctl.service is masked or changed, so the lines do not depend on this service. Raises UnsupportedUnitError
    for a file with a name that sha256sum(1) may escape.
    """
    paths = (*_packages_files(root), *sorted(more, key=os.fsencode))
    sums = (f"{hashlib.sha256(root.read_bytes(path)).hexdigest()}  {str(path)[1:]}\n" for path in paths)
    return "".join((*sums, *(() if _is_systemd_init(root) else ("OTHER  sbin/init\n",)))).encode()


def _is_systemd_init(root: ImageRoot) -> bool:
    """Whether /sbin/init is a link that names systemd, as the script ``settings-files`` sees it."""
    paths = (PurePosixPath("/usr/sbin/init"), PurePosixPath("/sbin/init"))
    target = next((target for path in paths if (target := root.link_target(path)) is not None), None)
    return target is not None and PurePosixPath(target).name == "systemd"


def _packages_files(root: ImageRoot) -> Iterator[PurePosixPath]:
    theirs = {name for place in ADMINISTRATORS for name in _names_in(root, place)}
    for path in sorted(_in(root, _PACKAGES[0]), key=os.fsencode):
        # Init cannot follow a link from the place where it reads the volume.
        if path.name in theirs or root.host(path).is_symlink() or not root.host(path).is_file():
            continue
        if not _PLAIN.fullmatch(str(path)):
            raise UnsupportedUnitError(
                f"the image has kernel settings in {brief(str(path))}, which is no plain name",
                hint="rename the file",
            )
        yield path


def _names_in(root: ImageRoot, directory: str) -> Collection[str]:
    place = root.resolve(PurePosixPath(directory)).canonical
    return root.names(place) if place is not None and root.host(place).is_dir() else ()
