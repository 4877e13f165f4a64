"""The default entry of GRUB's menu, and the menus in which it is not certain which entry this is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from quickstart.inspect.disk.grub import default_entry
from tests.unit.diskrecords import GRUB_CFG


def test_the_entry_of_quickstart_is_not_the_systems_own_default() -> None:
    """A disk of `build --image` is built again from the entry that its system has chosen."""
    script = resources.files("quickstart.image.targets.disk").joinpath("42_quickstart").read_text()
    assert script.count("set default=quickstart\n") == 2
    begin = "menuentry 'QuickStart' --class gnu-linux --id quickstart {"
    assert begin in script.replace("$free", "")
    ours = f"{begin}\n\tlinux /boot/vmlinuz ro\n\tinitrd /boot/quickstart/initramfs.img\n}}\n"
    choice = script.rpartition("cat <<'END'\n")[2].removesuffix("END\n")
    plain = default_entry(GRUB_CFG, b"")
    assert plain is not None
    assert default_entry(f"{GRUB_CFG}{ours}{choice}", b"quickstart_state=again\n") == plain


def test_the_menu_of_a_real_disk() -> None:
    """As bookworm's grub-mkconfig writes it."""
    text = (Path(__file__).parents[1] / "logs/bookworm.grub.cfg").read_text()
    found = default_entry(text, b"")
    assert found is not None
    assert (found.title, found.kernel) == ("Debian GNU/Linux", "/vmlinuz-6.1.0-56-cloud-amd64")
    advanced = default_entry(text.replace('set default="0"', 'set default="1"'), b"")
    assert advanced is not None
    assert advanced.title == "Advanced options for Debian GNU/Linux"


ENTRY = "menuentry 'NAME' --id name {\n\tlinux /boot/vmlinuz NAME\n\tinitrd /boot/initrd\n}\n"
PLAIN, OWN = ENTRY.replace("NAME", "plain"), ENTRY.replace("NAME", "own").replace("name", "own")


@pytest.mark.parametrize(
    ("menu", "wanted"),
    [
        (f"set default=0\n{PLAIN}if [ $x = y ]; then\n{OWN}fi\n", "plain"),
        (f"set default=1\nif [ $x = y ]; then\n{OWN}fi\n{PLAIN}{OWN}", None),
        (f"set default=1\nmenuentry 'Reboot' {{ reboot }}\n{PLAIN}{OWN}", None),
        (f"set default=1\nmenuentry 'Reboot'\n{{\n reboot\n}}\n{PLAIN}{OWN}", None),
        (f"set default=0\n{PLAIN.replace('initrd', 'linux /boot/vmlinuz two')}", None),
        (f"set default=2-own\n{PLAIN}{OWN.replace('own', '2-own')}", None),
        (f"set default=own\n{PLAIN}if [ $x = y ]; then\n{OWN}fi\n", None),
        (f"set default=0\n{PLAIN}{OWN}if keystatus --shift; then set default=own; fi\n", "plain"),
        (f"set default=0\nsource $prefix/x\n{PLAIN}", None),
        (f"set default=plain\nif true; then configfile /x; fi\n{PLAIN}", None),
        (f"set default=0\nfunction more {{\n{OWN}}}\nmore\n{PLAIN}", None),
        (f"set default=0\nfor x in a b; do\n{OWN}done\n{PLAIN}", None),
        (f'set default=0\nif [ "$x" != no ]; then menuentry "R" {{ true; }}; fi\n{PLAIN}', None),
        (f"set default=0\ntrue; menuentry 'R' {{\n\ttrue\n}}\n{PLAIN}", None),
        (f'set default=0\n"source" $prefix/x\n{PLAIN}', None),
        (f"set default=0\nso\\urce $prefix/x\n{PLAIN}", None),
        (f"set default=0\nset c=source\nif true; then $c /x; fi\n{PLAIN}", None),
        (f"set default=0\nlinux /x\nboot\n{PLAIN}", None),
        (
            f'set default=0\nif [ "${{a}}" ] ; then\n  echo "wait for it"\nfi\nset x="a ${{y}}"\n{PLAIN}',
            "plain",
        ),
        (f"set default=0\n{PLAIN}source $prefix/x\n{OWN}", "plain"),
        (f"set default=own\n{PLAIN}source $prefix/x\n{OWN}", None),
        (f"set default=0\n# source x\nfunction gfx {{\n\tset x=y\n}}\n{PLAIN}", "plain"),
        (f"set default=0\n{PLAIN}{OWN}if keystatus --shift; then\n  set default=own\nfi\n", None),
    ],
)
def test_a_condition_that_decides_the_default(menu: str, wanted: str | None) -> None:
    found = default_entry(menu, b"")
    assert (found.title if found else None) == wanted
