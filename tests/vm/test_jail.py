"""A malicious guest: what its QEMU may do on the host, what its network reaches, how much it may say; and a malicious OUT."""

from __future__ import annotations

import io
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.guest import Exit, Output
from quickstart.launch import drain
from quickstart.launch.qemu import QemuGuest
from quickstart.store.store import Store, default_root
from tests.guests import launched
from tests.vm.booting import heard
from tests.vm.conftest import BOOT_S, STAY, quickstart

CHECKOUT = Path(__file__).parents[2]
HEAD_BYTES = 100_000
FLOOD_BYTES = 600_000
RSS_BYTES = 64 << 20
# Of a command's output in JSON, each stream.
KEPT_BYTES = 32 << 20


@pytest.fixture(scope="module")
def jailed(artefact: Path) -> Iterator[QemuGuest]:
    """A guest that is ready; of its console the file keeps little."""
    found = artefacts.load(artefact)
    machine = pipeline.machine_of(
        found, stock=False, snapshot=True, port=free_port(), extra_cmdline="quickstart=stay"
    )
    with Store(default_root()) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(drain, "HEAD_BYTES", HEAD_BYTES)
        with launched(machine, found.ready, store) as guest:
            guest.wait_ready(BOOT_S)
            yield guest


def qemu(guest: QemuGuest) -> Path:
    assert guest._process is not None
    return Path(f"/proc/{guest._process.pid}")


def test_its_qemu_has_no_right_on_the_host(jailed: QemuGuest) -> None:
    status = dict(line.split(":\t", 1) for line in (qemu(jailed) / "status").read_text().splitlines())
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    uids, gids = set(status["Uid"].split()), set(status["Gid"].split())
    assert uids == gids and len(uids) == 1 and status["Groups"].strip() == ""
    assert int(uids.pop()) > 65535
    # Its files end with its disk.
    limits = (qemu(jailed) / "limits").read_text()
    assert re.search(r"^Max file size +\d+ +\d+ ", limits, re.MULTILINE), limits
    # Every thread of it.
    for task in (qemu(jailed) / "task").iterdir():
        assert "Seccomp:\t2" in (task / "status").read_text()


def test_its_qemu_has_no_name_of_the_host_s_to_open(jailed: QemuGuest) -> None:
    """What it opens lies in its own directory or is a descriptor; other users of the host reach neither that nor its monitor."""
    words = (qemu(jailed) / "cmdline").read_bytes().decode().split("\0")
    place = jailed._workspace
    named = [word for word in words if "/" in word and "/dev/fdset/" not in word and "root=UUID" not in word]
    assert named and all(
        word.startswith((f"{place}/machine/", "/usr/bin/qemu-system")) for word in named[1:]
    ), named
    files = {(qemu(jailed) / "fd" / each.name).readlink() for each in (qemu(jailed) / "fd").iterdir()}
    opened = [str(each) for each in files if str(each).startswith("/") and not str(each).startswith("/dev/")]
    assert all(each.endswith("/root.raw") or each.startswith(f"{place}/machine/") for each in opened), opened
    listing = subprocess.run(["ls", "-ln", place], capture_output=True, text=True, timeout=60, check=True)
    tries = (f"ls {place}", f"ls {place}/machine", f"cat {place}/machine/initrd", f"cat {place}/console.log")
    for words_ in tries:
        stranger = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *words_.split()]
        done = subprocess.run(stranger, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0 and "Permission denied" in done.stderr, (words_, listing.stdout)


def test_a_console_without_end_fills_neither_disk_nor_memory(jailed: QemuGuest) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = io.BytesIO()
    command = f"yes flood | head -c {FLOOD_BYTES} >/dev/console; echo the-end >/dev/console; dmesg -n 1"
    assert jailed.execute(command, out, out, BOOT_S) == 0
    assert heard(jailed, "the-end")
    assert jailed.console.size_bytes > FLOOD_BYTES
    assert jailed.console.path.stat().st_size == HEAD_BYTES
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < RSS_BYTES


def test_messages_without_end_have_one(jailed: QemuGuest) -> None:
    """A command that says more than we take is an error; what comes of it later is no error of the next."""
    jailed.start("head -c 3000000 /dev/zero; echo over >&2")
    said = 0
    for message in jailed.messages(BOOT_S):
        said += len(message.data) if isinstance(message, Output) else 0
        if isinstance(message, Exit):
            break
    assert said == 3000005


@pytest.mark.parametrize("network", ["closed", "open"])
def test_where_the_network_leads(artefact: Path, tmp_path: Path, network: str) -> None:
    """The host's loopback, by IPv4 and IPv6, another subnet and a name server: nowhere, unless it is asked for."""
    out = tmp_path / "nginx"
    subprocess.run(["cp", "-a", "--sparse=always", artefact, out], timeout=120, check=True)
    own = ("unshare", "--net", "--mount", "--propagation", "private", "--")
    words = [*own, sys.executable, "-m", "tests.vm.netbox", str(out), network]
    done = subprocess.run(words, capture_output=True, timeout=2 * BOOT_S, cwd=CHECKOUT, check=False)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)["result"]
    got = dict(line.split(" ", 1) for line in result["exec_stdout"].splitlines() if " " in line)
    reached = {name for name, said in got.items() if said.startswith("reached")}
    assert reached == ({"loopback", "loopback6", "lan", "names"} if network == "open" else set()), got
    # By DHCP, in both; and the forwarded port answers this host.
    assert "inet 10.0.2.15/24" in got["address"]
    assert result["page"].startswith("HTTP/1.1 200")


