"""The audit of an artefact finds every fault that is planted in a made-up artefact, and none in a good one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quickstart.artefact import audit as auditing
from quickstart.artefact.audit import ERROR, LAUNCH_MARKS, MOST_FINDINGS, NOTE, Finding
from quickstart.artefact.audit.names import nearest_above
from quickstart.artefact.directory import load, run_script
from quickstart.artefact.manifest import read_manifest
from quickstart.cli.main import group
from quickstart.errors import ArtefactError
from quickstart.initramfs.digests import list_bytes
from quickstart.initramfs.digests import listed as digests_of
from quickstart.initramfs.newc import (
    CpioEntry,
    char_device,
    directory,
    hard_link,
    regular,
    symlink,
    write_archive,
)
from quickstart.inspect.globs import matches
from quickstart.model import Artefact
from tests.unit.hostile import bounded
from tests.unit.outs import change, facts, write_manifest

KEY = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n"
OURS = "fast/quickstart"
PART_A = (
    directory("dev"),
    directory("fast"),
    directory(OURS),
    directory(f"{OURS}/bin"),
    char_device("dev/console", 0o600, 5, 1),
    *(
        regular(f"{OURS}/{name}", b"x", 0o755)
        for name in ("busybox", "bin/starter", "bin/checker", "unit", "modules")
    ),
    regular("init", b"x", 0o755),
    regular(f"{OURS}/config", b"BUILD=b1\nIMAGE=''\nUNIT=app.service\n", 0o644),
)
HEAD = (
    directory("fast"),
    directory("fast/etc"),
    symlink("fast/lib64", "usr/lib64"),
    directory("fast/usr"),
    directory("fast/usr/lib64"),
    symlink("fast/usr/lib64/ld.so", "ld-linux-x86-64.so.2"),
    regular("fast/usr/lib64/ld-linux-x86-64.so.2", b"loader", 0o755),
    regular("fast/usr/app", b"program", 0o755),
)
TAIL = (directory(OURS), regular(f"{OURS}/part-b", b"b1\n", 0o644))


def listed(path: str, kind: str, size_bytes: int = 0) -> dict[str, Any]:
    return {"path": path, "kind": kind, "size_bytes": size_bytes, "target": "", "reasons": ["trace: x"]}


LISTED = (
    *(listed(path, "directory") for path in ("/etc", "/usr", "/usr/lib64")),
    listed("/lib64", "symlink", 9),
    listed("/usr/lib64/ld-linux-x86-64.so.2", "file", 6),
    listed("/usr/app", "file", 7),
)


def artefact(
    base: Path,
    *more: CpioEntry,
    part_a: tuple[CpioEntry, ...] = PART_A,
    head: tuple[CpioEntry, ...] = HEAD,
    tail: tuple[CpioEntry, ...] = TAIL,
    files: tuple[dict[str, Any], ...] = LISTED,
    secrets: tuple[str, ...] = (),
    listing: bool = True,
) -> Artefact:
    """A whole artefact with ``more`` packed files, which start-set.json lists too unless ``listing`` is False."""
    base.mkdir(exist_ok=True)
    base.chmod(0o755)
    with (base / "initramfs.img").open("wb") as stream:
        digests = regular(f"{OURS}/digests", list_bytes(digests_of((*head, *more, *tail))), 0o644)
        write_archive(
            stream, part_a if digests.name in {each.name for each in part_a} else (*part_a, digests)
        )
        write_archive(stream, (*head, *more, *tail))
    for name in ("vmlinuz", "initrd.img", "root.raw", "run.sh"):
        (base / name).write_bytes(name.encode())
        (base / name).chmod(0o755 if name == "run.sh" else 0o644)
    (base / "root.raw").chmod(0o600)
    (base / "initramfs.img").chmod(0o600 if secrets else 0o644)
    added = [listed(f"/{m.name.removeprefix('fast/')}", kind(m), len(bytes_of(m))) for m in more if listing]
    document = {"files": [*files, *added], "excluded": [{"path": "/var/data", "rule": "data: /var/**"}]}
    (base / "start-set.json").write_text(json.dumps(document))
    write_manifest(base, secrets=secrets)
    (base / "run.sh").write_text(run_script(read_manifest(base)))
    return load(base)


def bytes_of(entry: CpioEntry) -> bytes:
    assert isinstance(entry.data, bytes)
    return entry.data


def kind(entry: CpioEntry) -> str:
    return {0o100000: "file", 0o040000: "directory", 0o120000: "symlink"}.get(entry.mode & 0o170000, "file")


def audit(made: Artefact) -> tuple[Finding, ...]:
    found = auditing.audit(made)
    assert found.left_out == 0
    return found.first


def the_error(found: tuple[Finding, ...]) -> Finding:
    (error,) = (each for each in found if each.severity == ERROR)
    assert error.mend
    return error


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


EVIL = b"#!/bin/sh"


def raw_members(*named: tuple[str, int, bytes], begin: int) -> bytes:
    """Members as no writer of ours makes them, with any names, and with inodes from ``begin``."""
    made = bytearray()
    for inode, (name, mode, data) in enumerate(named, begin):
        raw = name.encode() + b"\0"
        numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        made += b"070701" + b"".join(b"%08X" % number for number in numbers) + raw
        made += bytes(-len(made) % 4) + data
        made += bytes(-len(made) % 4)
    return bytes(made)


def with_members(base: Path, *named: tuple[str, int, bytes]) -> dict[str, set[str]]:
    """What audit says of an artefact in whose part A these members are, too."""
    made = artefact(base)
    whole = made.initramfs.read_bytes()
    more = raw_members(*named, begin=len(PART_A) + 2)
    at = whole.index(b"TRAILER!!!") - 110
    made.initramfs.write_bytes(whole[:at] + more + whole[at:])
    found: dict[str, set[str]] = {}
    for each in audit(made):
        if each.severity == ERROR:
            found.setdefault(each.object, set()).add(each.what)
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("./init", "/init", "x/../init", ".//init", "init/", "init"),
        *("./launch/agent", "/launch/agent", "x/../launch/agent", "launch/agent", "x/../fast/usr/app"),
        *(".", "./.", "/", "//", "..", "../.."),
    ],
)
def test_a_name_in_another_spelling_or_place(tmp_path: Path, name: str) -> None:
    """The kernel resolves it, and writes over the first /init."""
    with pytest.raises(ArtefactError, match=r"the name .*, which quickstart does not write there"):
        with_members(tmp_path, (name, 0o100755, EVIL))


def test_a_member_below_a_link(tmp_path: Path) -> None:
    made = artefact(tmp_path, part_a=(*PART_A, symlink("way", "fast/usr")))
    found = {each.object for each in audit(made) if each.severity == ERROR}
    assert found == set()
    with pytest.raises(ArtefactError, match="the name way/app, which quickstart does not write there"):
        with_members(tmp_path / "below", ("way", 0o120777, b"fast/usr"), ("way/app", 0o100755, EVIL))


def test_part_b_writes_over_nothing_of_part_a(tmp_path: Path) -> None:
    """Also where the list of digests names it: that is the same author's."""
    evil = (regular(f"{OURS}/busybox", EVIL, 0o755), directory("bin"), regular("bin/sh", EVIL, 0o755))
    found = audit(artefact(tmp_path, tail=(TAIL[0], *evil, *TAIL[1:])))
    said = {(each.object, each.what) for each in found}
    assert (f"/{OURS}/busybox", "is in part A, and again in part B") in said
    assert ("/bin/sh", "is in part B, but not below /fast") in said


