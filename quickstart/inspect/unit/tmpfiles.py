"""Find the directories in /run, /tmp, /var/tmp and /dev/shm that tmpfiles.d(5) creates. Services rely on these
directories, but systemd-tmpfiles has not run when a service starts early.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import MAX_TABLE_BYTES, ImageRoot
from quickstart.inspect.unit.files import hidden_at
from quickstart.inspect.unit.mounted import tmp_options
from quickstart.inspect.unit.openplaces import (
    DESTRUCTIVE,
    X11,
    OpenPlaces,
    has_x_window_system,
    is_in_open_place,
    is_refused_there,
    may_lead_there,
    open_place,
)
from quickstart.inspect.unit.rundirectories import OF_SYSTEMD, PACKAGES, configured_files, run_directories
from quickstart.inspect.unit.sysctl import KernelSetting
from quickstart.inspect.unit.tmpfileslines import (
    has_escapes,
    has_other_ends,
    is_usual_link,
    lines_of,
    makes,
    plain,
    unquoted,
)
from quickstart.parse.bounded import natural
from quickstart.parse.printable import brief

# Init handles these places itself (earlier-files, the run directories of the starter), or they belong to the kernel.
_OWN_PLACES = (
    *("/tmp/", "/var/tmp/", "/run/", "/dev/", "/proc/", "/sys/"),  # noqa: S108
    # systemd's.
    *("/var/log/journal/", "/var/lib/systemd/"),
)
# Files of packages that every Debian may have. No service uses these files.
_NOBODYS = frozenset(
    (
        *(
            "/etc/default/locale",
            "/etc/mtab",
            "/etc/vconsole.conf",
            "/fastboot",
            "/forcefsck",
            "/forcequotacheck",
            "/var/lib/systemd/coredump/.#*",
        ),
        *(f"/etc/{name}.lock" for name in ("group", "gshadow", "passwd", "shadow", "subgid", "subuid")),
    )
)
# A file, pipe, link or copy that is missing in /run until systemd-tmpfiles has made it.
_FILE = re.compile(r"[fFpLCwcb]\S*")
# Types of lines that give a file another mode, owner, ACL or attribute.
_CHANGES = re.compile(r"[zZmaAtThH]\S*")
# Types of lines that make a file, and that give an existing file this mode and these owners.
_GIVES_ACCESS = re.compile(r"[dDevqQfpCcb]\S*")
_ANY_MODE = re.compile(r"[~:]*([0-7]{1,5})")
_OF_BOOT = frozenset(("/run/initctl", "/run/nologin", "/run/shm", "/run/utmp"))
# Directories of the kernel, in which a line changes what a service finds.
_KERNELS = ("/dev/", "/proc/", "/sys/")
_SETTINGS = ("/proc/sys/", "/sys/")
# All types but `x` and `X`, which matter to a clean-up only.
_ACTS = re.compile(r"[a-wyzA-WYZ]\S*")
# A line that writes a plain value: neither quotes, nor escapes, nor specifiers.
_WRITE = re.compile(r"\s*w[!+-]*\s+(/[\w./:*?-]+)(?:\s+-){4}\s+([\w.,:=/+-]+(?: [\w.,:=/+-]+)*)")
# Files that keep a written value, so systemd-tmpfiles may write the value once more after init.
_KEPT_VALUES = re.compile(
    r"/(?:proc/sys|sys/kernel/mm|sys/module/[^/]+/parameters|sys/devices/system/cpu"
    r"|sys/(?:class/)?block/[^/]+/queue|sys/class/net/[^/]+/queues)/.+"
)
# The kernel accepts this value only once (cpu_smt_control).
_ONCE = "forceoff"
# The IDs of the users and groups, by their names.
_Ids = tuple[Mapping[str, int | None], Mapping[str, int | None]]


def refuse_tmpfiles(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a line that removes or overwrites files which the application may use, outside
    of places such as /tmp, /var/tmp and /run. In a stock boot, systemd-tmpfiles obeys such a line before the
    application starts. In a fast start, systemd-tmpfiles obeys the line only after the application has started.

    In a file that belongs to no package, the function refuses three more kinds of lines:

    - a line that makes a file below /run
    - a line that gives an existing file another mode, owner or attribute
    - a line that changes something below /dev, /proc or /sys, unless init does the same before the application starts
      (``written_settings``)

    The function allows all other lines. For the files that these lines make, pack/others.py finds out from the
    reference boot whether the application uses these files.
    """
    judge = _Judge(root)
    for path, text in judge.files:
        if has_other_ends(text):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {brief(str(path))} has a carriage return or a NUL within a line",
                hint="write one line break behind each line",
            )
        is_done, is_own = hidden_at(root, path) is None, path not in judge.packaged
        for line, words in lines_of(text):
            # A type that is not plain is systemd's to read; of the paths, see `may_lead_there`.
            if len(words) > 1 and not (is_done and _setting(line, is_packages=False)):
                judge.check(unit, line, words, is_own=is_own)


