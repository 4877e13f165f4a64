"""Serve an image from a real NFS server behind an emulated network link. Only measurements by the host's clock use a
volume of this kind (docs/users/storage.md). The script nfs/serve.sh starts the server and the link.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from quickstart.errors import HostLacksError, MissingToolError, VolumeError
from quickstart.host import door, userns
from quickstart.host.identity import Identity, unprivileged
from quickstart.host.namespaces import own_namespaces
from quickstart.host.workspace import room_for_sockets, workspace
from quickstart.volume.nbd import Connection

TOOLS = ("ip", "tc", "unshare", "setpriv", "prlimit", "rpcbind", "ganesha.nfsd", "qemu-img", "qemu-nbd")
# QEMU and ganesha load these libraries on demand. They are no programs, so they cannot be found by PATH.
PLUGINS = ("qemu/block-nfs.so", "ganesha/libfsalvfs.so")
_LIMIT_S = 30.0
_POLL_S = 0.01
# A client may see the connection end a moment before we see the process end.
_DYING_S = 0.5
# Writes go to a qcow2 file. Beside the data, its tables may take this and 1/64 of the image's size.
_SLACK_BYTES = 64 << 20
_BACKLOG = 8
# These characters cannot be inside quotes in ganesha's configuration.
_UNQUOTABLE = '"\\\n'
_NO_HANDLES = (
    "the image has to be on a file system with file handles, as ext4, xfs or tmpfs; an overlay has none"
)
_CONFIGURATION = """
NFS_CORE_PARAM {{ Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; }}
NFSV4 {{ Graceless = true; RecoveryBackend = fs; }}
EXPORT {{
	Export_Id = 1;
	Path = "{directory}";
	Pseudo = "/export";
	Access_Type = RO;
	Squash = no_root_squash;
	SecType = sys;
	Transports = TCP;
	FSAL {{ Name = VFS; }}
}}
"""


@dataclass(frozen=True)
class NfsVolume:
    """A volume that runs until the ``with`` block of `exported` ends. All processes of the volume run in separate
    namespaces, and end when ``process`` ends.
    """

    process: door.Process
    socket: Path
    output_file: Path

    @property
    def uri(self) -> str:
        """The volume's address for QEMU."""
        return f"nbd+unix:///?socket={quote(str(self.socket))}"

    def is_running(self) -> bool:
        return not door.has_ended(self.process, 0)

    @property
    def last_words(self) -> str:
        """The messages of the volume's processes, including the NFS server. When there are no messages, the
        text says how ``process`` ended.
        """
        return door.log_tail(self.output_file) or door.bad_end(self.process)


@contextmanager
def exported(image: Path, rate: str | None) -> Iterator[NfsVolume]:
    """Serve ``image`` from an NFS server behind a link whose rate is ``rate``, in the notation of tc(8)
    (``100mbit``). If ``rate`` is None, the link is as fast as the host.

    NBD clients read and write the image through the volume's UNIX ``socket``, from any network namespace.
    Their writes do not reach the NFS server, and are discarded. The NBD server, which is the client of the NFS
    server, does not cache what it has read.

    Raises NeedsRootError when we are not root, MissingToolError when a tool is missing, and VolumeError when the
    volume does not start, or ends before the context ends.
    """
    userns.need_host_root("an NFS server, which opens files by their handles,")
    need_nfs()
    image = image.resolve()
    if any(letter in str(image.parent) for letter in _UNQUOTABLE):
        raise VolumeError(f"an NFS server cannot be told of {image.parent}")
    with workspace("quickstart-nfs-") as place, _started(place, image, rate) as volume:
        _wait(volume)
        try:
            yield volume
        except HostLacksError:
            raise
        except Exception as error:
            if door.has_ended(volume.process, _DYING_S):
                raise VolumeError("the NFS volume ended", last_words=volume.last_words) from error
            raise
        if not volume.is_running():
            raise VolumeError("the NFS volume ended", last_words=volume.last_words)


@contextmanager
def _started(place: Path, image: Path, rate: str | None) -> Iterator[NfsVolume]:
    """Start the volume, whose files are in our temporary directory ``place``. The volume's NBD server gets its
    listening socket as a descriptor.
    """
    with ExitStack() as stack:
        listening = stack.enter_context(room_for_sockets(place)) / "socket"
        identity = stack.enter_context(unprivileged())
        script = stack.enter_context(
            resources.as_file(resources.files("quickstart.volume").joinpath("nfs/serve.sh"))
        )
        (place / "ganesha.conf").write_text(_CONFIGURATION.format(directory=image.parent))
        (place / "written").mkdir(mode=0o700)
        if identity.uid is not None and identity.gid is not None:
            os.chown(place / "written", identity.uid, identity.gid)
        words = ("client", str(place), quote(image.name), rate or "none", *_confined(identity, image))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(listening))
            listener.listen(_BACKLOG)
            started = door.background(
                [*own_namespaces(network=True), "sh", script, *words],
                log=place / "output",
                stdin=listener.fileno(),
            )
            process = stack.enter_context(started)
        yield NfsVolume(process, listening, place / "output")


def _confined(identity: Identity, image: Path) -> tuple[str, ...]:
    """The words to put before the NBD server's argv. With these words, the server runs as a separate user without
    privileges, and cannot fill the disk.
    """
    size_bytes = image.stat().st_size if image.exists() else 0
    largest = size_bytes + size_bytes // 64 + _SLACK_BYTES
    limits = ("prlimit", f"--fsize={largest}", door.core_limit(), "--")
    return ("setpriv", *door.identity_words(identity), "--", *limits)


def need_nfs() -> None:
    """Raise MissingToolError for the first tool or library that `exported` needs and this host does not have."""
    door.need_tools(*TOOLS)
    for plugin in PLUGINS:
        name = plugin.rpartition("/")[2]
        if not any(Path("/usr/lib").glob(f"*/{plugin}")):
            raise MissingToolError(name, door.package_of(name))


def nfs_server() -> str:
    """The version of the host's NFS server, as the server prints it. Raises MissingToolError when the host lacks a tool
    or library that an NFS volume needs.
    """
    need_nfs()
    said = door.run(["ganesha.nfsd", "-v"], timeout_s=_LIMIT_S).stdout.decode(errors="replace")
    return said.partition("\n")[0].strip()


def _wait(volume: NfsVolume) -> None:
    """Wait until the volume answers. Raises VolumeError when the volume ends or does not answer in time."""
    end_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            # The socket exists a moment before the server listens.
            with Connection(volume.socket, _LIMIT_S):
                return
        except VolumeError:
            if not volume.is_running() or time.monotonic() > end_s:
                said = volume.last_words
                hint = _NO_HANDLES if "MNT3ERR_ACCES" in said else None
                raise VolumeError("the NFS volume did not come up", last_words=said, hint=hint) from None
        time.sleep(_POLL_S)