def test_names_of_thousands_of_components_take_little_time(tmp_path: Path) -> None:
    above = [directory("/".join("a" * depth), 0o700 if depth == 1900 else 0o755) for depth in range(1, 1901)]
    named = [regular(f"{above[-1].name}/{number:03}", b"", 0o644) for number in range(300)]
    made = artefact(tmp_path, part_a=(*PART_A, *above, *named))
    with bounded():
        found = [each.what for each in audit(made)]
    assert sum("not everybody may read it" in what for what in found) == 300


def test_the_nearest_directory_above() -> None:
    names = ["a", "a/b", "a/b/c", "a-b/c", "a.b", "ab/c", "z"]
    assert nearest_above(names, {"a", "a/b"}) == {"a/b": "a", "a/b/c": "a/b"}
    assert nearest_above(["a/b", "c"], {"", "a"}) == {"a": "", "a/b": "a", "c": ""}


def test_part_b_before_part_a(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    with made.initramfs.open("wb") as stream:
        write_archive(stream, (*HEAD, *TAIL))
        write_archive(stream, PART_A)
    found = {each.object: each.what for each in audit(made)}
    assert "behind the beginning of part B" in found["/init"]
    assert "in part A" in found["/fast/usr/app"]


@pytest.mark.parametrize("line", [b"IMAGE=ext4\n", b"IMAGE=squashfs\n", b"IMAGE=''\nIMAGE=ext4\n"])
def test_another_kind_of_part_b(tmp_path: Path, line: bytes) -> None:
    config = replace(PART_A[-1], data=b"BUILD=b1\n" + line)
    found = {each.object: each.what for each in audit(artefact(tmp_path, part_a=(*PART_A[:-1], config)))}
    assert found[f"/{OURS}/config"] == "names another kind of part B than there is"


@pytest.mark.parametrize(
    "image", [symlink(f"{OURS}/part-b.squashfs", "spare"), regular(f"{OURS}/part-b.ext4", b"x", 0o644)]
)
def test_what_init_would_mount_and_is_no_image(tmp_path: Path, image: CpioEntry) -> None:
    with pytest.raises(ArtefactError, match="which is no image of part B; no build makes it so"):
        audit(artefact(tmp_path, tail=(TAIL[0], image, TAIL[1])))


def test_part_b_of_another_build(tmp_path: Path) -> None:
    tail = (directory(OURS), regular(f"{OURS}/part-b", b"b2\n", 0o644))
    assert "names another build" in the_error(audit(artefact(tmp_path, tail=tail))).what


def test_part_b_without_its_marker(tmp_path: Path) -> None:
    assert the_error(audit(artefact(tmp_path, tail=()))).object == f"/{OURS}/part-b"


def with_digests(base: Path, *entries: CpioEntry) -> tuple[Finding, ...]:
    """The audit of a part B whose list of digests is of these entries."""
    listing = regular(f"{OURS}/digests", list_bytes(digests_of(entries)), 0o644)
    return audit(artefact(base, part_a=(*PART_A, listing)))


@pytest.mark.parametrize(
    "other",
    [
        regular("fast/usr/app", b"Program", 0o755),
        regular("fast/usr/app", b"program", 0o750),
        regular("fast/usr/app", b"program!", 0o755),
        replace(regular("fast/usr/app", b"program", 0o755), uid=1),
        symlink("fast/usr/app", "program"),
    ],
)
def test_a_file_that_is_not_what_the_list_of_digests_says(tmp_path: Path, other: CpioEntry) -> None:
    error = the_error(with_digests(tmp_path, *HEAD[:-1], other, *TAIL))
    assert (error.object, error.what) == ("/fast/usr/app", f"is not what /{OURS}/digests says")


def test_a_list_of_digests_of_other_files(tmp_path: Path) -> None:
    error = the_error(with_digests(tmp_path / "a", *HEAD[:-1], *TAIL))
    assert (error.object, error.what) == (
        "/fast/usr/app",
        f"/{OURS}/digests: is packed, but not listed there",
    )
    more = regular("fast/usr/more", b"", 0o644)
    error = the_error(with_digests(tmp_path / "b", *HEAD, more, *TAIL))
    assert (error.object, error.what) == (
        "/fast/usr/more",
        f"/{OURS}/digests: is listed there, but not packed",
    )


def test_a_file_with_two_names_is_what_the_list_says(tmp_path: Path) -> None:
    first = CpioEntry(name="fast/usr/one", mode=0o100755, data=b"program", names=2)
    other = hard_link("fast/usr/two", first)
    made = artefact(
        tmp_path,
        head=(*HEAD, first, other),
        files=(*LISTED, listed("/usr/one", "file", 7), listed("/usr/two", "file", 7)),
    )
    assert audit(made) == ()


def test_a_damaged_list_of_digests(tmp_path: Path) -> None:
    listing = regular(f"{OURS}/digests", b"QSPARTB3", 0o644)
    error = the_error(audit(artefact(tmp_path, part_a=(*PART_A, listing))))
    assert (error.object, error.what) == (f"/{OURS}/digests", "the list of digests of 8 bytes is damaged")


def test_a_packed_file_that_is_not_listed(tmp_path: Path) -> None:
    made = artefact(tmp_path, regular("fast/etc/extra", b"", 0o644), listing=False)
    assert "does not list it" in the_error(audit(made)).what


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (listed("/usr/none", "file"), "is not packed"),
        ({**listed("/etc/extra", "file", 5), "reasons": []}, "no reason"),
        (listed("/etc/extra", "symlink", 5), "listed as symlink and packed as file"),
        (listed("/etc/extra", "file", 6), "has 5 bytes, listed are 6"),
    ],
)
def test_a_start_set_that_says_otherwise(tmp_path: Path, file: dict[str, Any], what: str) -> None:
    extra = () if file["path"] == "/usr/none" else (regular("fast/etc/extra", b"extra", 0o644),)
    made = artefact(tmp_path, *extra, files=(*LISTED, file), listing=False)
    assert what in the_error(audit(made)).what


