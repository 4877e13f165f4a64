"""The kernel options of a build: which there are, where they go, and that the stock entry never has them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.artefact.audit import NOTE
from quickstart.artefact.audit.judge import _command_lines
from quickstart.artefact.directory import run_script
from quickstart.artefact.manifest import read_manifest
from quickstart.artefact.useddisk import UsedDisk
from quickstart.engines.boot import BuildOptions, build_key, machine_of
from quickstart.engines.rebuild import _key
from quickstart.errors import ArtefactError, ProfileError
from quickstart.host.unchanged import Seen
from quickstart.image.kerneloptions import (
    BUILDABLE,
    added,
    chosen,
    stock_line,
    with_options,
    words_of,
)
from quickstart.model.words import KernelOptions
from quickstart.profile import load_profile, parse_profile, profile_file
from tests.unit.outs import SUPERBLOCK, write_manifest

DOCUMENT = Path(__file__).parents[2] / "docs/users/command-line.md"
BOOT, OURS = words_of(KernelOptions.BOOT), words_of(KernelOptions.OURS)
STOCK_LINE = stock_line(SUPERBLOCK.uuid)
BOOT_LINE = with_options(STOCK_LINE, KernelOptions.BOOT)
_BLACKLIST = "initcall_blacklist="


def steps(words: tuple[str, ...]) -> set[str]:
    """The words, with each step that the kernel leaves out as a word of its own."""
    plain = {each for each in words if not each.startswith(_BLACKLIST)}
    (left_out,) = (each.removeprefix(_BLACKLIST) for each in words if each.startswith(_BLACKLIST))
    return plain | {f"{_BLACKLIST}{each}" for each in left_out.split(",")}


# ---------------------------------------------------------------- the words


def test_what_a_build_has_is_part_of_what_the_bench_tries() -> None:
    assert steps(BOOT) < steps(OURS)
    assert words_of(KernelOptions.STOCK) == ()


def test_a_build_has_nothing_that_touches_clock_or_devices_for_life() -> None:
    names = {each.partition("=")[0] for each in BOOT}
    assert not names & {"tsc", "8250.nr_uarts", "noreplace-smp", "mitigations", "fips"}
    assert not {each for each in names if each.startswith("i8042.")}
    assert f"{_BLACKLIST}crc_t10dif_mod_init" not in steps(BOOT)


@pytest.mark.parametrize("options", list(KernelOptions))
def test_the_serial_console_stays(options: KernelOptions) -> None:
    assert not any(word.startswith(("quiet", "console=", "loglevel=")) for word in words_of(options))
    assert not {"8250.nr_uarts=0"} & set(words_of(options))


def test_every_option_is_documented_with_its_effect_and_who_has_it() -> None:
    """The columns are: option, what it saves, what it does, its effect for life, whether a build has it and why."""
    rows = [line.split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert all(len(row) == 7 and all(each.strip() for each in row[1:6]) for row in rows)
    told = {row[1].strip(" `"): row[5].strip().partition(":")[0] for row in rows}
    assert set(told) == steps(OURS)
    assert {word for word, has in told.items() if has == "yes"} == steps(BOOT)
    assert set(told.values()) == {"yes", "no"}


def test_lines_and_what_they_add() -> None:
    assert BOOT_LINE.split() == [*STOCK_LINE.split(), *BOOT]
    assert added(BOOT_LINE, STOCK_LINE) == BOOT
    assert added(STOCK_LINE, STOCK_LINE) == ()


# ---------------------------------------------------------------- whose they are


def test_the_profile_says_and_the_command_line_says_otherwise() -> None:
    profile = load_profile("nginx")
    assert chosen(profile, None) is KernelOptions.BOOT is BUILDABLE[0]
    plain = dataclasses.replace(profile, kernel_options=KernelOptions.STOCK)
    assert chosen(plain, None) is KernelOptions.STOCK
    assert chosen(plain, KernelOptions.BOOT) is KernelOptions.BOOT


def test_a_profile_names_its_own() -> None:
    text = profile_file("nginx").read_text()
    assert parse_profile(text, "p").kernel_options == "boot"
    assert parse_profile(f'kernel_options = "stock"\n{text}', "p").kernel_options == "stock"
    with pytest.raises(ProfileError) as caught:
        parse_profile(f'kernel_options = "ours"\n{text}', "p")
    assert any("kernel_options" in each for each in caught.value.problems)


def test_other_options_are_another_build(tmp_path: Path) -> None:
    profile, options = load_profile("nginx"), BuildOptions(out=tmp_path)
    asked = {
        each: build_key(profile, dataclasses.replace(options, kernel_options=each), None)
        for each in (None, *BUILDABLE)
    }
    assert asked[None] == asked[KernelOptions.BOOT] != asked[KernelOptions.STOCK]


def test_other_options_are_another_rebuild(tmp_path: Path) -> None:
    profile = load_profile("nginx")
    used = UsedDisk(path=tmp_path, digest="0", superblock=SUPERBLOCK, seen=Seen(0, 0, 0, 0))
    assert len({_key(profile, used, each) for each in BUILDABLE}) == 2


# ---------------------------------------------------------------- an artefact


def test_each_entry_of_an_artefact_has_its_own_line(tmp_path: Path) -> None:
    write_manifest(tmp_path, cmdline=BOOT_LINE, stock_cmdline=STOCK_LINE, kernel_options="boot")
    found = artefacts.load(tmp_path)
    lines = {
        stock: machine_of(found, stock=stock, snapshot=True, port=None, extra_cmdline="single").cmdline
        for stock in (False, True)
    }
    assert lines == {False: f"{BOOT_LINE} single", True: f"{STOCK_LINE} single"}
    script = run_script(read_manifest(tmp_path))
    assert script.count(f'cmdline="{BOOT_LINE}"') == script.count(f'cmdline="{STOCK_LINE}"') == 1
    assert "@" not in script


def test_an_artefact_from_before_has_one_line_for_both(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    manifest, found = read_manifest(tmp_path), artefacts.load(tmp_path)
    assert (found.cmdline, found.stock_cmdline, manifest.kernel_options) == (STOCK_LINE, STOCK_LINE, "stock")


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_options": "ours"},
        {"kernel_options": None},
        {"stock_cmdline": "ro $(touch /pwned)"},
        {"stock_cmdline": 'ro" -drive file=/etc/shadow "'},
        {"stock_cmdline": "ro\ninit=/bin/sh"},
        {"stock_cmdline": "a" * 2049},
    ],
)
def test_what_is_no_option_and_no_line_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write_manifest(tmp_path, **changes)
    with pytest.raises(ArtefactError, match=r"manifest\.json is damaged"):
        artefacts.load(tmp_path)


# ---------------------------------------------------------------- seen by somebody who is given it


def findings(out: Path, **changes: object) -> list[str]:
    lines = {"cmdline": BOOT_LINE, "stock_cmdline": STOCK_LINE, "kernel_options": "boot"}
    write_manifest(out, **{**lines, **changes})
    found = list(_command_lines(read_manifest(out)))
    assert all((each.severity, each.object) == (NOTE, "manifest.json") for each in found)
    return [each.what for each in found]


def test_what_a_build_puts_there_is_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path) == []
    assert findings(tmp_path, cmdline=STOCK_LINE, kernel_options="stock") == []


def test_words_that_no_build_puts_there_are_named_with_their_entry(tmp_path: Path) -> None:
    (fast,) = findings(tmp_path, cmdline=f"{BOOT_LINE} mitigations=off tsc=reliable")
    assert fast.startswith("the fast entry's kernel command line has mitigations=off tsc=reliable,")
    (stock,) = findings(tmp_path, stock_cmdline=f"{STOCK_LINE} init=/bin/sh")
    assert stock.startswith("the stock entry's kernel command line has init=/bin/sh,")
    # Nor may the options of a build be on the line of an artefact that says it has none.
    (named,) = findings(tmp_path, kernel_options="stock")
    assert all(word in named for word in BOOT)
