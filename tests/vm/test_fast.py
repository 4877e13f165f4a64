"""nginx from /fast: the guest's facts about its processes, and the host's counts."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from quickstart.image.kerneloptions import words_of
from quickstart.initramfs.newc_reader import read_archive
from quickstart.model.words import KernelOptions
from tests.vm.conftest import STAY, quickstart

# One boot answers all questions; each answer comes behind a line of its own.
QUESTIONS = {
    "maps": "cat /proc/$MAIN/maps",
    "comm": "cat /proc/$MAIN/comm",
    "cmdline": r"tr '\0' ' ' </proc/$MAIN/cmdline",
    "exe": "readlink /proc/$MAIN/exe",
    # nginx overwrites the area of /proc/PID/environ with its title; the strings live on in its memory.
    "environment": (
        "range=$(sed -n 's/ .*\\[heap\\]$//p' /proc/$MAIN/maps); "
        "begin=$((0x${range%-*})); end=$((0x${range#*-})); "
        "dd if=/proc/$MAIN/mem bs=4096 skip=$((begin / 4096)) count=$(((end - begin) / 4096)) 2>/dev/null "
        "| grep -a -o -E '(PATH|LD_LIBRARY_PATH)=[[:print:]]*'"
    ),
    "group": "cat /proc/$MAIN/cgroup",
    "pid1": "readlink /proc/1/exe; cat /proc/1/comm",
    "only-on-root": "test ! -e /fast/usr/bin/perl && perl -e 'print \"perl ran\\n\"'",
    "fast-read-only": "touch /fast/x 2>&1; echo $?",
    "root": "findmnt -n -o SOURCE,FSTYPE,OPTIONS /",
    "fast": "findmnt -n -o SOURCE,FSTYPE,OPTIONS /fast; ls /fast/usr/sbin",
    "kernel-line": "cat /proc/cmdline",
    "network": "ip -4 -o addr show enp0s3; ip route; cat /etc/resolv.conf",
    "hostname": "hostname",
    # The kernel's own values are 0 and 32768; Debian's packages have others in sysctl.d, and systemd never comes here.
    "settings": "cat /proc/sys/fs/protected_regular /proc/sys/kernel/pid_max",
    "checked": "dmesg | grep 'quickstart: integrity'; ls /fast/quickstart",
    "zombies": "for n in 1 2 3; do (setsid sh -c 'sleep 0.2 &' &); done; sleep 1; ps -eo stat,comm | grep -c '^Z'",
}


@pytest.fixture(scope="module")
def answers(artefact: Path) -> dict[str, str]:
    """The guest's answers by question, from one boot."""
    command = "MAIN=$(cat /run/nginx.pid)\n" + "\n".join(
        f"echo; echo '== {name}'\n{question}" for name, question in QUESTIONS.items()
    )
    # With all that a lease may say: that of a closed network names neither router nor DNS.
    words = (*STAY, "--snapshot", "--network", "open")
    called = quickstart("run", artefact, *words, "--exec", command, "--json")
    assert called.out, called.err
    text = called.result["exec_stdout"]
    parts = re.split(r"^== (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def test_program_loader_and_libraries_are_mapped_from_fast(answers: dict[str, str]) -> None:
    files = {
        line.split()[5] for line in answers["maps"].splitlines() if "/" in line and "/dev/zero" not in line
    }
    assert files, answers["maps"]
    assert all(file.startswith("/fast/") for file in files), files
    names = {Path(file).name for file in files}
    assert {"nginx", "ld-linux-x86-64.so.2", "libc.so.6", "libcrypto.so.3"} <= names


def test_the_process_looks_as_it_does_on_the_stock_image(answers: dict[str, str]) -> None:
    assert answers["comm"] == "nginx"
    assert answers["cmdline"].startswith(
        "nginx: master process /usr/sbin/nginx -g daemon on; master_process on;"
    )
    assert answers["exe"] == "/fast/usr/sbin/nginx"
    assert answers["group"] == "0::/system.slice/nginx.service"


def test_path_and_library_path_begin_with_fast_and_end_with_the_stock_ones(answers: dict[str, str]) -> None:
    environment = dict(line.split("=", 1) for line in answers["environment"].splitlines())
    path = environment["PATH"].split(":")
    assert path[:6] == [f"/fast{name}" for name in path[6:]]
    assert "/usr/sbin" in path[6:]
    assert environment["LD_LIBRARY_PATH"] == "/fast/usr/lib/x86_64-linux-gnu"


def test_kernel_settings_of_the_image_are_made_by_init(answers: dict[str, str]) -> None:
    assert answers["settings"].split() == ["2", "4194304"]


def test_a_program_that_is_only_on_the_root_volume_runs(answers: dict[str, str]) -> None:
    assert answers["only-on-root"] == "perl ran"


def test_the_root_is_the_volume_and_fast_a_read_only_tree_in_memory(answers: dict[str, str]) -> None:
    assert answers["root"].split()[:2] == ["/dev/vda", "ext4"]
    assert answers["root"].split()[2].startswith("rw,")
    assert answers["fast"].splitlines()[0].split()[1:] == ["rootfs", "ro"]
    assert "nginx" in answers["fast"].splitlines()
    assert answers["fast-read-only"].endswith("\n1")


def test_the_kernel_has_the_options_of_a_build(answers: dict[str, str]) -> None:
    assert set(words_of(KernelOptions.BOOT)) <= set(answers["kernel-line"].split())


def test_network_and_name_are_those_of_the_image(answers: dict[str, str]) -> None:
    assert "inet 10.0.2.15/24" in answers["network"]
    assert "default via 10.0.2.2 dev enp0s3" in answers["network"]
    assert "nameserver 10.0.2.3" in answers["network"]
    assert answers["hostname"] == "debian"


def test_part_b_was_checked(answers: dict[str, str], artefact: Path) -> None:
    """Its bytes are those of the archive: each file's once."""
    said = re.search(r"quickstart: integrity (pclmul|plain) (\d+) bytes (\d+) us", answers["checked"])
    assert said is not None and int(said[3]) > 0
    with (artefact / "initramfs.img").open("rb") as stream:
        packed = sum(
            each.size for each in read_archive(stream) if each.archive == 1 and stat.S_ISREG(each.mode)
        )
    assert int(said[2]) == packed > 5_000_000
    assert "\ndamage\n" not in answers["checked"] and "\ndigests\n" in answers["checked"]


def test_pid_1_is_ours_and_reaps(answers: dict[str, str]) -> None:
    assert answers["pid1"].splitlines()[0].endswith("/fast/quickstart/busybox")
    assert answers["zombies"] == "0"


def test_reads_of_the_root_before_ready(artefact: Path) -> None:
    """Issue 1, line 3: at most 100 for us, more than 1000 for the stock boot, both counted by QEMU."""
    both = quickstart("run", artefact, "--beside-stock", "--json").result["runs"]
    ours, stock = both
    assert (ours["configuration"], stock["configuration"]) == ("quickstart", "standard")
    assert 0 < ours["root_reads"] <= 100
    assert stock["root_reads"] > 1000
    for run in both:
        assert run["answer"] == "HTTP/1.1 200 OK"
        assert run["page"] == "HTTP/1.1 200 OK"
        assert run["t_total_ns"] == run["t_pr_ns"] + run["t_app_ns"]
        assert run["initramfs_bytes"] <= 20 * 1024 * 1024