class _Judge:
    """Judges all lines of an image's tmpfiles.d. The tables are read once for all lines, because an image may have a long
    table and many lines.
    """

    def __init__(self, root: ImageRoot) -> None:
        self._root = root
        self.files = tuple(configured_files(root))
        self.packaged = owners(root, [path for path, _ in self.files]) if self.files else {}
        self._ids = _ids_in(root, "/etc/passwd"), _ids_in(root, "/etc/group")
        self._made = {*X11, *(record[-1] for record in run_directories(root))}
        self._is_emptied = empties_tmp(root) or bool(tmp_options(root))
        self._has_x = has_x_window_system(root)
        self._places = OpenPlaces()
        self._first: dict[str, tuple[str, ...]] = {}

    def check(self, unit: str, line: str, written: tuple[str, ...], *, is_own: bool) -> None:
        words = unquoted(written)
        kind, what = words[0], plain(words[1])
        mode, user, group, *_ = words[2:] + ("",) * 3
        if is_usual_link(words):
            is_refused = False
        elif has_escapes(written[0]) or (is_own and has_escapes(written[1])):
            is_refused = True
        elif place := open_place(what):
            is_refused = self._places.is_refused(place, written)
        elif is_in_open_place(what):
            is_refused = is_refused_there(
                kind, what, self._made, is_emptied=self._is_emptied, has_x=self._has_x
            ) or self._is_second(what, written)
        else:
            is_refused = may_lead_there(kind, written[1]) or _is_refused(kind, what, is_own=is_own)
        if is_refused or (is_own and _changes(self._root, self._ids, kind, what, mode, user, group)):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: tmpfiles.d has `{brief(line)}`, which comes after it",
                hint="link the file's name in /etc/tmpfiles.d to /dev/null, or let ExecStartPre= do its work",
            )

    def _is_second(self, path: str, written: tuple[str, ...]) -> bool:
        """Whether another line makes ``path``, and says something else of it."""
        return makes(written[0]) and self._first.setdefault(path, written) != written


def empties_tmp(root: ImageRoot) -> bool:
    """Whether systemd-tmpfiles empties /tmp at boot, as `is_emptied` in init's script `earlier-files` sees it."""
    kinds = {
        words[0][:1]
        for _, text in configured_files(root)
        for _, words in ((line, unquoted(words)) for line, words in lines_of(text))
        if len(words) > 1 and open_place(plain(words[1])) == "/tmp"  # noqa: S108
    }
    return kinds == {"D"}


def written_settings(root: ImageRoot) -> tuple[KernelSetting, ...]:
    """The kernel settings that lines of tmpfiles.d write into files below /proc/sys and /sys, in the order of the
    lines. If several lines write into one file, only the first line counts. systemd-tmpfiles also ignores the other
    lines, with the message "Duplicate line for path". Init applies the settings before the application starts. Only
    lines with a plain value are in the result. systemd-tmpfiles writes the same value again some seconds later. So the
    result has only lines for files in which a second write of the same value changes nothing. The result does not have
    the settings in files that are not world-readable, because the content of these files must not enter our initramfs.
    """
    firsts: dict[str, KernelSetting] = {}
    for _, each in _written(root):
        firsts.setdefault(each.key, each)
    return tuple(firsts.values())


def packages_files_with_settings(root: ImageRoot) -> frozenset[PurePosixPath]:
    """The files of tmpfiles.d that packages have delivered and that write kernel settings."""
    return frozenset(path for path, each in _written(root) if each.is_packages)


def _written(root: ImageRoot) -> Iterator[tuple[PurePosixPath, KernelSetting]]:
    files = tuple(configured_files(root))
    packaged = owners(root, [path for path, _ in files]) if files else {}
    for path, text in files:
        if hidden_at(root, path) is not None:
            continue
        for line, _ in lines_of(text):
            is_packages = path in packaged and path.is_relative_to(PACKAGES)
            if (setting := _setting(line, is_packages=is_packages)) is not None:
                yield path, setting


def later_writes(root: ImageRoot) -> tuple[KernelSetting, ...]:
    """The values that lines of tmpfiles.d write into files below /proc/sys and /sys in each boot, some seconds after an
    early start. Unlike ``written_settings``, the result includes lines that init cannot follow, and lines of files that
    are not world-readable. So the result must not enter our initramfs.
    """
    return tuple(
        KernelSetting(what, " ".join(words[6:]), is_packages=True)
        for _, text in configured_files(root)
        for words in (unquoted(words) for _, words in lines_of(text))
        if len(words) > 1 and words[0].startswith("w") and (what := plain(words[1])).startswith(_SETTINGS)
    )


