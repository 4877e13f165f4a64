"""`quickstart verify`: the ledger of a real boot balances, a planted miss is named, and --until-clean mends it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.vm.conftest import BUILD_S, STAY, Called, quickstart

PROFILE = Path(__file__).parents[2] / "profiles/nginx"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"
# More than an nginx whose libraries are packed reads, less than with libcrypto from the volume.
BUDGET = "[budget]\nroot_requests = 200\nroot_bytes = 2_000_000\n"


@pytest.fixture(scope="module")
def ledger(artefact: Path) -> dict[str, Any]:
    """Of a boot that stays with init: after ready nobody reads, so that both counts are of the same requests."""
    called = quickstart("verify", artefact, *STAY, "--json", timeout_s=1200)
    assert called.out, called.err
    assert called.status == (0 if called.result["clean"] else 1)
    return called.result


def test_the_ledger_has_what_qemu_counted(ledger: dict[str, Any]) -> None:
    assert ledger["fallback"] == ""
    assert ledger["requests"] == len(ledger["reads"]) == ledger["root_reads"]
    assert (
        ledger["bytes"] == sum(each["length_bytes"] for each in ledger["reads"]) == ledger["root_read_bytes"]
    )
    assert ledger["requests"] > 10


def test_each_request_has_an_owner_and_each_of_the_kernels_an_asker(ledger: dict[str, Any]) -> None:
    for each in (*ledger["reads"], *ledger["writes"]):
        assert each["owners"]
        assert each["avoid"]
        assert each["asked_by"] if each["uptime_ns"] is not None else each["offset_bytes"] == 0
    kinds = {each["kind"] for each in ledger["reads"]}
    assert {"superblock", "inode table", "directory", "journal"} <= kinds
    assert "free" not in kinds


def test_files_and_processes_are_the_right_ones(ledger: dict[str, Any]) -> None:
    (page,) = (
        each
        for each in ledger["reads"]
        if "/var/www/html/index.nginx-debian.html" in {owner["path"] for owner in each["owners"]}
    )
    # What the application reads lies side by side, and is read together.
    assert {"/etc/passwd", "/etc/nginx/nginx.conf"} <= {owner["path"] for owner in page["owners"]}
    assert (page["asked_by"][0]["program"], page["asked_by"][0]["call"]) == ("prefetcher", "io_uring_enter")
    assert "one batch" in page["avoid"]
    # The kernel's own read before the prefetcher is there.
    (root,) = (each for each in ledger["reads"] if each["kind"] == "group descriptors")
    assert root["asked_by"][0]["program"] == "mount"
    mounting = [each for each in ledger["reads"] if each["kind"] == "journal"]
    assert mounting[0]["asked_by"][0]["program"] == "mount"
    assert any(each["path"] == "/var/www/html/index.html" for each in ledger["failed_lookups"])
    assert any(each["path"].startswith("/etc/nginx/") for each in ledger["listed"])
    untouched = {each["path"] for each in ledger["untouched"]}
    assert not untouched & {LIBRARY, "/usr/sbin/nginx", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"}


def test_the_disk_is_as_it_was(artefact: Path, ledger: dict[str, Any]) -> None:
    """A build onto an OUT whose disk was used would refuse."""
    again = quickstart(
        "build", "--no-trial", "--profile", "nginx", "-o", artefact, "--json", timeout_s=BUILD_S
    )
    assert again.status == 0, again.err
    assert not again.result["made"]


def profile(place: Path, exclude: str = "") -> Path:
    shutil.copytree(PROFILE, place)
    text = (place / "profile.toml").read_text()
    head, _, _ = text.partition("[budget]")
    if exclude:
        head = head.replace("[files]\n", f'[files]\nexclude = ["{exclude}"]\n')
        assert exclude in head
    (place / "profile.toml").write_text(head + BUDGET)
    return place


def verified(*words: str | Path) -> Called:
    return quickstart("verify", *words, *STAY, "--json", timeout_s=BUILD_S)


def test_a_seeded_miss_is_named_and_mended(tmp_path: Path) -> None:
    out, without, whole = (
        tmp_path / "out",
        profile(tmp_path / "without", LIBRARY),
        profile(tmp_path / "whole"),
    )
    built = quickstart("build", "--no-trial", "--profile", without, "-o", out, "--json", timeout_s=BUILD_S)
    assert built.status == 0, built.err
    missed = verified(out)
    assert missed.status == 1, missed.err
    # One touch of it is in init's batch, as of every large file that stays on the volume.
    reads = [
        each
        for each in missed.result["reads"]
        if each["owners"][0]["path"] == LIBRARY and each["asked_by"][0]["program"] != "prefetcher"
    ]
    assert reads
    assert {asker["program"] for each in reads for asker in each["asked_by"]} == {"nginx"}
    assert sum(each["length_bytes"] for each in reads) > 500_000
    assert all(f"exclude: {LIBRARY}" in each["avoid"] for each in reads)
    mended = verified(out, "--until-clean", "--profile", whole)
    assert mended.status == 0, (mended.err, mended.out)
    assert not [each for each in mended.result["reads"] if each["owners"][0]["path"] == LIBRARY]
    assert mended.result["bytes"] < 2_000_000


def test_a_list_of_files_is_in_the_start_set_too(tmp_path: Path) -> None:
    listed, out = tmp_path / "web.include", tmp_path / "web"
    listed.write_text("# found lacking\n/usr/share/zoneinfo/Etc/GMT\n")
    built = quickstart(
        "build",
        "--no-trial",
        "--profile",
        "nginx",
        "--include",
        listed,
        "-o",
        out,
        "--json",
        timeout_s=BUILD_S,
    )
    assert built.status == 0, built.err
    why = quickstart("why", out, "/usr/share/zoneinfo/Etc/GMT", "--json")
    assert why.result["reasons"] == [
        "rule: include: /usr/share/zoneinfo/Etc/GMT",
        # Data that are not compared at boot.
        "left on the volume: opened by its ordinary path",
    ]
