"""An image with cloud-init: a machine's first boot is stock, the next ones start early, and a copy is another machine."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quickstart.host.progress import Quiet
from quickstart.model import IMAGE_TIME_S
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.conftest import BUILD_S, EARLY, Called, host, quickstart
from tests.vm.test_hand_off import answers

pytestmark = pytest.mark.full

PROFILE = """\
schema = 1
name = "cloud"
packages = ["cloud-init", "nginx"]
unit = "nginx.service"
[start]
pre = false
early = "EARLY"
[ready]
kind = "http"
port = 80
[files]
data = ["/var/www/**"]
"""
# cloud-init's datasource NoCloud takes it from the image.
SEED = "var/lib/cloud/seed/nocloud"
META_DATA = "instance-id: NAME\nlocal-hostname: NAME\n"
# The minimal image has no locale but C, and its update-locale takes no other.
USER_DATA = "#cloud-config\nlocale: false\nruncmd:\n- [sh, -c, 'hostname >>/srv/ran']\n"
SIZE_MIB = 2048
ASK = """
answer() {
	name=$1
	shift
	echo "$name: $("$@" 2>&1 | tr '\\n' ' ')"
}
answer program readlink /proc/$(cat /run/nginx.pid)/exe
early=$(cat /run/nginx.pid)
# systemd may not have begun yet, and cloud-init says before that it is disabled.
for _ in $(seq 400); do
	systemctl is-system-running --wait 2>/dev/null | grep -q -e running -e degraded && break
	sleep 1
done
answer cloud-init cloud-init status --wait
answer running systemctl is-system-running
answer failed systemctl --failed --no-legend --plain
[ "$(systemctl show -P MainPID nginx)" = "$early" ] && echo same-pid: yes
answer ran cat /srv/ran
answer hostname hostname
answer uuid cat /sys/class/dmi/id/product_uuid
echo "mib: $(($(stat -f -c '%b * %S' /) / 1048576))"
"""
ASKED = "fallback 1: cloud-init has not been through this machine yet, and "
STOCK = "fallback 1: cloud-init has not been through this machine yet; the stock init takes over"


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reference image with a seed of ours."""
    reference = make_reference(
        load_profile(str(profile(tmp_path_factory, "seen"))), Context(store(), Quiet())
    )
    tree = tmp_path_factory.mktemp("cloud") / "root"
    host("cp", "-a", "--reflink=auto", reference.tree, tree)
    (tree / SEED).mkdir(parents=True)
    (tree / SEED / "meta-data").write_text(META_DATA.replace("NAME", "first"))
    (tree / SEED / "user-data").write_text(USER_DATA)
    # The same image in each run: its trace is then in the store.
    for path in (*(tree / SEED).iterdir(), tree / SEED, *(tree / SEED).parents[:4]):
        os.utime(path, (IMAGE_TIME_S, IMAGE_TIME_S))
    yield tree
    host("rm", "-r", tree)


def store() -> Store:
    return Store(default_root())


def profile(tmp_path_factory: pytest.TempPathFactory, early: str) -> Path:
    directory = tmp_path_factory.mktemp(early)
    (directory / "profile.toml").write_text(PROFILE.replace("EARLY", early))
    return directory


def built(tmp_path_factory: pytest.TempPathFactory, early: str, rootfs: Path) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp(f"out-{early}") / "cloud"
    called = quickstart(
        *(
            "build",
            "--no-trial",
            "--profile",
            profile(tmp_path_factory, early),
            "--rootfs",
            rootfs,
            "-o",
            out,
            "--json",
        ),
        timeout_s=BUILD_S,
    )
    assert called.status == 0, called.err + called.out
    return out, called.result


def boot(out: Path, *words: str, then: str = "") -> tuple[Called, dict[str, str]]:
    """A boot to its end, what the machine says of it, and a command before its shutdown."""
    called = quickstart(
        "run", out, *words, *EARLY, "--console", "--json", "--exec", ASK + then, timeout_s=900
    )
    assert called.status == 0, called.err[-3000:] + called.out
    return called, answers(called.result["exec_stdout"])