def unpacked_tmpfiles(root: ImageRoot) -> frozenset[PurePosixPath]:
    """The files of tmpfiles.d in the packages' directory that belong to no package. The maker of the image has put
    these files there, so they count as the administrator's files.
    """
    below = root.resolve(PurePosixPath(PACKAGES)).canonical
    names = root.names(below) if below is not None and root.host(below).is_dir() else []
    paths = [below / name for name in names if below is not None and name.endswith(".conf")]
    return frozenset(paths) - owners(root, paths).keys() if paths else frozenset()


def _setting(line: str, *, is_packages: bool) -> KernelSetting | None:
    """The setting that the line ``line`` writes, or None when init cannot write this setting."""
    match = _WRITE.fullmatch(line)
    if (
        match is None
        or {"", ".", ".."} & set(match[1].split("/")[1:])
        or not _KEPT_VALUES.fullmatch(match[1])
    ):
        return None
    path, value = match[1], match[2]
    return (
        None if value in ("-", _ONCE) else KernelSetting(path.removeprefix("/proc/sys/"), value, is_packages)
    )


def _is_refused(kind: str, path: str, *, is_own: bool) -> bool:
    """Whether `refuse_tmpfiles` refuses a line of the type ``kind`` for ``path``. ``is_own`` says that the line's file
    belongs to no package.
    """
    if path.rstrip("/") == "/run":
        return bool(_ACTS.fullmatch(kind))
    if is_own and f"{path}/".startswith(_KERNELS):
        return bool(_ACTS.fullmatch(kind))
    if is_own and path.startswith("/run/") and (_CHANGES.fullmatch(kind) or _FILE.fullmatch(kind)):
        return not _is_known(path)
    if path in _NOBODYS or _is_own_place(path):
        return False
    return bool(DESTRUCTIVE.fullmatch(kind) or (is_own and _CHANGES.fullmatch(kind)))


def _changes(root: ImageRoot, ids: _Ids, kind: str, path: str, mode: str, user: str, group: str) -> bool:
    """Whether a line of the type ``kind`` may give another mode, user or group to something that the image has. The
    result is true for a path with a wildcard, because such a path may match anything.
    """
    wanted = _ANY_MODE.fullmatch(mode)
    names = tuple("" if name.startswith((":", "-")) else name for name in (user, group))
    if not _GIVES_ACCESS.fullmatch(kind) or not (wanted or any(names)):
        return False
    # A glob is one of `e` only; of the other specifiers, none is a usual place.
    if _is_own_place(path) or "%" in path or not path.startswith("/"):
        return False
    if set(path) & set("*?[{"):
        return True
    found = root.resolve(PurePosixPath(path)).canonical
    if found is None:
        return False
    status = root.host(found).stat()
    own = _guests(status.st_uid, os.geteuid()), _guests(status.st_gid, os.getegid())
    return bool(wanted and stat.S_IMODE(status.st_mode) != int(wanted[1], 8)) or any(
        name and _number(known, name) != number for known, name, number in zip(ids, names, own, strict=True)
    )


def _guests(number: int, ours: int) -> int:
    # An ordinary user's tree is root's in the guest (store/treehash.py).
    return 0 if number == ours else number


def _number(ids: Mapping[str, int | None], name: str) -> int | None:
    """The ID of the user or group ``name``, or None when the image does not have the name."""
    if name == "root" or natural(name) is not None:
        return 0 if name == "root" else natural(name)
    return ids.get(name)


def _ids_in(root: ImageRoot, file: str) -> Mapping[str, int | None]:
    """The IDs of the users or groups in a table such as /etc/passwd. Of two rows with the same name, only the first
    counts.
    """
    path = root.resolve(PurePosixPath(file)).canonical
    rows = root.read_text(path, MAX_TABLE_BYTES).splitlines() if path else ()
    found: dict[str, int | None] = {}
    for words in (row.split(":", 3) for row in rows):
        if len(words) > 2:
            found.setdefault(words[0], natural(words[2]))
    return found


def _is_own_place(path: str) -> bool:
    return f"{path}/".startswith(_OWN_PLACES) and ".." not in path.split("/")


def _is_known(path: str) -> bool:
    """Whether ``path`` is a file below /run that belongs to systemd. No application reads such a file at its start."""
    return path in _OF_BOOT or f"{path}/".startswith(OF_SYSTEMD)
