"""Convert directives for the unit's own mount namespace (systemd.exec(5), "Sandboxing") into `mount` records of the
starter's description, the text file by which the starter starts the unit. The lists of paths in this module are those
of systemd 252.
"""

from __future__ import annotations

from collections.abc import Iterator

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.dynamicuser import has_tmp_of_its_own
from quickstart.inspect.unit.model import LateBind
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError, choice
from quickstart.parse.guestpaths import in_run, simplified
from quickstart.parse.printable import brief

Record = tuple[str, ...]

_HOMES = ("/home", "/run/user", "/root")
_PROC_READ_ONLY = (
    "acpi",
    "apm",
    "asound",
    "bus",
    "fs",
    "irq",
    "latency_stats",
    "mtrr",
    "scsi",
    "sys",
    "sysrq-trigger",
)
# The limits that systemd sets for a unit's own tmpfs.
_LARGE_TMPFS = "size=10%,nr_inodes=400k"
_SMALL_TMPFS = "size=4m,nr_inodes=1k"
# Sockets of journald. A program that logs to them connects again each time, so these sockets may come with systemd.
_QUOTES = frozenset("\"'")
# A bind has a source, a target and an option.
_BIND_PARTS = 3
_LOGS = ("/dev/log", "/run/systemd/journal", "/run/systemd/journal/dev-log", "/run/systemd/journal/socket")
# Files that only systemd's own services make, and that do not exist at an early start.
_LATE = ("/dev/log", "/run/systemd/", "/run/dbus/", "/run/udev/", "/run/user/")


def mount_records(source: Source) -> Iterator[Record]:
    """The starter's records of the mounts that the directives in ``source`` require, in no particular order. Raises
    UnsupportedUnitError for an invalid value.
    """
    yield from _protect_system(source)
    yield from _protect_home(source)
    yield from _protect_kernel(source)
    yield from _paths(source)
    yield from _binds(source)
    if source.flag("PrivateDevices"):
        yield "mount", "private-dev", "required", "/dev"
    if has_tmp_of_its_own(source):
        yield "mount", "own-tmp", "required", "/tmp"  # noqa: S108
        yield "mount", "own-tmp", "required", "/var/tmp"  # noqa: S108
    elif is_private_tmp(source):
        yield "mount", "private-tmp", "required", "/tmp"  # noqa: S108
        yield "mount", "private-tmp", "required", "/var/tmp"  # noqa: S108


def host_name_records(source: Source) -> Iterator[Record]:
    """The starter's records of the paths that ProtectHostname= makes read-only when another directive creates a mount
    namespace. ProtectHostname= alone does not create a mount namespace.
    """
    if source.flag("ProtectHostname"):
        # A /proc with only the processes has neither of these files.
        needed = "optional" if source.last("ProcSubset") == "pid" else "required"
        for name in ("hostname", "domainname"):
            yield "mount", "read-only", needed, f"/proc/sys/kernel/{name}"


def sys_records(source: Source) -> Iterator[Record]:
    """The starter's record of the new /sys for a unit with PrivateNetwork= that has a mount namespace. A systemd that
    is newer than the systemd of Debian 12 mounts a new /sys for such a unit. In the machine's own /sys, a process would
    find the machine's network cards, and a process of root could write to the files of these cards.
    """
    if _has_own_sys(source):
        yield "mount", "fresh-sys", "required", "/sys"


def _has_own_sys(source: Source) -> bool:
    return source.flag("PrivateNetwork") and "PrivateNetwork" in source.systemd.newer


def is_private_tmp(source: Source) -> bool:
    """Whether PrivateTmp= gives the unit a directory of the machine's /tmp as the unit's own /tmp. This function does
    not accept the value `disconnected`, by which systemd mounts new file systems at /tmp and /var/tmp, except in a unit
    with DynamicUser=.
    """
    return not has_tmp_of_its_own(source) and source.flag("PrivateTmp")