def test_an_excluded_file_that_is_packed(tmp_path: Path) -> None:
    more = (directory("fast/var"), regular("fast/var/data", b"", 0o644))
    assert "excluded by data: /var/**" in the_error(audit(artefact(tmp_path, *more))).what


@pytest.mark.parametrize("name", ["vmlinuz", "initrd.img"])
def test_a_changed_file_of_out(tmp_path: Path, name: str) -> None:
    made = artefact(tmp_path)
    (tmp_path / name).write_bytes(b"another")
    assert the_error(audit(made)) == Finding(
        ERROR, name, "its SHA-256 is not the manifest's", "build it again with --force"
    )


@pytest.mark.parametrize(
    ("name", "mode"), [("root.raw", 0o640), ("run.sh", 0o757), ("vmlinuz", 0o666), (".", 0o777)]
)
def test_modes_of_out(tmp_path: Path, name: str, mode: int) -> None:
    made = artefact(tmp_path / "out")
    (tmp_path / "out" / name).chmod(mode)
    assert the_error(audit(made)).object == name


def test_a_file_of_out_that_is_gone_and_one_that_is_strange(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    (tmp_path / "run.sh").unlink()
    (tmp_path / "notes.txt").write_text("")
    found = audit(made)
    assert [(each.severity, each.object) for each in found] == [(ERROR, "run.sh"), (NOTE, "notes.txt")]


def test_an_agent_behind_a_hole_of_the_root_disk(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    with (tmp_path / "root.raw").open("r+b") as disk:
        # Across the border of two blocks as they are read.
        disk.seek((64 << 20) + (4 << 20) - 9)
        disk.write(LAUNCH_MARKS[0])
    assert the_error(audit(made)).object == "root.raw"


def test_a_manifest_that_was_edited_for_an_attack_is_not_clean(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    change(tmp_path, lambda document: document["ready"].update(port="80,guestfwd=tcp:10.0.2.100:1-cmd:/x"))
    with pytest.raises(ArtefactError, match=r"ready\.port") as caught:
        audit(made)
    assert caught.value.exit_code == 2


def test_what_is_no_plain_file_is_named_and_not_opened(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "more").mkdir()
    found = {each.object: (each.severity, each.what) for each in audit(made)}
    assert found == {
        "link": (ERROR, "is a symbolic link, not a plain file"),
        "pipe": (ERROR, "is a pipe (FIFO), not a plain file"),
        "more": (ERROR, "is a directory, not a plain file"),
    }


def test_a_setuid_file_of_out(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    (tmp_path / "vmlinuz").chmod(0o4755)
    assert the_error(audit(made)).what == "mode 4755: setuid or setgid"


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("a; touch PWNED; #", "chmod ug-s -- 'a; touch PWNED; #'"),
        ("--reference=x", "chmod ug-s -- --reference=x"),
        ("a\n  b", "chmod ug-s"),
        ("`id`", "chmod ug-s"),
    ],
)
def test_the_command_for_a_file_of_a_hostile_name(tmp_path: Path, name: str, mend: str) -> None:
    made = artefact(tmp_path)
    (tmp_path / name).touch()
    (tmp_path / name).chmod(0o4755)
    assert the_error(audit(made)).mend == mend


@pytest.mark.parametrize(
    "edit", [lambda text: f"{text}\nid", lambda text: "", lambda text: text.replace("-nodefaults", "")]
)
def test_a_run_sh_of_another_author(tmp_path: Path, edit: Callable[[str], str]) -> None:
    """Also where the manifest has its digest: that is the same author's."""
    made = artefact(tmp_path)
    script = tmp_path / "run.sh"
    script.write_text(edit(script.read_text()))
    assert the_error(audit(made)).object == "run.sh"
    if script.read_bytes():
        change(tmp_path, lambda document: document["files"].update({"run.sh": facts(script)}))
    assert "is not what quickstart writes" in the_error(audit(made)).what


def test_a_word_for_the_kernel_that_no_build_puts_there(tmp_path: Path) -> None:
    artefact(tmp_path)
    stock = load(tmp_path).cmdline
    change(
        tmp_path, lambda document: document.update(cmdline=f"{stock} mitigations=off", stock_cmdline=stock)
    )
    (tmp_path / "run.sh").write_text(run_script(read_manifest(tmp_path)))
    (note,) = audit(load(tmp_path))
    assert (note.severity, note.object) == (NOTE, "manifest.json")
    assert "mitigations=off" in note.what


def test_a_run_sh_that_is_a_link(tmp_path: Path) -> None:
    made = artefact(tmp_path / "out")
    (tmp_path / "out/run.sh").rename(tmp_path / "run.sh")
    (tmp_path / "out/run.sh").symlink_to(tmp_path / "run.sh")
    assert {each.what for each in audit(made)} == {
        "is a symbolic link, not a plain file",
        "is not what quickstart writes for this manifest: it may do anything",
    }


MANY = 400
FAULTY = tuple(regular(f"fast/etc/{number:03}/.netrc", b"", 0o6777) for number in range(MANY))
FAULTS = (*(directory(each.name.rpartition("/")[0]) for each in FAULTY), *FAULTY)


@pytest.fixture
def faulty(tmp_path: Path) -> Artefact:
    """An OUT with a few faults for each of many files, and a note."""
    made = artefact(tmp_path, *FAULTS, listing=False)
    (tmp_path / "notes.txt").touch()
    return made


def test_the_first_findings_are_kept_and_all_are_counted(faulty: Artefact) -> None:
    found = auditing.audit(faulty)
    # Each file is a secret by its name, setuid, writable by everybody and not listed; each directory is not listed.
    assert (found.errors, found.notes) == (5 * MANY, 1)
    assert len(found.first) == MOST_FINDINGS
    assert {each.severity for each in found.first} == {ERROR}
    assert found.left_out == 5 * MANY + 1 - MOST_FINDINGS


def test_what_is_not_shown_is_said(faulty: Artefact) -> None:
    called = CliRunner().invoke(group, ["audit", str(faulty.directory)])
    assert called.exit_code == 1
    *lines, more, _, last = called.stdout.splitlines()
    assert len(lines) == 2 * MOST_FINDINGS
    assert more == f"and {5 * MANY + 1 - MOST_FINDINGS} more findings, which are not shown"
    assert last.endswith(f": {5 * MANY} errors, 1 notes")


def test_the_document_counts_what_it_leaves_out(faulty: Artefact) -> None:
    called = CliRunner().invoke(group, ["audit", str(faulty.directory), "--json"])
    assert called.exit_code == 1
    result = json.loads(called.stdout)["result"]
    assert (result["clean"], result["errors"], result["notes"]) == (False, 5 * MANY, 1)
    assert (len(result["findings"]), result["left_out"]) == (MOST_FINDINGS, 5 * MANY + 1 - MOST_FINDINGS)


def test_many_long_patterns_for_secrets_take_no_time(tmp_path: Path) -> None:
    """Each pattern is compared with each private file once, and reads its name once."""
    private = [regular(f"fast/etc/{'a' * 3800}{number:02}", b"", 0o600) for number in range(25)]
    globs = tuple(f"/**{'a*' * 20}{number:03}*" for number in range(100))
    made = artefact(tmp_path, *private, secrets=globs)
    with bounded(20):
        found = audit(made)
    named = {each.object for each in found if "not everybody may read it" in each.what}
    assert named == {f"/{each.name}" for each in private}


def test_a_file_is_compared_once_for_all_its_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def matched(path: str, glob: str) -> bool:
        asked.append(path)
        return matches(path, glob)

    monkeypatch.setattr("quickstart.artefact.audit.names.matches", matched)
    key = regular("fast/etc/.netrc", KEY, 0o600)
    found = audit(artefact(tmp_path, key, secrets=("/etc/.netrc",)))
    assert [each.severity for each in found] == [NOTE] * 3
    assert asked == ["/etc/.netrc"]


def test_more_files_than_can_be_compared_are_not_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("quickstart.artefact.audit.names._MOST_COMPARED", 20)
    keys = [regular(f"fast/etc/key{number}", b"", 0o600) for number in range(3)]
    found = audit(artefact(tmp_path, *keys, secrets=("/etc/**",)))
    severities = {each.object: each.severity for each in found}
    assert severities == {
        "/fast/etc/key0": NOTE,
        "/fast/etc/key1": NOTE,
        "/fast/etc/key2": ERROR,
        "manifest.json": ERROR,
    }
