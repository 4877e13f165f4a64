"""Install the package quickstart-guest into a reference image. In an image that we make, dpkg installs the package.
Into a user's own root file system (`--rootfs`), we install the package without dpkg.

The programs of a user's own root file system never run as root on this host. So we write the package's files and dpkg's
database ourselves, byte for byte as `dpkg -i` does. The test tests/contract/test_guest_package.py compares our files
with those that `dpkg -i` writes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError
from quickstart.host import inroot
from quickstart.host.files import remove_tree
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import IMAGE_TIME_S
from quickstart.reference.guestpkg.package import (
    NAME,
    GuestPackage,
    PackageFile,
    control_files,
    deb,
    guest_package,
    md5,
)
from quickstart.store.store import source_digest

# The .deb is in the root of the image while the image is made.
DEB = f"{NAME}.deb"
INSTALL = ("dpkg", "--install", f"/{DEB}")
_DATABASE = PurePosixPath("/var/lib/dpkg")
# The files that the package leaves in a machine. In a user's own root, they come from another build.
_STAMP = ".quickstart"
# dpkg's status file for thousands of packages has a few MiB; Debian has some 65 000 packages.
_TEXT_BYTES = 16 << 20
# Debian's own have some dozen lines.
_MOST_TRIGGERS = 10_000
_PACKAGE = re.compile(r"^Package:(.*)$", re.MULTILINE)
_MOST_STANZAS = 100_000
_STATE = PurePosixPath("/var/lib/quickstart")


def inputs(wanted: bool) -> Mapping[str, object]:
    """The inputs of a reference image that come from the package quickstart-guest. The result is empty when ``wanted``
    is false.
    """
    return {"guest_package": source_digest("quickstart.reference.guestpkg")} if wanted else {}


@contextmanager
def deb_in(tree: Path) -> Iterator[None]:
    """Put the .deb into the image, where the command INSTALL finds it. The .deb is removed when the context ends."""
    inroot.write(tree, DEB, deb(guest_package()))
    try:
        yield
    finally:
        inroot.remove(tree, DEB)


def forget_build(tree: Path) -> None:
    """Remove the files that the guest package has left in the root file system ``tree``. Such files exist if the root
    file system comes from a machine of another build. These files are records (lists of facts about the packed files)
    and the stamp (the link /.quickstart). Raises BadInputError when there is a directory at the path of the stamp.
    """
    stamp = tree / _STAMP
    if stamp.is_dir() and not stamp.is_symlink():
        raise BadInputError(
            f"/{_STAMP} is a directory; {NAME} stamps a file of that name", hint="rename it there"
        )
    stamp.unlink(missing_ok=True)
    state = ImageRoot(tree).host(_STATE)
    holder = ImageRoot(tree).resolve(_STATE.parent).canonical
    if holder == _STATE.parent and state.is_dir() and not state.is_symlink():
        with _times_of(state.parent):
            remove_tree(state)


def place(tree: Path) -> bool:
    """Install the package into a user's own root file system without running any program of this file system. Return
    False when the file system has no dpkg database.

    Raises BadInputError, with the path, when the root file system has a file where the package has a directory, or a
    directory where the package has a file.
    """
    root = ImageRoot(tree)
    database = root.resolve(_DATABASE).canonical
    if database is None or root.resolve(_DATABASE / "status").canonical is None:
        return False
    package = guest_package()
    for file in package.files:
        _write(root, file)
    info = {f"{NAME}.{name}": each for name, each in control_files(package).items()}
    info[f"{NAME}.list"] = (_listing(package), 0o644)
    for name, (data, mode) in info.items():
        _write(root, PackageFile(_DATABASE / "info" / name, data, mode))
    _change(root, _DATABASE / "status", lambda text: _with_stanza(text, package))
    _change(root, _DATABASE / "triggers/File", lambda text: _with_triggers(text, package))
    return True


def _listing(package: GuestPackage) -> bytes:
    directories = (str(path) for path in package.directories)
    names = ("/." if path == "/" else path for path in directories)
    return "".join(f"{path}\n" for path in (*names, *(str(file.path) for file in package.files))).encode()


def _with_stanza(status: str, package: GuestPackage) -> str:
    """The text ``status`` of dpkg's status file, with a stanza for ``package``. The new stanza comes before the first
    stanza whose package has a later name, because dpkg also sorts the stanzas by package.
    """
    fields = dict(package.fields)
    description = fields.pop("Description")
    conffiles = "".join(f"\n {file.path} {md5(file.data)}" for file in package.conffiles)
    rows = {"Package": fields.pop("Package"), "Status": "install ok installed", **fields}
    rows |= {"Conffiles": conffiles, "Description": description}
    ours = "".join(
        f"{name}:{'' if value.startswith(chr(10)) else ' '}{value}\n" for name, value in rows.items()
    )
    others = [each.rstrip("\n") + "\n" for each in stanzas(status) if _name_of(each) != NAME]
    after = sum(1 for each in others if _name_of(each) < NAME)
    return "".join(f"{each}\n" for each in (*others[:after], ours, *others[after:]))


def stanzas(status: str) -> tuple[str, ...]:
    """The stanzas of dpkg's status file, one for each package. Raises BadInputError when the file has more stanzas than
    the limit _MOST_STANZAS. No distribution has as many packages, but an untrusted file may have millions of empty
    stanzas.
    """
    if status.count("\n\n") > _MOST_STANZAS:
        raise BadInputError(
            f"the image's {_DATABASE / 'status'} has more than {_MOST_STANZAS} packages",
            hint="is it dpkg's file? Correct it in the image",
        )
    return tuple(each for each in status.split("\n\n") if each.strip())


def _name_of(stanza: str) -> str:
    found = _PACKAGE.search(stanza)
    return found[1].strip() if found else ""


def _with_triggers(text: str, package: GuestPackage) -> str:
    """The text ``text`` of dpkg's triggers/File, with lines for the triggers of ``package``. Each line has a path and
    the package that dpkg informs of changes at this path. The order of the lines does not matter. Raises BadInputError
    for a text with more lines than packages can have.
    """
    if text.count("\n") > _MOST_TRIGGERS:
        raise BadInputError(
            f"the image's triggers/File of dpkg has more than {_MOST_TRIGGERS} lines",
            hint="reinstall dpkg in the image, or remove what has written this file",
        )
    others = [line for line in text.split("\n") if line and line.split()[1:2] != [f"{NAME}/noawait"]]
    ours = [f"{line.split()[1]} {NAME}/noawait" for line in package.triggers.splitlines()]
    return "".join(f"{line}\n" for line in (*others, *ours))


def text_of(root: ImageRoot, path: PurePosixPath) -> str:
    """The text of the file at ``path`` in the image. No component of ``path`` may be a link. Raises BadInputError
    for a file that is not regular or is too large.
    """
    status = root.host(path).lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _TEXT_BYTES:
        raise BadInputError(
            f"the image's {path} is not a plain file of at most {_TEXT_BYTES} bytes",
            hint="put the file itself there",
        )
    return root.read_text(path)


def _change(root: ImageRoot, path: PurePosixPath, change: Callable[[str], str]) -> None:
    canonical = root.resolve(path).canonical
    before = text_of(root, canonical) if canonical else ""
    mode = stat.S_IMODE(root.host(canonical).lstat().st_mode) if canonical else 0o644
    _write(root, PackageFile(canonical or path, change(before).encode("utf-8", "surrogateescape"), mode))


def _write(root: ImageRoot, file: PackageFile) -> None:
    """Write a file of the package into the image, at the file's guest path. The modification time of the file's
    directory does not change.
    """
    directory = _directory(root, file.path.parent)
    path = directory / file.path.name
    if path.is_dir() and not path.is_symlink():
        raise BadInputError(
            f"{file.path} is a directory; a file of {NAME} goes there", hint="--no-guest-package"
        )
    with _times_of(directory):
        # Following a link here could lead to a file of this host.
        path.unlink(missing_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)
        os.utime(path, (IMAGE_TIME_S, IMAGE_TIME_S))


def _directory(root: ImageRoot, path: PurePosixPath) -> Path:
    """The host path of the directory ``path`` in the image. If the directory is missing, the function makes it."""
    canonical = root.resolve(path).canonical
    if canonical is None:
        parent = _directory(root, path.parent)
        made = parent / path.name
        if made.is_symlink():
            raise BadInputError(f"{path} leads nowhere; {NAME} goes there", hint="--no-guest-package")
        with _times_of(parent):
            made.mkdir()
            made.chmod(0o755)
            os.utime(made, (IMAGE_TIME_S, IMAGE_TIME_S))
        return made
    host = root.host(canonical)
    if not host.is_dir():
        raise BadInputError(f"{path} is no directory; {NAME} goes there", hint="--no-guest-package")
    return host


@contextmanager
def _times_of(directory: Path) -> Iterator[None]:
    """Restore the access and modification times of a directory at the end of the context."""
    before = directory.stat()
    try:
        yield
    finally:
        os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