def namespace(source: Source, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The `namespace` record, which makes the starter create the unit's mount namespace. The result is empty when the
    unit has no mounts and no directive that creates a namespace by itself.
    """
    how = source.value("MountFlags", lambda value: choice(value, ("shared", "slave", "private"))) or "shared"
    # A new /sys implies PrivateMounts=, unless the unit has PrivateMounts=no.
    private = source.flag("PrivateMounts", otherwise=_has_own_sys(source))
    wanted = bool(records or late_binds(source)) or private or how != "shared"
    # What NoNewPrivileges= gives up is taken from the unit's own mounts as well.
    nosuid = ("nosuid",) if source.flag("NoNewPrivileges") else ()
    return (("namespace", how, *nosuid),) if wanted else ()


def _protect_system(source: Source) -> Iterator[Record]:
    value = source.last("ProtectSystem")
    if value == "strict":
        yield "mount", "read-only", "required", "/"
        for path in ("/proc", "/sys", "/dev"):
            yield "mount", "read-write-implicit", "required", path
        for path in _HOMES:
            yield "mount", "read-write-implicit", "optional", path
        return
    if value == "full" or source.flag("ProtectSystem", but=("full",)):
        yield "mount", "read-only", "required", "/usr"
        yield from (("mount", "read-only", "optional", path) for path in ("/boot", "/efi"))
        yield from (("mount", "read-only", "optional", path) for path in ("/bin", "/sbin", "/lib", "/lib64"))
    if value == "full":
        yield "mount", "read-only", "required", "/etc"


def _protect_home(source: Source) -> Iterator[Record]:
    value = source.last("ProtectHome")
    if value == "tmpfs" and "ProtectHome" in source.systemd.newer:
        for path in _HOMES:
            mode = "0700" if path == "/root" else "0755"
            yield "mount", "tmpfs-read-only", "optional", path, f"mode={mode},{_SMALL_TMPFS}"
    elif value == "tmpfs":
        # These tmpfs have no special options, because systemd 252 drops the options of its own table.
        yield from (("mount", "tmpfs", "optional", path) for path in _HOMES)
    elif value == "read-only":
        yield from (("mount", "read-only", "optional", path) for path in _HOMES)
    elif source.flag("ProtectHome", but=("read-only", "tmpfs")):
        yield from (("mount", "inaccessible", "optional", path) for path in _HOMES)


def _protect_kernel(source: Source) -> Iterator[Record]:
    if source.flag("ProtectKernelTunables"):
        yield from (("mount", "read-only", "optional", f"/proc/{name}") for name in _PROC_READ_ONLY)
        yield from (("mount", "inaccessible", "optional", f"/proc/{name}") for name in ("kallsyms", "kcore"))
        yield "mount", "read-only", "required", "/sys"
        for path in ("/sys/fs/bpf", "/sys/kernel/debug", "/sys/kernel/tracing"):
            yield "mount", "read-only", "optional", path
        yield "mount", "read-write-implicit", "required", "/sys/fs/cgroup"
    if source.flag("ProtectKernelModules"):
        yield from (
            ("mount", "inaccessible", "optional", path) for path in ("/usr/lib/modules", "/lib/modules")
        )
    if source.flag("ProtectKernelLogs"):
        yield from (("mount", "inaccessible", "optional", path) for path in ("/proc/kmsg", "/dev/kmsg"))
    if source.flag("ProtectKernelTunables") or source.flag("ProtectControlGroups") or _proc_options(source):
        # They imply MountAPIVFS=. So these places are mounts of their own, which ProtectSystem=strict does not make
        # read-only.
        yield "mount", "fresh-proc", "required", "/proc", *_proc_options(source)
        # A tmpfs of the unit's own at /run counts more than the machine's, in systemd's order (mount_path_compare).
        places = ("/dev", "/sys") if "/run" in _emptied(source) else ("/dev", "/run", "/sys")
        yield from (("mount", "as-it-is", "required", path) for path in places)
    if source.flag("ProtectControlGroups"):
        yield "mount", "read-only", "required", "/sys/fs/cgroup"


def _emptied(source: Source) -> frozenset[str]:
    """The paths of TemporaryFileSystem=."""
    words = (word.partition(":")[0] for word in source.words("TemporaryFileSystem"))
    return frozenset(_path(source, "TemporaryFileSystem", word) for word in words)


def refuse_hidden_places(source: Source, records: tuple[Record, ...]) -> None:
    """Raise UnsupportedUnitError for a bind mount, or a directory of the unit's own, that lies below a mount which hides
    this place. systemd makes the place in the new mount, and looks up the source outside of it. The starter does not.
    Also raise the error for the top directory as a mount point.
    """
    kinds = ("tmpfs", "tmpfs-read-only", "private-tmp", "own-tmp", "private-dev")
    hiding = [record[3] for record in records if record[0] == "mount" and record[1] in kinds]
    for record in records:
        if record[0] != "mount":
            continue
        kind, path = record[1], record[3]
        is_bind = kind.startswith("bind")
        if path == "/" and (is_bind or kind in (*kinds, "inaccessible")):
            raise UnsupportedUnitError(f"{source.unit} cannot be started early: it mounts something on /")
        used = (path, record[4]) if is_bind else (path,)
        for place in used if is_bind or kind == "read-write" else ():
            if any(place != each and place.startswith(f"{each.rstrip('/')}/") for each in hiding):
                raise UnsupportedUnitError(
                    f"{source.unit} cannot be started early: it uses {brief(place)} below a file system of its own",
                )


def _proc_options(source: Source) -> tuple[str, ...]:
    """The mount options of the unit's own /proc, as one word. The result is empty when neither ProtectProc= nor
    ProcSubset= requires one.
    """
    kinds = ("default", "noaccess", "invisible", "ptraceable")
    protected = source.value("ProtectProc", lambda value: choice(value, kinds)) or "default"
    subset = source.value("ProcSubset", lambda value: choice(value, ("all", "pid"))) or "all"
    if (protected, subset) == ("default", "all"):
        return ()
    hidden = f"hidepid={'off' if protected == 'default' else protected}"
    return (hidden if subset == "all" else f"{hidden},subset=pid",)


_PATHS = {
    "ReadWritePaths": "read-write",
    "ReadWriteDirectories": "read-write",
    "ReadOnlyPaths": "read-only",
    "ReadOnlyDirectories": "read-only",
    "InaccessiblePaths": "inaccessible",
    "InaccessibleDirectories": "inaccessible",
    "ExecPaths": "exec",
    "NoExecPaths": "no-exec",
}


def _path(source: Source, name: str, text: str) -> str:
    path = source.names.expand(text)
    if not path.startswith("/") or ".." in path.split("/"):
        raise source.refusal(name, text, BadValueError("is no absolute path"))
    return simplified(path)


def _paths(source: Source) -> Iterator[Record]:
    for name, kind in _PATHS.items():
        for word in source.words(name):
            # systemd accepts the prefixes only in this order, and ignores a word that begins otherwise.
            optional = "optional" if word.startswith("-") else "required"
            bare = word.removeprefix("-").removeprefix("+")
            yield "mount", kind, optional, _path(source, name, bare)
    for word in source.words("TemporaryFileSystem"):
        path, _, options = word.partition(":")
        chosen = [each for each in options.split(",") if each]
        if any(each != "ro" and not each.startswith(("size=", "mode=", "nr_inodes=")) for each in chosen):
            raise source.refusal(
                "TemporaryFileSystem", word, BadValueError("has an option that is not known")
            )
        given = ",".join(["mode=0755", _LARGE_TMPFS, *(each for each in chosen if each != "ro")])
        kind = "tmpfs-read-only" if "ro" in chosen else "tmpfs"
        yield "mount", kind, "required", _path(source, "TemporaryFileSystem", path), given


def _binds(source: Source) -> Iterator[Record]:
    for name, suffix in (("BindPaths", ""), ("BindReadOnlyPaths", "-read-only")):
        for value in source.all(name):
            # systemd splits a value at its colons, too, and quotes keep a colon in a path.
            if not _QUOTES.isdisjoint(value):
                raise source.refusal(name, value, BadValueError("has quotes"))
        for word in source.words(name):
            optional = "optional" if word.startswith("-") else "required"
            what, where, how = _bind(source, name, word)
            if in_run(what) in _LOGS:
                continue
            if f"{in_run(what)}/".startswith(_LATE) or what in _LATE:
                raise source.refusal(
                    name, word, BadValueError(f"binds {what}, which is not there before the hand-off")
                )
            kind = {"": "bind-all", "rbind": "bind-all", "norbind": "bind"}.get(how)
            if kind is None:
                raise source.refusal(name, word, BadValueError("has an option that is not known"))
            yield "mount", kind + suffix, optional, where, what


def _bind(source: Source, name: str, word: str) -> tuple[str, str, str]:
    """The source, the target and the option of a bind mount."""
    parts = word.removeprefix("-").split(":")
    if not all(parts) or len(parts) > _BIND_PARTS:
        raise source.refusal(name, word, BadValueError("is no path, or two with an option"))
    what, where, how = (*parts, "", "")[:_BIND_PARTS]
    what = _path(source, name, what)
    return what, _path(source, name, where) if where else what, how


def late_binds(source: Source) -> tuple[LateBind, ...]:
    """The bind mounts whose sources are journald's sockets. These sockets do not exist before systemd runs."""
    found = []
    for name in ("BindPaths", "BindReadOnlyPaths"):
        for word in source.words(name):
            what, where, _ = _bind(source, name, word)
            if in_run(what) in _LOGS:
                found.append(LateBind(what, where, name == "BindReadOnlyPaths", not word.startswith("-")))
    return tuple(found)
