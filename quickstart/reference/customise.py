"""Write the files that a new Debian root file system needs to boot as a machine. On other machines, an installer or a
cloud image provides these files.
"""

from __future__ import annotations

import os
from pathlib import Path

from quickstart.host import inroot
from quickstart.model import IMAGE_TIME_S

HOSTNAME = "debian"

# The names that systemd gives the first interface on QEMU (pc, q35), EC2 and Xen. ifupdown's udev helper does not support patterns
# in allow-hotplug, and a name that does not exist costs nothing.
_INTERFACE_NAMES = ("ens3", "ens4", "ens5", "enp0s2", "enp0s3", "enp1s0", "enX0", "eth0")


def interfaces() -> str:
    """The text of interfaces(5), which says that an Ethernet interface uses DHCP as soon as the interface appears.
    Debian's installer writes a configuration of this kind, too.
    """
    stanzas = "".join(f"\nallow-hotplug {name}\niface {name} inet dhcp\n" for name in _INTERFACE_NAMES)
    return f"source /etc/network/interfaces.d/*\n\nauto lo\niface lo inet loopback\n{stanzas}"


# Host keys belong to a machine, not to an image, so the first start of sshd makes them.
_HOST_KEYS = """\
[Service]
ExecStartPre=
ExecStartPre=/bin/sh -c 'test -e /etc/ssh/ssh_host_ed25519_key || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
ExecStartPre=/usr/sbin/sshd -t
"""

_POLICY = "#!/bin/sh\n# no service starts while the image is made (invoke-rc.d(8))\nexit 101\n"


def write(tree: Path, name: str, text: str, mode: int = 0o644) -> None:
    """Write the file ``name`` of the image ``tree``, and make the file's directory if it is missing. The umask of this
    process does not affect the modes of the file and the directory.
    """
    inroot.write(tree, name, text.encode(), mode)


def begin(tree: Path, source_lines: tuple[str, ...]) -> None:
    """Prepare the image ``tree`` for the installation of packages. The function ``end`` undoes these preparations,
    except that sources.list(5) stays in the image.
    """
    write(tree, "usr/sbin/policy-rc.d", _POLICY, 0o755)
    inroot.write(tree, "etc/resolv.conf", Path("/etc/resolv.conf").read_bytes())
    if source_lines:
        write(tree, "etc/apt/sources.list", "".join(f"{line}\n" for line in source_lines))
    write(tree, "etc/fstab", fstab("00000000-0000-0000-0000-000000000000"))


def configure(tree: Path) -> None:
    """Write the configuration that is the same in every image: host name, network and ssh. Also make the directory
    /fast.
    """
    write(tree, "etc/hostname", f"{HOSTNAME}\n")
    write(tree, "etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{HOSTNAME}\n::1\tlocalhost ip6-localhost\n")
    write(tree, "etc/network/interfaces", interfaces())
    write(tree, "etc/systemd/system/ssh.service.d/host-keys.conf", _HOST_KEYS)
    inroot.make_directory(tree, "fast")


def end(tree: Path, root_uuid: str) -> None:
    """Write the final fstab(5). Remove the traces of how the image was made: caches, logs, keys, the machine's
    identity, and settings of this host.
    """
    write(tree, "etc/fstab", fstab(root_uuid))
    for name in ("usr/sbin/policy-rc.d", "etc/resolv.conf"):
        inroot.remove(tree, name)
    write(tree, "etc/resolv.conf", "")
    write(tree, "etc/machine-id", "")
    inroot.remove(tree, "var/lib/dbus/machine-id")
    for pattern in (
        "etc/ssh/ssh_host_*",
        "var/cache/apt/*.bin",
        "var/cache/apt/archives/*.deb",
        # ldconfig's cache contains inode numbers and times of this host. The next ldconfig writes the cache again.
        "var/cache/ldconfig/aux-cache",
        "var/cache/debconf/*-old",
        "var/lib/apt/lists/*",
        "var/lib/dpkg/*-old",
        "var/lib/systemd/random-seed",
        "var/log/*.log",
        "var/log/apt/*",
    ):
        inroot.remove_matching(tree, pattern)


def fix_times(tree: Path, since_s: float) -> None:
    """Set the times of all files that were written at or after ``since_s`` (in seconds since the epoch) to the fixed
    time IMAGE_TIME_S.

    A file of a package has the time that is recorded for the file in the package's archive. Without this function, the
    times of other files, and the dates of password changes in shadow(5), would depend on the day on which the image was
    made.
    """
    for name in ("etc/shadow", "etc/shadow-"):
        inroot.rewrite(tree, name, _with_fixed_day)
    for base, directories, files in os.walk(tree, topdown=False):
        for path in (f"{base}/{name}" for name in (*files, *directories)):
            # The kernel takes the times of files from a coarse clock, which is a little slow.
            if os.lstat(path).st_mtime >= int(since_s):
                os.utime(path, (IMAGE_TIME_S, IMAGE_TIME_S), follow_symlinks=False)


def _with_fixed_day(shadow: bytes) -> bytes:
    """The text ``shadow`` of shadow(5), but with the day of IMAGE_TIME_S as the date of each password's last
    change.
    """
    day = str(IMAGE_TIME_S // 86400).encode()
    rows = [line.split(b":") for line in shadow.splitlines()]
    # An empty field means no ageing, and 0 means that the password has to be changed. Neither is a date.
    return b"".join(
        b":".join((*row[:2], day, *row[3:]) if len(row) == 9 and row[2] not in (b"", b"0") else row) + b"\n"
        for row in rows
    )


def fstab(root_uuid: str) -> str:
    """The text of fstab(5) with the root volume, in the form that Debian's installer writes."""
    return f"UUID={root_uuid} / ext4 errors=remount-ro 0 1\n"
