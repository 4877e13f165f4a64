"""A content-addressed cache of the results of stages (steps of a build). An entry's name is the hash of its stage's
inputs.

Layout below the root (`$QUICKSTART_CACHE`, else `$XDG_CACHE_HOME/quickstart`, else `~/.cache/quickstart`)::

    STAGE/KEY/            a finished entry, with `entry.json` beside the stage's own files
    STAGE/KEY.partial/    an entry that is being made or removed, or that a killed process left unfinished
    STAGE/KEY.lock        a file that processes lock (flock(2)). A process that makes or removes the entry has an
                          exclusive lock, and a process that uses the entry has a shared lock.

`entry.json` has the stage, its inputs and the tree hash of the entry's other files. The modification time of
`entry.json` is the time of the entry's last use.

A process that waits for an entry keeps its shared locks on other entries. Two processes never wait for each other,
because all processes request the stages in the same order (see ``build`` in engines/boot.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host.files import full_disk_named, remove_tree
from quickstart.host.locks import EXCLUSIVE, SHARED, try_lock
from quickstart.store.kept import (
    Kept,
    check_trusted,
    discard,
    forget,
    in_stages,
    kept,
    make_stage,
    opened_stage,
    trusted_entries,
)
from quickstart.store.ownfiles import Patience, document_of, open_lock
from quickstart.store.sources import source_digest as source_digest
from quickstart.store.treehash import tree_hash

KEY_DIGITS = 32
MARK = "entry.json"
_KEY = "[0-9a-f]" * KEY_DIGITS
# A further attempt is needed when another process has removed the lock file that this process was about to lock.
_ATTEMPTS = 100
_TREES = ("base", "reference")
_LOCK_HINT = "set QUICKSTART_CACHE to a local file system"
_FULL_HINT = "free some space (quickstart cache gc), or set QUICKSTART_CACHE to another file system"


def default_root() -> Path:
    """The store's directory on this host. Raises HostLacksError when neither the environment nor a home directory of
    the user determines the directory.
    """
    if chosen := os.environ.get("QUICKSTART_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "quickstart"
    except RuntimeError as error:
        raise HostLacksError("this user has no home directory", hint="set QUICKSTART_CACHE") from error


def key_of(stage: str, inputs: Mapping[str, object]) -> str:
    """The key of the entry that ``stage`` makes from ``inputs``, which are JSON values."""
    text = json.dumps({"stage": stage, "inputs": inputs}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class Entry:
    """A finished entry of the store. ``path`` is the entry's directory. ``made`` is False if the entry already existed
    when it was requested.
    """

    path: Path
    key: str
    made: bool


class _DamagedError(Exception):
    """An entry differs from the result that its stage made. The message names the difference."""


def _unheard(text: str) -> None:
    """Ignore a note."""


class Store:
    """The store below ``root``. Requested entries are locked against removal until the store is closed.

    ``note`` is called with a line when a damaged entry is made again, or when we wait for another process.
    """

    def __init__(self, root: Path, note: Callable[[str], None] = _unheard) -> None:
        self.root = root
        self._note = note
        self._locks = ExitStack()
        self._held: set[Path] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the locks on all entries, so that other processes may remove them."""
        self._held.clear()
        self._locks.close()

    def holds_trees(self) -> bool:
        """Whether the store has images, which an ordinary user can check and remove only in a user namespace."""
        # The answer is also False for a path that is invalid or that we may not read. Using the store then raises an
        # error.
        return any(os.path.isdir(self.root / stage) for stage in _TREES)  # noqa: PTH112

    def find(self, stage: str, inputs: Mapping[str, object]) -> Path | None:
        """The finished entry for ``inputs``, or None if there is no such entry. The entry is neither verified nor
        locked.
        """
        path = self.root / stage / key_of(stage, inputs)
        check_trusted(self.root, path)
        # We may not be allowed to read another user's store. Then the store has no entry for us.
        with suppress(PermissionError):
            if (path / MARK).is_file():
                return path
        return None

    def get_or_make(self, stage: str, inputs: Mapping[str, object], make: Callable[[Path], None]) -> Entry:
        """Return the entry for ``inputs``. When there is no such entry, call ``make`` with an empty directory
        and keep the result.

        When an entry is first requested, this method verifies the entry by its hash. The method makes a damaged entry
        again as soon as no process uses the damaged entry. When ``make`` raises an exception, the store keeps nothing.
        A second process that requests the same entry waits for the first process. Raises HostLacksError when the store
        is full or cannot be written.
        """
        key = key_of(stage, inputs)
        final = self.root / stage / key
        if final in self._held:
            return Entry(final, key, made=False)
        check_trusted(self.root, final)
        look, made, patience = _Look(final), False, Patience(final)
        # flock(2) changes a shared lock into an exclusive one, or back, by releasing it first. We do the same, and
        # then check again. Nobody waits for the exclusive lock, because another process may make the entry meanwhile,
        # and the wait would last until the last user of that entry ends.
        while True:
            with ExitStack() as stack:
                stack.enter_context(self._lock(final, exclusive=False))
                if look.is_whole():
                    self._use(final, stack)
                    return Entry(final, key, made)
            try:
                lock = self._lock(final, exclusive=True)
            except BlockingIOError:
                if look.damage and not look.waited:
                    self._note(f"waiting for another quickstart that uses {stage}/{key}, which is damaged")
                look.waited = True
                patience.wait()
                continue
            with lock:
                if not look.has_changed():
                    if look.damage:
                        self._note(f"store entry {stage}/{key} is damaged ({look.damage}): made again")
                    look.trusted, made = self._make(final, stage, inputs, make), True

    def use(self, stage: str, inputs: Mapping[str, object]) -> Path | None:
        """The directory of the entry for ``inputs``, or None when there is no such entry. Like `get_or_make`, this
        method verifies and locks the entry. Unlike `get_or_make`, this method makes and removes nothing.

        Raises BadInputError when the entry is damaged.
        """
        final = self.root / stage / key_of(stage, inputs)
        if final in self._held:
            return final
        if self.find(stage, inputs) is None:
            return None
        look = _Look(final)
        with ExitStack() as stack:
            stack.enter_context(self._lock(final, exclusive=False))
            if look.is_whole():
                self._use(final, stack)
                return final
        if look.damage:
            raise BadInputError(
                f"store entry {stage}/{final.name} is damaged ({look.damage})", hint="a build makes it again"
            )
        return None

    def marks(self, stage: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
        """The finished entries of ``stage`` with their inputs, sorted by key. The entries are neither verified nor
        locked. Entries that another user could have put into the store are left out (see ``trusted_entries`` in
        kept.py).
        """
        for path in trusted_entries(self.root, self.root / stage, _KEY, self._note):
            # The entry may be removed meanwhile, or may be from another version.
            with suppress(OSError, ValueError, KeyError, TypeError):
                inputs = document_of(path / MARK)["inputs"]
                if key_of(stage, inputs) == path.name:
                    yield path, inputs

    def _use(self, final: Path, lock: ExitStack) -> None:
        self._locks.push(lock.pop_all())
        self._held.add(final)
        # A user who may read a store, but not write it, can still use it.
        with suppress(OSError):
            os.utime(final / MARK)

    def _make(
        self, final: Path, stage: str, inputs: Mapping[str, object], make: Callable[[Path], None]
    ) -> str:
        """Make or replace the entry while holding its exclusive lock. Return the new entry's tree hash."""
        partial = final.with_name(f"{final.name}.partial")
        # With a user's own umask, a group might get write permission. Such an entry would not be trusted
        # (kept.check_trusted), and would differ from other users' entries.
        umask = os.umask(0o022)
        try:
            with self._writable(), opened_stage(self.root, final.parent) as opened:
                discard(opened, final.name)
                partial.mkdir()
            with full_disk_named(self.root, "the store", _FULL_HINT):
                make(partial)
                found = tree_hash(partial, without=MARK)
                document = {"stage": stage, "inputs": inputs, "tree_hash": found}
                (partial / MARK).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
                os.sync()
                partial.rename(final)
        finally:
            os.umask(umask)
            remove_tree(partial)
        return found

    def entries(self) -> tuple[Kept, ...]:
        """Every finished entry, sorted by stage and key. Entries of other versions of this program are included."""
        return tuple(kept(in_stages(self.root, _KEY, self._note), MARK))

    def leftovers(self) -> tuple[Kept, ...]:
        """The unfinished entries that killed processes left, sorted by stage and key."""
        return tuple(
            each for each in kept(in_stages(self.root, f"{_KEY}.partial"), MARK) if self._is_free(each)
        )

    def remove(self, found: Kept) -> bool:
        """Remove an entry, unless it is in use or was used after it was listed. Return whether this method has removed
        the entry.
        """
        entry = found.entry
        with suppress(BlockingIOError), self._lock(entry, exclusive=True) as lock:
            now = next(kept([found.path], MARK), None)
            if now is None or now.used_s > found.used_s:
                return False
            with opened_stage(self.root, entry.parent) as stage:
                discard(stage, entry.name, partial_only=found.partial)
            forget(self.root, entry, lock)
            return True
        return False

    def remove_locks(self) -> None:
        """Remove the lock files of entries that are gone."""
        for path in in_stages(self.root, f"{_KEY}.lock"):
            entry = path.with_suffix("")
            with suppress(BlockingIOError), self._lock(entry, exclusive=True) as lock:
                forget(self.root, entry, lock)

    def _is_free(self, found: Kept) -> bool:
        with suppress(BlockingIOError), self._lock(found.entry, exclusive=True):
            return True
        return False

    def _lock(self, final: Path, *, exclusive: bool) -> BinaryIO:
        """The open lock file of an entry, locked by flock(2). Closing the file unlocks it.

        For a shared lock, this method waits while another process makes or removes the entry. For an exclusive lock, it
        does not wait, but raises BlockingIOError when another process has a lock. When another process has removed the
        lock file together with the entry, this method makes and locks a new lock file.
        """
        kind, of = (EXCLUSIVE if exclusive else SHARED), f"the store {self.root}"
        for _ in range(_ATTEMPTS):
            with ExitStack() as stack:
                file = stack.enter_context(self._open_lock(final.with_name(f"{final.name}.lock")))
                if not try_lock(file.fileno(), kind, of, _LOCK_HINT):
                    if exclusive:
                        raise BlockingIOError
                    self._note(f"waiting for another quickstart that makes {final.parent.name}/{final.name}")
                    patience = Patience(final)
                    while not try_lock(file.fileno(), kind, of, _LOCK_HINT):
                        patience.wait()
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), Path(file.name).lstat()):
                        stack.pop_all()
                        return file
        raise HostLacksError(f"{final}.lock is removed by another process again and again")

    def make_stage(self, name: str) -> Path:
        """Make the directory of the stage ``name``, if it is missing (see ``make_stage`` in kept.py)."""
        with self._writable():
            make_stage(self.root, self.root / name)
        return self.root / name

    def _open_lock(self, path: Path) -> BinaryIO:
        self.make_stage(path.parent.name)
        with self._writable():
            return open_lock(path)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            with full_disk_named(self.root, "the store", _FULL_HINT):
                yield
        except OSError as error:
            raise HostLacksError(
                f"the store {self.root} cannot be written: {error.strerror}",
                hint="set QUICKSTART_CACHE to a directory of yours",
            ) from error


