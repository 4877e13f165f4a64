"""What init compares on a volume before an early start: the packed files, and the directories above them."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import content_sums
from tests.contract.firstbox import said

_APPLETS = [
    "cat",
    "xargs",
    "stat",
    "cmp",
    "diff",
    "sed",
    "head",
    "sort",
    "rm",
    "readlink",
    "tr",
    "find",
    "sha256sum",
]


def packed_machine(place: Path) -> None:
    """A volume in newroot, with init's lists of it in q."""
    wants = (
        "newroot/etc/systemd/system/a.target.wants",
        "newroot/etc/systemd/system/multi-user.target.wants",
    )
    for name in (
        *wants,
        "newroot/usr/lib/systemd/system",
        "newroot/lib/modules/1",
        "proc/sys/kernel",
        "run",
        "q",
    ):
        (place / name).mkdir(parents=True)
    (place / "newroot/usr/lib/a.so").write_text("")
    (place / "newroot/usr/sbin").mkdir()
    (place / "newroot/usr/sbin/init").symlink_to("/lib/systemd/systemd")
    (place / "newroot/etc/machine-id").write_text("")
    (place / "newroot/usr/lib/systemd/system/wall.service").write_text("[Unit]\nBefore=network.target\n")
    (place / wants[0] / "known.service").symlink_to("/x")
    (place / "proc/sys/kernel/osrelease").write_text("1\n")
    (place / "q/packed.names").write_bytes(b"usr/lib/a.so\0usr/local/lib/a.so\0")
    (place / "q/packed.places").write_bytes(b"")
    (place / "q/packed.units").write_bytes(b"a.target.wants/known.service\n")
    for name in ("early-units", "settings-files"):
        script = resources.files("quickstart.initramfs").joinpath("init", name)
        (place / "q" / name).write_bytes(script.read_bytes())
    # A package's kernel settings.
    (place / "newroot/usr/lib/sysctl.d").mkdir()
    (place / "newroot/usr/lib/sysctl.d/a.conf").write_text("a.b=1\n")
    (place / "q/packed.settings").write_bytes(content_sums(ImageRoot(place / "newroot"), ()))
    (place / "q/busybox").symlink_to("/busybox")
    (place / "q/packed.parents").write_bytes(b"usr\0usr/lib\0usr/local\0usr/local/lib\0")
    (place / "q/packed.ways").write_bytes(b".\0usr\0usr/lib\0")
    row = "cd newroot; stat -c '%f %s %Y %Z %n' usr/lib/a.so; stat -c '%f %u %g 0 %n' . usr usr/lib"
    rows = subprocess.run(["sh", "-c", row], cwd=place, check=True, capture_output=True, timeout=60)
    (place / "q/packed.stat").write_bytes(rows.stdout)
    (place / "bin").mkdir()
    for name in _APPLETS:
        (place / "bin" / name).symlink_to("/busybox")


@pytest.mark.parametrize(
    ("change", "stale"),
    [
        ("", ""),
        # Its own times change with its entries; that is nothing.
        ("touch newroot/usr/lib/other", ""),
        ("chmod 700 newroot/usr/lib", "/usr/lib is not as it was packed"),
        ("chown 1 newroot/usr", "/usr is not as it was packed"),
        ("chgrp 1 newroot/usr", "/usr is not as it was packed"),
        ("chmod 711 newroot", "/. is not as it was packed"),
        # Enabled since: what waits for its turn, and what may come before the application.
        ("ln -s /x newroot/etc/systemd/system/multi-user.target.wants/daemon.service", ""),
        ("rm newroot/etc/systemd/system/a.target.wants/known.service", ""),
        (
            "ln -s /x newroot/etc/systemd/system/multi-user.target.wants/wall.service",
            "/etc/systemd/system/multi-user.target.wants/wall.service is not as it was packed",
        ),
        # To init, whose root is another one, such a link leads nowhere.
        (
            "mkdir -p newroot/srv/l/lib; ln -s /srv/l newroot/usr/local; touch newroot/srv/l/lib/a.so",
            "/usr/local is not as it was packed",
        ),
        ("mkdir -p newroot/usr/local/lib", ""),
        ("echo a.b=1 >newroot/usr/lib/sysctl.d/b.conf", "/usr/lib/sysctl.d/b.conf is not as it was packed"),
        ("echo a.b=2 >newroot/usr/lib/sysctl.d/a.conf", "/usr/lib/sysctl.d/a.conf is not as it was packed"),
        ("touch -d 2001-01-01 newroot/usr/lib/sysctl.d/a.conf", ""),
        # hwclock(8) writes the file, too.
        ("printf '1.5 1795699295 0.0\\n1795699295\\nUTC\\n' >newroot/etc/adjtime", ""),
        ("printf '0.0 0 0.0\\n0\\nLOCAL\\n' >newroot/etc/adjtime", "/etc/adjtime is not as it was packed"),
        ("printf '0.0 0 0.0\\n0\\nLOCAL' >newroot/etc/adjtime", "/etc/adjtime is not as it was packed"),
        ("printf '0.0 0 0\\r0\\rLOCAL\\r' >newroot/etc/adjtime", "/etc/adjtime is not as it was packed"),
        ("printf '0.0 0 0.0\\n0\\nUTC\\nLOCAL\\n' >newroot/etc/adjtime", ""),
        ("ln -s /var/lib/adjtime newroot/etc/adjtime", "/etc/adjtime is not as it was packed"),
        ("mkfifo newroot/etc/adjtime", ""),
        ("ln -sf ../lib/systemd/systemd newroot/usr/sbin/init", ""),
        ("ln -sf finit newroot/usr/sbin/init", "/sbin/init is not as it was packed"),
        ("rm newroot/usr/sbin/init; touch newroot/usr/sbin/init", "/sbin/init is not as it was packed"),
    ],
)
def test_who_may_come_to_what_is_packed(tmp_path: Path, change: str, stale: str) -> None:
    """/fast is open to all; on the volume a directory above the file may have been closed since."""
    packed_machine(tmp_path)
    subprocess.run(["sh", "-c", change], cwd=tmp_path, check=True, timeout=60)
    facts = "Q=/q BUILD=b BUILD_MOUNTS=1 BUILD_WTIME=1 SB_MOUNTS=2 SB_WTIME=2 STALE="
    assert said(tmp_path, f'note() {{ :; }}; {facts}; still_as_packed; echo "$STALE"') == stale