@pytest.fixture(scope="module")
def machine(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built for a disk of SIZE_MIB, and given a larger one."""
    out, result = built(tmp_path_factory, "seen", rootfs)
    assert (result["cloud_init"], result["early"]) == (True, "seen")
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["cloud_init"], manifest["early"]) == (True, "seen")
    # What the reference boot wrote is not in it.
    assert "File not found" in stat(out, "/var/lib/cloud/instance")
    host("truncate", "-s", f"{2 * SIZE_MIB}M", out / "root.raw")
    return out


def stat(out: Path, path: str) -> str:
    return host("sh", "-c", 'exec debugfs -R "stat $1" "$2" 2>&1', "sh", path, out / "root.raw")


@pytest.fixture(scope="module")
def first(machine: Path) -> tuple[Called, dict[str, str]]:
    return boot(machine)


@pytest.fixture(scope="module")
def second(machine: Path, first: tuple[Called, dict[str, str]]) -> tuple[Called, dict[str, str]]:
    assert first[1]["cloud-init"].endswith("status: done")
    return boot(machine)


def test_without_cloud_init_for_one_boot(machine: Path, tmp_path: Path) -> None:
    """It starts early, and says nothing for the next one."""
    copy = tmp_path / "copy"
    host("cp", "-a", "--sparse=always", machine, copy)
    called, said = boot(copy, "--append", "cloud-init=disabled")
    assert called.result["fallback"] is None
    assert said["cloud-init"].endswith("status: disabled")
    assert (said["running"], said["failed"]) == ("running", "")
    assert "File not found" in stat(copy, "/.quickstart.instance")
    host("rm", "-r", copy)


def test_the_first_boot_is_stock_and_says_why(first: tuple[Called, dict[str, str]]) -> None:
    called, said = first
    assert called.result["fallback"] == STOCK
    assert said["program"] == "/usr/sbin/nginx"


def test_the_first_boot_is_all_that_cloud_init_makes_of_it(
    machine: Path, first: tuple[Called, dict[str, str]]
) -> None:
    called, said = first
    assert said["cloud-init"].endswith("status: done")
    assert (said["running"], said["failed"]) == ("running", "")
    assert (said["ran"], said["hostname"]) == ("first", "first")
    # The volume has grown to the disk.
    assert int(said["mib"]) > 1.8 * SIZE_MIB
    own = json.loads((machine / "manifest.json").read_text())["uuid"]
    assert said["uuid"] == own
    assert f"quickstart: cloud-init has been here: 1:{own}" in called.err


def test_the_second_boot_starts_early(second: tuple[Called, dict[str, str]]) -> None:
    called, said = second
    assert called.result["fallback"] is None
    assert said["program"] == "/fast/usr/sbin/nginx"
    assert said["same-pid"] == "yes"
    assert said["cloud-init"].endswith("status: done")
    assert (said["running"], said["failed"]) == ("running", "")
    # Once for an instance.
    assert said["ran"] == "first"


def test_a_copy_that_is_another_instance(
    machine: Path, second: tuple[Called, dict[str, str]], tmp_path: Path
) -> None:
    assert second[1]["running"] == "running"
    copy = tmp_path / "copy"
    host("cp", "-a", "--sparse=always", machine, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "uuid": str(uuid.uuid4())}))
    (tmp_path / "meta-data").write_text(META_DATA.replace("NAME", "another"))
    commands = tmp_path / "commands"
    commands.write_text(f"cd /{SEED}\nrm meta-data\nwrite {tmp_path}/meta-data meta-data\n")
    host("debugfs", "-w", "-f", commands, copy / "root.raw")
    called, said = boot(copy)
    assert called.result["fallback"] == STOCK
    assert (said["ran"], said["hostname"]) == ("first another", "another")
    called, said = boot(copy, then="cloud-init clean")
    assert called.result["fallback"] is None
    assert (said["ran"], said["hostname"]) == ("first another", "another")
    # The next boot would be a first one for cloud-init.
    assert "quickstart: cloud-init has no instance any more" in called.err
    assert "File not found" in stat(copy, "/.quickstart.instance")
    host("rm", "-r", copy)


def test_always_means_the_first_boot_too(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out, result = built(tmp_path_factory, "always", rootfs)
    assert (result["cloud_init"], result["early"]) == (True, "always")
    host("truncate", "-s", f"{2 * SIZE_MIB}M", out / "root.raw")
    called, said = boot(out)
    assert called.result["fallback"] is None
    assert (said["program"], said["same-pid"]) == ("/fast/usr/sbin/nginx", "yes")
    assert said["cloud-init"].endswith("status: done")
    assert (said["running"], said["failed"]) == ("running", "")
    assert (said["ran"], said["hostname"]) == ("first", "first")
    assert int(said["mib"]) > 1.8 * SIZE_MIB
    host("rm", "-r", out)


def test_ask_starts_early_where_nothing_brings_user_data(
    rootfs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No datasource is found in this machine, so cloud-init has nothing to do, in a stock boot and in ours."""
    bare = tmp_path_factory.mktemp("bare") / "root"
    host("cp", "-a", "--reflink=auto", rootfs, bare)
    host("rm", "-r", bare / "var/lib/cloud/seed")
    os.utime(bare / "var/lib/cloud", (IMAGE_TIME_S, IMAGE_TIME_S))
    out, result = built(tmp_path_factory, "ask", bare)
    host("rm", "-r", bare)
    assert (result["cloud_init"], result["early"]) == (True, "ask")
    for _ in range(2):
        called, said = boot(out)
        assert called.result["fallback"] is None
        assert (said["program"], said["same-pid"]) == ("/fast/usr/sbin/nginx", "yes")
        assert said["cloud-init"].endswith("status: disabled")
        assert (said["running"], said["failed"]) == ("running", "")
    host("rm", "-r", out)


def test_ask_boots_the_stock_way_with_a_seed(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The second boot is fast, because cloud-init has been through the machine."""
    out, _ = built(tmp_path_factory, "ask", rootfs)
    host("truncate", "-s", f"{2 * SIZE_MIB}M", out / "root.raw")
    called, said = boot(out)
    assert (
        called.result["fallback"] == f"{ASKED}/{SEED} may be a seed of cloud-init; the stock init takes over"
    )
    assert (said["ran"], said["hostname"], said["running"]) == ("first", "first", "running")
    called, said = boot(out)
    assert called.result["fallback"] is None
    assert (said["program"], said["same-pid"]) == ("/fast/usr/sbin/nginx", "yes")
    assert said["ran"] == "first"
    host("rm", "-r", out)
