"""Make the package quickstart-guest, as a data class and as the bytes of a .deb. The data class and the bytes depend
only on the files of QuickStart, not on the host or the date.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from quickstart import __version__
from quickstart.model import IMAGE_TIME_S

NAME = "quickstart-guest"
# Packages put here what an application may map or execute. dpkg's file triggers compare paths as packages spell them.
WATCHED = (
    "/bin",
    "/etc/alternatives",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/sbin",
    "/usr/bin",
    "/usr/games",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/libx32",
    "/usr/local",
    "/usr/sbin",
)
_SCRIPTS = {
    "/etc/kernel/postinst.d/zz-quickstart": "kernel-hook",
    "/usr/lib/systemd/system-shutdown/quickstart": "shutdown",
    "/usr/sbin/quickstart": "quickstart",
}
_MAINTAINER_SCRIPTS = ("postinst", "postrm", "prerm")
_DESCRIPTION = """\
fast start of this machine, seen from inside
 Tells whether the files that QuickStart starts from memory are as they were
 packed, stamps the root volume at shutdown so that the next boot need not
 compare them, and takes the packed copies away when a package changes one.
 `quickstart status` says how this boot started, and why.
"""
_COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: QuickStart

Files: *
Copyright: the QuickStart authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
"""
_AR_MAGIC = b"!<arch>\n"


@dataclass(frozen=True)
class PackageFile:
    """A file in the package, with its guest path."""

    path: PurePosixPath
    data: bytes
    mode: int


@dataclass(frozen=True)
class GuestPackage:
    """The contents of the package. ``fields`` are the fields of the package's control file (deb-control(5)) in dpkg's
    order. ``scripts`` are the contents of the maintainer scripts, by the scripts' names, such as `postinst`
    (deb-postinst(5)).
    """

    fields: Mapping[str, str]
    files: tuple[PackageFile, ...]
    scripts: Mapping[str, bytes]
    triggers: str

    @property
    def conffiles(self) -> tuple[PackageFile, ...]:
        return tuple(file for file in self.files if file.path.parts[1] == "etc")

    @property
    def directories(self) -> tuple[PurePosixPath, ...]:
        """The directories of the files. Each directory comes before the directories inside it."""
        return tuple(sorted({parent for file in self.files for parent in file.path.parents}))


def guest_package() -> GuestPackage:
    """The package quickstart-guest of this version of QuickStart."""
    place = resources.files("quickstart.reference.guestpkg")
    scripts = place.joinpath("scripts")
    files = [
        PackageFile(PurePosixPath(place), scripts.joinpath(name).read_bytes(), 0o755)
        for place, name in _SCRIPTS.items()
    ]
    files.append(PackageFile(PurePosixPath(f"/usr/share/doc/{NAME}/copyright"), _COPYRIGHT.encode(), 0o644))
    fields = {
        "Package": NAME,
        "Priority": "optional",
        "Section": "admin",
        "Installed-Size": str(_installed_kib(files)),
        "Maintainer": "QuickStart <quickstart@localhost>",
        "Architecture": "all",
        "Version": __version__,
        "Description": _DESCRIPTION.rstrip("\n"),
    }
    return GuestPackage(
        fields,
        tuple(files),
        {name: scripts.joinpath(name).read_bytes() for name in _MAINTAINER_SCRIPTS},
        "".join(f"interest-noawait {path}\n" for path in WATCHED),
    )


def _installed_kib(files: list[PackageFile]) -> int:
    """The value of Installed-Size in KiB, as deb-substvars(5) and dpkg-gencontrol define it. The size of a file is
    rounded up to 1 KiB, and a directory counts as 1 KiB.
    """
    directories = {parent for file in files for parent in file.path.parents} - {PurePosixPath("/")}
    return len(directories) + sum(-(-len(file.data) // 1024) for file in files)


def md5sums(package: GuestPackage) -> str:
    """The text of the package's file md5sums, which lists every file that is not a configuration file, sorted
    by path.
    """
    kept = (file for file in package.files if file not in package.conffiles)
    return "".join(f"{md5(file.data)}  {str(file.path)[1:]}\n" for file in kept)


def md5(data: bytes) -> str:
    """The MD5 of a file, as in dpkg's database. No check against an attacker relies on this hash."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def control_files(package: GuestPackage) -> Mapping[str, tuple[bytes, int]]:
    """The members of the package's control.tar except `control`. The result maps the name of each member to (content,
    mode).
    """
    return {
        "conffiles": ("".join(f"{file.path}\n" for file in package.conffiles).encode(), 0o644),
        "md5sums": (md5sums(package).encode(), 0o644),
        **{name: (data, 0o755) for name, data in package.scripts.items()},
        "triggers": (package.triggers.encode(), 0o644),
    }


def deb(package: GuestPackage) -> bytes:
    """The package in the format deb(5). The package's members are not compressed, so the bytes do not depend on
    the version of a compression library.
    """
    control = "".join(f"{name}: {value}\n" for name, value in package.fields.items())
    members = {"control": (control.encode(), 0o644), **control_files(package)}
    control_tar = _tar([(".", None, 0o755), *((f"./{name}", *each) for name, each in members.items())])
    rows: list[tuple[str, bytes | None, int]] = [(f".{path}", None, 0o755) for path in package.directories]
    rows += [(f".{file.path}", file.data, file.mode) for file in package.files]
    return _ar({"debian-binary": b"2.0\n", "control.tar": control_tar, "data.tar": _tar(rows)})


def _tar(rows: list[tuple[str, bytes | None, int]]) -> bytes:
    """A tar archive in the format ustar. Each of ``rows`` is a member as (name, content, mode), and the content of a
    directory is None. All members belong to root and have the time IMAGE_TIME_S.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data, mode in rows:
            info = tarfile.TarInfo(name)
            info.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
            info.size, info.mode, info.mtime = len(data or b""), mode, IMAGE_TIME_S
            info.uname = info.gname = "root"
            archive.addfile(info, io.BytesIO(data or b""))
    return stream.getvalue()


def _ar(members: Mapping[str, bytes]) -> bytes:
    """An ar(5) archive in the form that deb(5) requires. Its members have names of up to 16 bytes and begin at even
    offsets.
    """
    parts = [_AR_MAGIC]
    for name, data in members.items():
        parts.append(f"{name:<16}{IMAGE_TIME_S:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)
