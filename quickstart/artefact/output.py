"""Replace an artefact's directory (OUT) safely. The new OUT is made next to the old OUT. When the new OUT is complete,
the two directories exchange their names in one step, and then the old OUT is removed. Some file systems, such as NFS,
cannot exchange two names. On these file systems, the old OUT is renamed first, and then the new OUT is renamed to OUT.
Two builds that run at the same time do not damage OUT. A build that is killed does not damage OUT, either.

The directory that contains OUT may also contain directories with these names::

    .OUT.XXXXXXXX.partial    a new OUT that a build is writing, or an old OUT that a build is removing. The build
                             holds a lock on this directory (flock(2)). A directory without a lock is a leftover of
                             a killed build. The next build removes the leftover.
    .OUT.XXXXXXXX.old        the old OUT, between the two renames.

Builds and machines also lock the directory OUT itself. A running machine holds a shared lock on OUT, and a build that
replaces OUT holds an exclusive lock.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from quickstart.errors import BadInputError, HostLacksError, OutputExistsError, QuickStartError
from quickstart.host.exchange import exchange
from quickstart.host.files import full_disk_named, remove_tree, sync_directory
from quickstart.host.locks import EXCLUSIVE, SHARED, try_lock, unlock
from quickstart.host.mounted import is_on_overlay, mounted_at
from quickstart.host.places import fault_at, make_directories, place_of, swapped_by_others
from quickstart.parse.printable import command

# The lock is held for as long as it takes to remove an old OUT.
_LIMIT_S = 60.0
_LOCK_HINT = "choose an -o on a local one"
_PLACE_HINT = (
    "choose an -o in a directory of yours, all the way to which nobody else but root may write; "
    "or chmod go-w what is named, where that is yours"
)
# EXDEV: a lower layer of an overlay file system. EBUSY: a mount point. ENOTEMPTY: meanwhile, somebody
# else's directory has the name.
_FIXED = frozenset({errno.EXDEV, errno.EBUSY, errno.ENOTEMPTY})
_FULL_HINT = "free some space, or choose another -o"


@contextmanager
def settled(out: Path) -> Iterator[None]:
    """A context during which no other build renames ``out``. At the beginning and at the end of the context, this
    function removes the directories that killed builds have left next to ``out``. But when ``out`` is missing, the
    function renames the old directory that a killed build has left back to ``out``.

    Raises BadInputError when the parent directory of ``out`` is missing or another user could replace this directory.
    Raises HostLacksError when another process keeps the parent directory locked.
    """
    if not out.parent.is_dir():
        raise BadInputError(f"{out.parent} is not a directory", hint="make it first, or choose another -o")
    check_place(out)
    with _opened(out.parent) as parent:
        deadline = time.monotonic() + _LIMIT_S
        while not _locked(parent):
            if time.monotonic() > deadline:
                raise HostLacksError(
                    f"{out.parent} is locked by another process (flock)", hint="end it, or choose another -o"
                )
            time.sleep(0.02)
        _mend(out)
        try:
            yield
        finally:
            _mend(out)


@contextmanager
def in_use(out: Path) -> Iterator[None]:
    """A context during which no build replaces ``out``. Enter the context before ``out`` is read.

    When ``out`` cannot be opened, this function raises no error, because the caller gets an error when the caller reads
    ``out``. Raises BadInputError when another user could replace ``out`` or a file in ``out``. Raises HostLacksError
    when another process keeps ``out`` locked.
    """
    check_own(out)
    _wait_for_rebuild(out)
    with ExitStack() as stack:
        deadline = time.monotonic() + _LIMIT_S
        while (fd := _open_existing(out, stack)) is not None:
            try:
                locked = try_lock(fd, SHARED, "OUT", _LOCK_HINT)
            except HostLacksError:
                # On a file system without locks, no build can replace ``out``.
                break
            if locked and _is_at(fd, out):
                break
            # A build is replacing ``out``, or has just replaced it.
            if time.monotonic() > deadline:
                raise HostLacksError(f"{out} is locked by another process (flock)", hint="end it")
            time.sleep(0.02)
        yield


def _wait_for_rebuild(out: Path) -> None:
    """Wait until no directory next to ``out`` has a hard link to a file of ``out``. The wait ends after _LIMIT_S
    seconds at the latest.

    While a rebuild makes the new OUT, the new OUT has a hard link to the disk of the old OUT. When the rebuild was
    killed, this function removes the leftover with the hard link. Otherwise, the new OUT replaces ``out`` soon.
    """
    deadline = time.monotonic() + _LIMIT_S
    with suppress(QuickStartError, OSError):
        while _is_shared(out) and time.monotonic() < deadline:
            with settled(out):
                pass
            time.sleep(0.02)


def _is_shared(out: Path) -> bool:
    """Whether a file of ``out`` has a hard link in a leftover of a killed build, or in a new OUT that is being made."""
    with suppress(OSError):
        linked = [path for path in out.iterdir() if path.lstat().st_nlink > 1]
        for beside in _left_beside(out) if linked else ():
            for path in linked:
                with suppress(FileNotFoundError):
                    if os.path.samestat((beside / path.name).lstat(), path.lstat()):
                        return True
    return False


def check_place(out: Path) -> Path:
    """The path of ``out`` after all links are followed. When ``out`` is a link, a build replaces the directory at the
    link's target. Raises BadInputError when another user could replace a directory or link of this path.

    Without this check, another user could make root write to a place that this user chooses. When ``out`` itself is a
    link, this function also checks the link, because the link decides where the directory is.
    """
    place, fault = place_of(out)
    _check_swapped(fault, out)
    return place


def check_into(directory: Path) -> None:
    """Raise BadInputError when another user could replace ``directory``, into which files are to be written.
    The directory need not exist.

    Without this check, the owner of a parent directory could replace ``directory`` by a symbolic link, and so make
    root write to another place.
    """
    _check_swapped(swapped_by_others(directory), directory)


def make_into(directory: Path) -> None:
    """Make ``directory`` and its missing parent directories, so that files can be written into ``directory``. Raises
    BadInputError when another user could replace one of these directories.

    Before this function makes a directory, it checks that no other user could replace the parent directory. So no link
    of another user can make us write to another place.
    """
    try:
        fault = make_directories(directory)
    except FileExistsError as error:
        raise BadInputError(f"{error.filename} is not a directory", hint="choose another -o") from error
    _check_swapped(fault, directory)


def _check_swapped(fault: str, directory: Path) -> None:
    if fault:
        raise BadInputError(f"{fault}: {directory} could be swapped while it is written", hint=_PLACE_HINT)


def check_own(out: Path) -> None:
    """Raise BadInputError when another user could replace ``out``, or a file in ``out``, before a machine starts
    from ``out``.

    Without this check, another user could give the guest another disk. Verbs of `quickstart` that only read an
    artefact do not need the check.
    """
    fault = swapped_by_others(out)
    with suppress(OSError):
        for path in sorted(out.iterdir()) if not fault else ():
            with suppress(FileNotFoundError):
                if found := fault_at(path):
                    fault = f"{path} {found}"
                    break
    if fault:
        raise BadInputError(f"{fault}: {out} could be swapped while it is used", hint=_copy_hint(out))


def _copy_hint(out: Path) -> str:
    copy = command("cp", "-r", "--", str(out))
    how = f" ({copy} NEW)" if copy else ""
    return f"copy it{how} to where only you and root may write, all the way from /; or do it as its user"


def check_unused(out: Path) -> None:
    """Raise OutputExistsError when a machine runs from ``out``. Call this function within the context of the function
    ``settled``, during which no other build renames ``out``.
    """
    with ExitStack() as stack:
        _lock_unused(out, stack)


def _lock_unused(out: Path, stack: ExitStack) -> None:
    fd = _open_existing(out, stack)
    if fd is not None and not _locked(fd):
        raise OutputExistsError(
            f"{out} is in use by a running machine", hint="shut that down, or choose another -o"
        )


def _open_existing(out: Path, stack: ExitStack) -> int | None:
    try:
        return stack.enter_context(_opened(out))
    except OSError:
        return None


def _is_at(fd: int, out: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), out.stat())
    return False


@contextmanager
def new_directory(out: Path, keep: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """A context with a new directory next to ``out``. When the context ends without an error, the new directory is
    renamed to ``out``. When the context ends with an error, the new directory is removed.

    When ``out`` exists at the end of the context, this function calls ``keep``, which decides whether ``out`` stays. If
    ``keep`` returns True or raises an exception, ``out`` stays and the new directory is removed.

    Raises OutputExistsError when a machine runs from ``out``. Raises HostLacksError when the disk is full or ``out``
    cannot be renamed. Also raises the errors of the function ``settled``, which locks the parent directory.
    """
    partial = _beside(out, "partial")
    with settled(out), full_disk_named(out.parent, "OUT in", _FULL_HINT):
        # Nobody else may read the directory while the disk, which has /etc/shadow, is written.
        partial.mkdir(mode=0o700)
        owner = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        _locked(owner)
    left = True
    try:
        _check_replaceable(partial, out)
        with full_disk_named(out.parent, "OUT in", _FULL_HINT):
            yield partial
            # The check compares with the descriptor, because a check of the name alone would follow a link.
            if not _is_at(owner, partial) or partial.is_symlink():
                raise HostLacksError(f"{partial} was replaced while it was written", hint=_PLACE_HINT)
            os.fchmod(owner, 0o755)
            os.sync()
        # The old OUT stays locked until it is removed.
        with ExitStack() as stack, settled(out):
            if out.exists():
                if keep():
                    return
                _lock_unused(out, stack)
            _replace(partial, out)
            left = False
            # This happens before anybody is told that the work is done.
            sync_directory(out.parent)
            # From now on, a machine may run from the new OUT.
            unlock(owner)
            # This is the old OUT, which no other process can lock.
            with suppress(PermissionError):
                remove_tree(partial)
    finally:
        if left:
            remove_tree(partial)
        os.close(owner)


def _check_replaceable(partial: Path, out: Path) -> None:
    """Raise HostLacksError when ``out`` cannot be renamed, so that a build could not replace ``out`` at its end. This
    check comes before the long work of the build.

    On an overlay file system, a directory of a lower layer cannot be renamed (EXDEV). For example, an OUT that is in
    the image of a container is in a lower layer. So this function tries to rename ``out``, which is the only way to
    find out whether ``out`` can be renamed. The attempt changes nothing, because rename(2) does not replace a directory
    that is not empty.
    """
    if not out.exists():
        return
    for point in mounted_at(out):
        raise HostLacksError(
            f"{point} is mounted in the OUT that is to be replaced", hint="unmount it, or choose another -o"
        )
    if out.is_dir() and is_on_overlay(out):
        mark = partial / "mark"
        mark.touch()
        with _renaming(out), suppress(FileNotFoundError):
            try:
                out.rename(partial)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        mark.unlink()


def _replace(partial: Path, out: Path) -> None:
    """Rename the new directory ``partial`` to ``out``. If there is an old directory ``out``, the old directory gets the
    name ``partial``, or the name .OUT.XXXXXXXX.old on a file system that cannot exchange names.
    """
    with _renaming(out):
        if out.exists():
            if exchange(partial, out):
                return
            out.rename(_beside(out, "old"))
        partial.rename(out)


@contextmanager
def _renaming(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FIXED:
            raise
        raise HostLacksError(
            f"{out} cannot be replaced: {error.strerror}",
            hint="choose another -o: a mount point or a directory of a container's image cannot be renamed",
        ) from error


def _beside(out: Path, kind: str) -> Path:
    return out.with_name(f".{out.name}.{secrets.token_hex(4)}.{kind}")


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    return try_lock(fd, EXCLUSIVE, "OUT", _LOCK_HINT)


def _mend(out: Path) -> None:
    """Finish or undo the replacement of ``out`` that a killed build has begun. Call this function within the context
    ``settled``.

    When ``out`` is missing, the build was killed between the two renames of the replacement, so the old directory
    gets the name ``out`` back. When ``out`` exists, the old directory is removed. Directories that belong to other
    users are ignored, because such a directory must never become ``out``.
    """
    found = _left_beside(out)
    # In another user's directory, only this user can remove or rename the leftovers.
    with suppress(PermissionError):
        for old in [path for path, kind in found.items() if kind == "old"]:
            if not out.exists():
                old.rename(out)
                continue
            # After the rename, nobody can mistake the half-removed directory for a whole one.
            partial = _beside(out, "partial")
            old.rename(partial)
            remove_tree(partial)
        for partial in [path for path, kind in found.items() if kind == "partial"]:
            # At this moment, the build that owns the directory may rename or remove it.
            with suppress(FileNotFoundError), _opened(partial) as fd:
                if _locked(fd):
                    remove_tree(partial)


def _left_beside(out: Path) -> Mapping[Path, str]:
    """Our own directories next to ``out`` that have the name of a leftover. The result maps each directory's path to
    the kind of leftover, ``partial`` or ``old``.
    """
    name = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}\.(partial|old)", re.DOTALL)
    return {
        path: match[1]
        for path in sorted(out.parent.iterdir())
        if (match := name.fullmatch(path.name)) and _is_own_directory(path)
    }


def _is_own_directory(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
