"""The audit finds every fault that is planted in a file of a made-up artefact, and none in a good one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.artefact.audit import LAUNCH_MARKS, NOTE
from quickstart.initramfs.newc import (
    CpioEntry,
    char_device,
    directory,
    regular,
    symlink,
)
from tests.unit.audited import (
    KEY,
    OURS,
    PART_A,
    TAIL,
    artefact,
    audit,
    the_error,
)


def test_a_whole_artefact_is_clean(tmp_path: Path) -> None:
    assert audit(artefact(tmp_path)) == ()


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (regular("fast/etc/shadow", b"", 0o644), "by its name a secret"),
        (
            regular("fast/etc/app.users", b"# users\nroot:$y$j9T$5dX9c1Qm$hjkl./abc:19000:\n", 0o644),
            "password hash",
        ),
        (regular("fast/etc/htp", b"joe:$apr1$a8b9c0d1$ABCDEFGHIJKLMNOPQRSTU/\n", 0o644), "password hash"),
        (regular("fast/etc/app.pem", b"text\n" + KEY, 0o644), "a private key"),
        (regular("fast/etc/big.pem", bytes(3 << 20) + b"\n" + KEY, 0o644), "a private key"),
        (regular("fast/etc/k", KEY.replace(b"RSA", b"OPENSSH"), 0o644), "a private key"),
        (
            regular("fast/etc/k.ppk", b"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n", 0o644),
            "PuTTY",
        ),
        (regular("fast/usr/suid", b"", 0o4755), "setuid"),
        (regular("fast/usr/sgid", b"", 0o2755), "setuid or setgid"),
        (regular("fast/usr/open", b"", 0o666), "everybody may write"),
        (directory("fast/usr/open", 0o777), "everybody may write"),
        (regular("fast/etc/private", b"", 0o640), "not everybody may read"),
        (replace(regular("fast/usr/theirs", b"", 0o644), uid=33), "belongs to 33:0"),
        (replace(regular("fast/usr/theirs", b"", 0o644), gid=4), "belongs to 0:4"),
        (symlink("fast/usr/out", "/usr/lib/x"), "leads out of /fast"),
        (symlink("fast/usr/out", "../../etc/passwd"), "leads out of /fast"),
        (symlink("fast/usr/out", "../../fast/../etc/passwd"), "leads out of /fast"),
        (symlink("fast/usr/out", "out"), "leads through too many links"),
        (regular("fast/usr/strace", b"", 0o755), "is a tracer"),
        (regular("fast/usr/tool", b"\0Usage: strace [-ACdffh\0", 0o755), "is a tracer"),
        (regular("fast/usr/agent", b"\0" + LAUNCH_MARKS[0], 0o755), "is the launch agent"),
        (regular("fast/usr/hook", LAUNCH_MARKS[1], 0o755), "is the launch agent, or starts it"),
    ],
)
def test_a_planted_file_is_found(tmp_path: Path, entry: CpioEntry, what: str) -> None:
    errors = [each for each in audit(artefact(tmp_path, entry)) if each.object == f"/{entry.name}"]
    assert what in the_error(tuple(errors)).what


@pytest.mark.parametrize(
    ("name", "mode", "count"), [("packed.own", 0o600, 0), ("packed.own", 0o640, 1), ("own", 0o600, 1)]
)
def test_what_only_root_may_read_is_of_known_names(tmp_path: Path, name: str, mode: int, count: int) -> None:
    found = audit(artefact(tmp_path, part_a=(*PART_A, regular(f"fast/quickstart/{name}", b"", mode))))
    assert len([each for each in found if "not everybody may read" in each.what]) == count


def test_a_file_below_a_closed_directory_is_found(tmp_path: Path) -> None:
    made = artefact(
        tmp_path, directory("fast/etc/closed", 0o700), regular("fast/etc/closed/token", b"", 0o644)
    )
    found = the_error(tuple(each for each in audit(made) if each.object == "/fast/etc/closed/token"))
    assert "below /fast/etc/closed: on the root volume not everybody may read it" in found.what


@pytest.mark.parametrize(
    "entry",
    [
        regular("fast/etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n", 0o644),
        regular(
            "fast/usr/lib.so", b"-----BEGIN RSA PRIVATE KEY-----\0PuTTY-User-Key-File-%d: \0$y$\0", 0o644
        ),
        directory("fast/usr/tmp", 0o1777),
        symlink("fast/usr/in", "/fast/etc"),
        symlink("fast/usr/in", "../lib64"),
    ],
)
def test_what_only_looks_like_a_fault(tmp_path: Path, entry: CpioEntry) -> None:
    assert audit(artefact(tmp_path, entry)) == ()


@pytest.mark.parametrize(
    "entry", [char_device("fast/usr/mem", 0o600, 1, 1), CpioEntry(name="fast/usr/fifo", mode=0o010600)]
)
def test_a_device_is_found(tmp_path: Path, entry: CpioEntry) -> None:
    found = audit(artefact(tmp_path, entry, listing=False))
    assert f"/{entry.name}" in {each.object for each in found if "is a device" in each.what}


def test_a_console_with_other_numbers_is_found(tmp_path: Path) -> None:
    part_a = tuple(replace(e, rdev_major=1) if e.name == "dev/console" else e for e in PART_A)
    assert "is a device (1:1)" in the_error(audit(artefact(tmp_path, part_a=part_a))).what


@pytest.mark.parametrize(
    "entry",
    [
        regular("fast/etc/key", KEY, 0o600),
        regular("fast/etc/shadow", b"root:$y$j9T$5dX9c1Qm$hjkl./abc:1:\n", 0o640),
    ],
)
def test_a_secret_that_the_profile_names_is_a_note(tmp_path: Path, entry: CpioEntry) -> None:
    found = audit(artefact(tmp_path, entry, secrets=(f"/{entry.name.removeprefix('fast/')}",)))
    assert {each.severity for each in found} == {NOTE}
    assert "the profile names it" in found[0].what


def test_an_archive_with_named_secrets_is_for_its_owner(tmp_path: Path) -> None:
    made = artefact(tmp_path, regular("fast/etc/key", KEY, 0o600), secrets=("/etc/key",))
    made.initramfs.chmod(0o644)
    assert the_error(audit(made)).object == "initramfs.img"


def test_an_agents_cpio_behind_the_archive(tmp_path: Path) -> None:
    made = artefact(tmp_path, tail=(*TAIL, directory("launch"), regular("launch/agent", b"", 0o755)))
    found = {each.object: each.what for each in audit(made)}
    assert "is of a launch" in found["/launch/agent"]
    assert "is to be the last file" in found[f"/{OURS}/part-b"]