class _Look:
    """The state of a requested entry. ``damage`` says what is wrong with the entry, or is empty. ``trusted`` is the
    entry's tree hash if this hash was already computed, or empty.
    """

    def __init__(self, final: Path) -> None:
        self.damage = ""
        self.trusted = ""
        self.waited = False
        self._final = final
        self._seen: tuple[int, int] | None = None

    def is_whole(self) -> bool:
        """Whether the entry exists and is undamaged. A damaged entry is read again only after it has changed. The
        caller must hold a shared lock on the entry.
        """
        if self.has_changed() or not self.damage:
            self._seen = self._identity()
            try:
                self.trusted, self.damage = _verified(self._final, self.trusted), ""
            except _DamagedError as error:
                self.trusted, self.damage = "", str(error)
        return self.trusted != ""

    def has_changed(self) -> bool:
        """Whether the entry was removed or replaced after the last call of ``is_whole``."""
        return self._identity() != self._seen

    def _identity(self) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            status = self._final.lstat()
            # The rename to its final name is in its ctime.
            return status.st_ino, status.st_ctime_ns
        return None


def _verified(final: Path, trusted: str) -> str:
    """The tree hash of the entry ``final``, or "" if there is no such entry. If the hash recorded in the entry is
    ``trusted``, the entry's files are not read again. Raises _DamagedError when the entry is damaged.
    """
    if not os.path.lexists(final):
        return ""
    try:
        document = document_of(final / MARK)
        remembered = str(document["tree_hash"])
        key = key_of(document["stage"], document["inputs"])
    except FileNotFoundError:
        raise _DamagedError(f"it has no {MARK}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _DamagedError(f"its {MARK} cannot be read") from error
    if key != final.name:
        raise _DamagedError(f"its {MARK} is another entry's")
    if trusted and remembered == trusted:
        return trusted
    try:
        found = tree_hash(final, without=MARK)
    except OSError as error:
        raise _DamagedError(f"it cannot be read: {error.strerror}") from error
    if found != remembered:
        raise _DamagedError("its files are not what was made")
    return found
