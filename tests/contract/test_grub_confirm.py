"""The script that takes GRUB's note of a try away, in a /boot of its own (as root: it mounts)."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest

pytestmark = pytest.mark.host_root

LINE = "/boot/vmlinuz-6.1.0-28 root=UUID=1 ro console=ttyS0"
STOCK = f"menuentry 'Debian' {{\n\tlinux\t{LINE} \n}}\nsubmenu 'More' {{\n\tlinux {LINE}\n}}\n"
OURS = f"menuentry 'QuickStart' --id quickstart {{\n\tlinux {LINE} panic=10\n}}\n"
CHOICE = 'if [ "${have_grubenv}" = true -a -z "${boot_once}" -a "${default}" = \'0\' ]; then\nfi\n'
# As grub-editenv(1) does it.
EDITENV = """\
#!/bin/sh
set -e
case $2 in
list) cat "$1" ;;
set) echo "$3" >"$1" ;;
unset) echo none >"$1" ;;
esac
"""


class Disk:
    def __init__(self, place: Path) -> None:
        if os.geteuid() != 0:
            pytest.fail("run the contract tests as root: they mount")
        self.place, self.said = place, ""
        for name in ("boot/grub", "boot/quickstart", "tool"):
            (place / name).mkdir(parents=True)
        (place / "tool/grub-editenv").write_text(EDITENV)
        (place / "tool/grub-editenv").chmod(0o755)
        (place / "boot/quickstart/entry").write_text(f"/boot/vmlinuz-6.1.0-28\n{LINE} panic=10\n{LINE}\n")
        script = resources.files("quickstart.image.targets.disk").joinpath("confirm").read_text()
        (place / "confirm").write_text(script)
        self.menu(STOCK + OURS + CHOICE)

    def menu(self, text: str) -> None:
        (self.place / "boot/grub/grub.cfg").write_text(text)

    def after(self, state: str, *words: str) -> str:
        """The state that the script leaves of ``state``."""
        note = self.place / "boot/grub/grubenv"
        note.write_text(f"quickstart_state={state}\n" if state else "none\n")
        run = (
            'mount --bind "$1/boot" /boot; PATH=$1/tool:$PATH; place=$1; shift; exec sh "$place/confirm" "$@"'
        )
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", run, "sh", str(self.place), *words],
            capture_output=True,
            timeout=60,
            check=True,
        )
        self.said = done.stderr.decode()
        return note.read_text().strip().removeprefix("none").removeprefix("quickstart_state=")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("tried", ""), ("retried", ""), ("failed", "again"), ("again", "again"), ("off", "off")],
)
@pytest.mark.parametrize(
    "menu", [STOCK + OURS + CHOICE, STOCK, "", STOCK + OURS + CHOICE.replace("'0'", "'2'")]
)
def test_a_boot_that_came_to_its_end(disk: Disk, before: str, after: str, menu: str) -> None:
    disk.menu(menu)
    assert disk.after(before) == after
    assert disk.after(before, "look") == before


@pytest.mark.parametrize("words", [(), ("look",), ("ended",)])
@pytest.mark.parametrize("state", ["", "tried", "again", "off", "changed"])
def test_a_default_entry_that_somebody_has_edited(disk: Disk, state: str, words: tuple[str, ...]) -> None:
    """Its options are for the next boot of a stock machine, whether update-grub knows of them or not."""
    edited = STOCK.replace("ttyS0", "ttyS0 audit=1", 1)
    disk.menu(edited + OURS + CHOICE)
    assert disk.after(state, *words) == ("off" if state == "off" else "changed")
    assert "the default entry in /boot/grub/grub.cfg has changed" in disk.said


def test_a_change_that_was_taken_back(disk: Disk) -> None:
    assert disk.after("changed") == ""
    # update-grub has left our entry out, so nothing of ours starts.
    disk.menu(STOCK)
    assert disk.after("changed") == "changed"


def test_with_another_default_the_first_entry_does_not_count(disk: Disk) -> None:
    disk.menu("menuentry 'Other' {\n\tlinux /boot/other\n}\n" + STOCK + OURS + CHOICE.replace("'0'", "'1'"))
    assert disk.after("tried") == ""