@pytest.mark.parametrize("how", ["symbolic", "hard"])
def test_no_file_but_out_s_own_is_written(used: Path, tmp_path: Path, how: str) -> None:
    """Nobody can give an OUT whose root disk is another file of ours, by either kind of link."""
    victim, disk = tmp_path / "victim.img", used / "root.raw"
    disk.rename(victim)
    if how == "symbolic":
        disk.symlink_to(victim)
    else:
        disk.hardlink_to(victim)
    before = victim.stat()
    called = quickstart("run", used, *STAY, "--exec", "echo written >/root/new; sync", "--json")
    assert called.status == 2, called.out
    assert "root.raw" in called.error["message"]
    assert victim.stat().st_mtime_ns == before.st_mtime_ns


def test_run_sh_starts_nothing_on_a_link(used: Path) -> None:
    for name in ("root.raw", "vmlinuz", "initramfs.img"):
        other = (used / name).rename(used / f"{name}.other")
        (used / name).symlink_to(other)
        done = subprocess.run(["sh", used / "run.sh"], capture_output=True, timeout=60, check=False)
        assert done.returncode == 2 and f"{name} is a link" in done.stderr.decode()
        (used / name).unlink()
        other.rename(used / name)


def test_a_command_s_output_in_json_has_an_end(artefact: Path) -> None:
    command = f"yes | head -c {KEPT_BYTES + 1000}; printf '\\033[2J' >&2"
    called = quickstart("run", artefact, *STAY, "--snapshot", "--exec", command, "--json")
    assert called.status == 0, called.err
    assert called.result["exec_truncated"] is True
    assert len(called.result["exec_stdout"]) == KEPT_BYTES
    assert called.result["exec_stderr"] == "\x1b[2J"
    assert re.search(r"1000 bytes that the command said are left out", called.err)


def test_a_manifest_adds_nothing_to_the_command_line(used: Path, tmp_path: Path) -> None:
    """The recipe by which a handed-over OUT ran a program of the host as root."""
    script, manifest = tmp_path / "script", used / "manifest.json"
    script.write_text(f"#!/bin/sh\nid >{tmp_path}/ran\n")
    script.chmod(0o755)
    facts = json.loads(manifest.read_text())
    facts["ready"]["kind"] = "exec"
    facts["ready"]["port"] = f"80,guestfwd=tcp:10.0.2.100:1234-cmd:{script}"
    facts["ready"]["command"] = "bash -c 'exec 3<>/dev/tcp/10.0.2.100/1234; cat <&3'"
    manifest.write_text(json.dumps(facts))
    called = quickstart("run", used, "--check", "--snapshot", "--json")
    assert called.status == 2, called.out
    assert not (tmp_path / "ran").exists()


def test_a_port_of_root_s_is_refused_before_anything_runs(artefact: Path) -> None:
    if Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text().strip() == "0":
        assert quickstart("run", artefact, *STAY, "--snapshot", "--check", "--port", "81").status == 0
        return
    called = quickstart("run", artefact, "--snapshot", "--check", "--port", "81", "--json", timeout_s=60)
    assert called.status == 2
    assert "port 81 is root's" in called.error["message"]
