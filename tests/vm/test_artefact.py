"""What OUT must contain, and what it must not."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from quickstart.image.kerneloptions import words_of
from quickstart.initramfs.newc_reader import CpioMember, read_archive
from quickstart.model.words import KernelOptions
from tests.vm.conftest import BUILD_S, host, quickstart

# Of the agent's own text: what its program and the hooks that start it say.
AGENT_MARKS = (b"org.quickstart.agent", b"quickstart-probe", b"/launch/agent")


@pytest.fixture(scope="module")
def members(artefact: Path) -> dict[str, CpioMember]:
    with (artefact / "initramfs.img").open("rb") as stream:
        return {member.name: member for member in read_archive(stream)}


def test_built_again_the_initramfs_has_the_same_bytes(artefact: Path, tmp_path: Path) -> None:
    again = quickstart("build", "--profile", "nginx", "-o", tmp_path / "again", "--json", timeout_s=BUILD_S)
    assert again.result["made"]
    # As every build by default, it was booted on trial.
    assert again.result["trial"]["fallback"] == ""
    assert min(again.result["trial"]["early_ns"], again.result["trial"]["stock_ns"]) > 0
    assert (tmp_path / "again/initramfs.img").read_bytes() == (artefact / "initramfs.img").read_bytes()


def test_a_build_with_nothing_changed_does_nothing(artefact: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in artefact.iterdir()}
    called = quickstart("build", "--no-trial", "--profile", "nginx", "-o", artefact, "--json")
    assert called.result["made"] is False
    assert {path.name: path.stat().st_mtime_ns for path in artefact.iterdir()} == before


@pytest.mark.parametrize(
    "name", ["initramfs.img", "initrd.img", "vmlinuz", "root.raw", "manifest.json", "run.sh"]
)
def test_out_holds_no_prober_and_no_shell_beacon(artefact: Path, name: str) -> None:
    for mark in AGENT_MARKS:
        found = host("sh", "-c", f"grep -c -a -F '{mark.decode()}' '{artefact / name}' || true").strip()
        # Our init names the directory of hooks that a launch may append; nothing else of it is there.
        assert found == "0", f"{name} holds {mark!r}"


def test_the_archive_holds_no_secret(members: dict[str, CpioMember]) -> None:
    names = set(members)
    assert not {name for name in names if "shadow" in name or "ssh_host" in name or "/ssl/private" in name}
    for member in members.values():
        assert b"PRIVATE KEY-----" not in member.data, member.name
        assert b"$y$" not in member.data or "lib" in member.name, member.name


def test_the_root_disk_has_no_host_keys_and_no_identity(artefact: Path) -> None:
    listing = host("debugfs", "-R", "ls /etc/ssh", artefact / "root.raw")
    assert "sshd_config" in listing
    assert "ssh_host" not in listing
    assert host("debugfs", "-R", "cat /etc/machine-id", artefact / "root.raw") == ""


def test_the_archive_is_root_owned_timeless_and_without_setuid(members: dict[str, CpioMember]) -> None:
    for member in members.values():
        assert (member.uid, member.gid, member.mtime) == (0, 0, 0), member.name
        assert not member.mode & (stat.S_ISUID | stat.S_ISGID), member.name


def test_a_link_leads_out_of_fast_only_to_a_file_that_stays_on_the_volume(
    artefact: Path, members: dict[str, CpioMember]
) -> None:
    document = json.loads((artefact / "start-set.json").read_text())
    left = {file["path"] for file in document["files"] if file["kind"] == "left"}
    assert "/etc/nginx/nginx.conf" in left
    for name, member in members.items():
        if stat.S_ISLNK(member.mode) and name.startswith("fast/"):
            target = member.data.decode()
            if name.removeprefix("fast") in left:
                assert target == name.removeprefix("fast")
                continue
            assert not target.startswith("/"), (name, target)
            depth = len(Path(name).parent.parts) - 1
            assert target.split("/").count("..") <= depth, (name, target)


def test_every_file_says_why_it_is_in_the_start_set(artefact: Path) -> None:
    document = json.loads((artefact / "start-set.json").read_text())
    files = {file["path"]: file for file in document["files"]}
    assert all(file["reasons"] for file in files.values())
    assert any(reason.startswith("trace: exec by nginx") for reason in files["/usr/sbin/nginx"]["reasons"])
    libcrypto = files["/usr/lib/x86_64-linux-gnu/libcrypto.so.3"]["reasons"]
    assert {reason.split(":")[0] for reason in libcrypto} >= {"elf", "ldd", "trace"}
    assert {"path": "/var/www/html/index.nginx-debian.html", "rule": "data: /var/**"} in document["excluded"]


def test_modes_of_out_keep_the_disk_to_its_owner(artefact: Path) -> None:
    """The disk holds /etc/shadow: nobody but its owner may read it."""
    assert stat.S_IMODE((artefact / "root.raw").stat().st_mode) == 0o600


def test_the_audit_of_a_built_artefact_is_clean(artefact: Path) -> None:
    called = quickstart("audit", artefact, "--json")
    assert called.status == 0
    assert (called.result["clean"], called.result["errors"], called.result["findings"]) == (True, 0, [])
    assert tuple(called.result["kernel_options"]) == words_of(KernelOptions.BOOT)


def test_the_audit_finds_what_was_changed_in_an_artefact(used: Path) -> None:
    (used / "run.sh").chmod(0o777)
    (used / "root.raw").chmod(0o644)
    with (used / "vmlinuz").open("r+b") as kernel:
        kernel.seek(4096)
        kernel.write(b"another kernel")
    called = quickstart("audit", used, "--json")
    assert called.status == 1
    errors = {each["object"] for each in called.result["findings"] if each["severity"] == "error"}
    assert errors == {"run.sh", "root.raw", "vmlinuz"}


def test_the_audit_of_a_used_artefact_is_clean(used: Path) -> None:
    """What a guest logs of its launch (the prober's requests) is no agent left behind."""
    assert quickstart("run", used, "--check").status == 0
    assert quickstart("audit", used).status == 0
