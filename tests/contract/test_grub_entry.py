"""The script of grub-mkconfig that `build --image` installs, in a /boot of its own (as root: it mounts)."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.inspect.disk.grub import default_entry

pytestmark = pytest.mark.host_root

UUID = "11111111-2222-3333-4444-555555555555"
KERNEL = "/boot/vmlinuz-6.1.0-28-cloud-amd64"
LINE = f"root=UUID={UUID} ro console=ttyS0 panic=10"
# As 10_linux writes the system's own entry.
STOCK = f"""\
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {{
	insmod part_gpt
	search --no-floppy --fs-uuid --set=root {UUID}
	echo	'Loading Linux 6.1.0-28-cloud-amd64 ...'
	linux	{KERNEL} root=UUID={UUID} ro console=ttyS0
}}
"""
# As prepare_grub_to_access_device writes it for a disk that is sda, and gettext in another language.
STOCK_OF_SDA = STOCK.replace("Loading", "Lade").replace(
    f"\tsearch --no-floppy --fs-uuid --set=root {UUID}\n",
    f"""\
	set root='hd0,gpt1'
	if [ x$feature_platform_search_hint = xy ]; then
		search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt1 {UUID}
	else
		search --no-floppy --fs-uuid --set=root {UUID}
	fi
""",
)
HEADER = "### BEGIN /etc/grub.d/00_header ###\nset timeout=5\n### BEGIN /etc/grub.d/10_linux ###\n"
# As 40_custom has it.
OWN = f"""\
menuentry 'Hardened' --id hardened {{
	linux {KERNEL} root=UUID={UUID} ro
	if [ x = y ]; then
		true
	fi
}}
"""
OLD = (
    "submenu 'Advanced' --id old {\n\tmenuentry 'Debian, with Linux 5' {\n\t\tlinux /boot/vmlinuz-5\n\t}\n}\n"
)
LIBRARY = """\
make_system_path_relative_to_its_root() { echo "$1"; }
prepare_grub_to_access_device() { echo "search --fs-uuid X"; }
"""
# grub-mkconfig exports what it has read in /etc/default/grub.
SETTINGS = {"GRUB_DEVICE_UUID": UUID, "GRUB_CMDLINE_LINUX": "console=ttyS0", "grub_probe": "echo"}
BEGIN = """\
set -e
for place in /boot /usr/sbin; do
	mount --bind "$1/${place##*/}" $place
done
"""


class Disk:
    def __init__(self, place: Path) -> None:
        if os.geteuid() != 0:
            pytest.fail("run the contract tests as root: they mount")
        self.place, self.boot = place, place / "boot"
        (self.boot / "quickstart").mkdir(parents=True)
        (self.boot / "grub").mkdir()
        (self.boot / "quickstart/initramfs.img").write_text("initramfs")
        self.write(STOCK)
        self.kernel("vmlinuz-6.1.0-28-cloud-amd64", "first")
        for name in ("grub", "sbin"):
            (place / name).mkdir()
        (place / "grub/grub-mkconfig_lib").write_text(LIBRARY)
        (place / "sbin/quickstart").write_text("#!/bin/sh\n")
        (place / "sbin/quickstart").chmod(0o755)
        self.saved("")

    def kernel(self, name: str, content: str) -> None:
        (self.boot / name).write_text(content)

    def write(self, text: str) -> None:
        """What the scripts before ours have written."""
        (self.boot / "grub/grub.cfg.new").write_text(HEADER + text)

    def installed(self, before: str = "", **settings: str) -> str:
        """As `build --image` installs the entry: it has looked at the menu ``before``, or at the menu of now."""
        menu = before or (self.boot / "grub/grub.cfg.new").read_text()
        wanted = settings.get("GRUB_DEFAULT", "0")
        wanted = self.name or "0" if wanted == "saved" else wanted
        stock = default_entry(f"set default='{wanted}'\n{menu}", b"")
        line = f"{stock.kernel} {stock.command_line}" if stock else "not understood"
        (self.boot / "quickstart/entry").write_text(f"{KERNEL}\n{LINE}\n{line}\n")
        return self.entry(QUICKSTART_RECORDS="yes", **settings)

    def saved(self, entry: str) -> None:
        """grub-editenv(1) lists the saved entry."""
        self.name = entry
        tool = self.place / "grub-editenv"
        tool.write_text(
            f"#!/bin/sh\n[ \"$*\" = '- list' ] && [ -z '{entry}' ] || echo 'saved_entry={entry}'\n"
        )
        tool.chmod(0o755)

    def entry(self, **settings: str) -> str:
        script = resources.files("quickstart.image.targets.disk").joinpath("42_quickstart").read_text()
        (self.place / "script").write_text(script.replace("/usr/share/grub/", f"{self.place}/grub/"))
        run = f'{BEGIN}exec sh "$1/script"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", run, "sh", str(self.place)],
            capture_output=True,
            env={"PATH": f"{self.place}:/usr/bin:/bin", **SETTINGS, **settings},
            timeout=60,
            check=True,
        )
        self.said = done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_the_entry_and_the_choice(disk: Disk) -> None:
    assert disk.installed() == disk.entry()
    text = disk.entry()
    assert "menuentry 'QuickStart' --class gnu-linux --id quickstart {\n" in text
    assert f"\tlinux {KERNEL} {LINE}\n\tinitrd /boot/quickstart/initramfs.img\n}}\n" in text
    assert "-a \"${default}\" = '0' ]; then\n" in text
    assert disk.said == f"Found QuickStart's initramfs for {KERNEL}\n"


def test_the_menu_of_a_real_disk(disk: Disk) -> None:
    """As bookworm's grub-mkconfig writes it, before our script runs."""
    text = (Path(__file__).parents[1] / "logs/bookworm.grub.cfg").read_text()
    before, _, behind = text.replace("/vmlinuz-6.1.0-56-cloud-amd64", KERNEL).partition(
        "### BEGIN /etc/grub.d/41"
    )
    assert "source" in behind
    (disk.boot / "grub/grub.cfg.new").write_text(before)
    assert disk.installed(), disk.said
    assert disk.installed() == disk.entry()


CHANGES = {
    "hardening": {"GRUB_CMDLINE_LINUX": "console=ttyS0 lockdown=confidentiality"},
    "off": {"GRUB_CMDLINE_LINUX_DEFAULT": "quickstart=off"},
    "default": {"GRUB_DEFAULT": "2"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_settings_of_grub(disk: Disk, name: str) -> None:
    assert disk.installed()
    assert disk.entry(**CHANGES[name]) == ""
    assert "no fast start, because" in disk.said
    assert disk.entry()


# The default entry, what the menu is when the entry is installed, and what it is later.
MENUS = {
    "first entry": ("0", STOCK + OWN, STOCK.replace("ro console", "ro audit=1 console") + OWN),
    "by its name": ("hardened", STOCK + OWN, STOCK + OWN.replace(" ro", " ro lockdown=confidentiality")),
    "by its title": ("Hardened", STOCK + OWN, STOCK + OWN.replace(KERNEL, "/boot/vmlinuz-5")),
    "by its number": ("1", STOCK + OWN, STOCK + OWN.replace(" ro", " ro quickstart=off")),
    "another first entry": ("0", STOCK, "menuentry 'Xen' {\n\tmultiboot2 /boot/xen.gz\n}\n" + STOCK),
    "another first entry in a line": ("0", STOCK, "menuentry 'EFI' { chainloader /x.efi }\n" + STOCK),
    "beside one whose class has its name": (
        "hardened",
        STOCK.replace("--class debian", "--class 'hardened'") + OWN,
        STOCK.replace("--class debian", "--class 'hardened'") + OWN.replace(" ro", " ro quickstart=off"),
    ),
    "a command": ("0", STOCK + OWN, "set lockdown=yes\n" + STOCK + OWN),
    "without the entry": ("hardened", STOCK + OWN, STOCK),
    "an open brace": ("0", STOCK + OWN, STOCK + OWN + "menuentry 'x' {\n"),
}


@pytest.mark.parametrize("name", MENUS)
def test_a_changed_default_entry(disk: Disk, name: str) -> None:
    default, before, after = MENUS[name]
    disk.write(before)
    assert f"= '{default}' ]; then" in disk.installed(GRUB_DEFAULT=default)
    assert disk.entry(GRUB_DEFAULT=default)
    disk.write(after)
    assert disk.entry(GRUB_DEFAULT=default) == ""
    assert "no fast start, because" in disk.said


# Which entry is the default one is known only in the machine, or from what comes after our script.
UNCLEAR = {
    "an entry of a later script": ("hardened", STOCK),
    "a number behind a condition": ("1", f"if [ $x = y ]; then\n{STOCK}fi\n{OWN}{STOCK}"),
    "a name in a condition": ("hardened", f"{STOCK}if [ $x = y ]; then\n{OWN}fi\n"),
    "a number that is too large": ("2", STOCK + OWN),
    "a brace that stays open": ("0", STOCK + "menuentry 'x' {\n"),
    "another file": ("0", "source $prefix/first.cfg\n" + STOCK),
    "another file, in a line": ("hardened", "if true; then configfile /x; fi\n" + STOCK + OWN),
    "a function with an entry": ("0", f"function more {{\n{OWN}}}\nmore\n{STOCK}"),
    "an entry in a condition of one line": (
        "0",
        f'if [ "$x" != no ]; then menuentry "R" {{ true; }}; fi\n{STOCK}',
    ),
    "an entry behind a command": ("0", f"true; menuentry 'R' {{\n\ttrue\n}}\n{STOCK}"),
    "a quoted command": ("0", f'"source" $prefix/own.cfg\n{STOCK}'),
    "a command of two parts": ("0", f"so\\urce $prefix/own.cfg\n{STOCK}"),
    "a command in a variable": ("0", f"set c=source\nif true; then $c /x; fi\n{STOCK}"),
    "a boot outside of entries": ("0", f"linux /x\nboot\n{STOCK}"),
    "a loop": ("0", f"for x in a b; do\n{OWN}done\n{STOCK}"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_default_entry_that_is_not_certain(disk: Disk, name: str) -> None:
    default, menu = UNCLEAR[name]
    disk.write(menu)
    assert disk.installed(GRUB_DEFAULT=default) == ""
    assert "it is not certain which entry" in disk.said


def test_settings_that_update_grub_has_not_seen(disk: Disk) -> None:
    """`build --image` has taken the options of the old grub.cfg, and calls update-grub only then."""
    disk.write(STOCK.replace("ro console", "ro lockdown=confidentiality console"))
    assert disk.installed(before=HEADER + STOCK) == ""
    assert "is not the one of which `build --image` has taken the options" in disk.said


# In the way of grub-mkconfig, both readers of the menu take the same entry; in another one, there is no fast start.
FORMS = {
    "an entry in one line": ("1", f"menuentry 'Reboot' {{ reboot }}\n{STOCK}{OWN}"),
    "two lines with a kernel": ("0", STOCK.replace("}\n", f"\tlinux {KERNEL} ro\n}}\n")),
    "a name that begins with a number": ("1-hardened", STOCK + OWN.replace("hardened", "1-hardened")),
    "in a submenu": ("old>0", STOCK + OLD),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_menu_of_another_form(disk: Disk, name: str) -> None:
    default, menu = FORMS[name]
    disk.write(menu)
    assert disk.installed(GRUB_DEFAULT=default) == ""


def test_a_condition_in_one_line(disk: Disk) -> None:
    """What comes after it counts."""
    hint = "\tif [ x$feature_platform_search_hint = xy ]; then true; fi\n\tinsmod"
    disk.write(STOCK.replace("\tinsmod", hint))
    assert disk.installed()
    disk.write(STOCK.replace("\tinsmod", hint).replace("insmod part_gpt", "insmod part_msdos"))
    assert disk.entry() == ""


def test_an_entry_in_a_comment(disk: Disk) -> None:
    disk.write(f"#menuentry 'Test' {{\n#}}\n# set default=1\n{STOCK}")
    assert disk.installed()


def test_a_file_that_comes_after_the_default_entry(disk: Disk) -> None:
    """As 41_custom has it."""
    disk.write(STOCK + "if [ -f  ${config_directory}/custom.cfg ]; then\n  source x\nfi\n" + OWN)
    assert disk.installed()
    assert disk.installed(GRUB_DEFAULT="hardened") == ""
    words = 'if [ "${next_entry}" ] ; then\n  echo "wait for it"\nfi\nset x="a ${y}"; export x\n'
    disk.write(words + STOCK + OLD.replace("Advanced", "Advanced options for Debian") + OWN)
    assert disk.installed(GRUB_DEFAULT="hardened")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("search --fs-uuid --set=root AAAA", "search --fs-uuid --set=root BBBB"),
        ("set root=(hd0,1)", "set root=(hd1,1)"),
    ],
)
def test_the_volume_of_an_own_entry(disk: Disk, before: str, after: str) -> None:
    """Only the system's own script names volumes that it has looked up itself."""
    own = OWN.replace("\tlinux", f"\t{before}\n\tlinux")
    text = f"{STOCK}### BEGIN /etc/grub.d/40_custom ###\n{own}"
    disk.write(text)
    assert disk.installed(GRUB_DEFAULT="hardened")
    disk.write(text.replace(before, after))
    assert disk.entry(GRUB_DEFAULT="hardened") == ""


def test_a_command_behind_the_name_of_the_disk(disk: Disk) -> None:
    text = STOCK.replace("\tlinux", "\tset root='hd0,gpt1'\n\tlinux")
    disk.write(text)
    assert disk.installed()
    disk.write(text.replace("gpt1'", "gpt1'; cutmem 1 2"))
    assert disk.entry() == ""


OTHERS = {
    "the name of the disk, and the language": STOCK_OF_SDA + OWN,
    "another entry": STOCK + OWN.replace(" ro", " ro quiet"),
    "an old kernel that is removed": STOCK,
    "the time that GRUB waits": STOCK + OWN,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_default_entry_does_not_depend_on(disk: Disk, name: str) -> None:
    disk.write(STOCK + OWN)
    assert disk.installed()
    disk.write(OTHERS[name])
    file = disk.boot / "grub/grub.cfg.new"
    file.write_text(file.read_text().replace("timeout=5", "timeout=1"))
    assert disk.entry()


def test_a_variable_in_the_default_entry(disk: Disk) -> None:
    disk.write(STOCK.replace("ro console", "ro $hardening console"))
    assert disk.installed() == ""
    assert "the default entry gives a variable to the kernel" in disk.said


def test_another_root_volume(disk: Disk) -> None:
    assert disk.installed()
    assert disk.entry(GRUB_DEVICE_UUID="22222222-2222-3333-4444-555555555555") == ""
    assert "the root volume is another one" in disk.said
    assert disk.entry(GRUB_DEVICE_UUID="") == ""


@pytest.mark.parametrize("name", ["vmlinuz-6.1.0-29-cloud-amd64", "vmlinuz-6.12.1-amd64", "kernel-6.12.1"])
def test_a_newer_kernel(disk: Disk, name: str) -> None:
    assert disk.installed()
    disk.kernel(name, "other")
    assert disk.entry() == ""


def test_a_kernel_of_the_same_name(disk: Disk) -> None:
    assert disk.installed()
    disk.kernel("vmlinuz-6.1.0-28-cloud-amd64", "second")
    assert disk.entry() == ""
    assert "the kernel or the settings of GRUB have changed" in disk.said


def test_a_saved_entry(disk: Disk) -> None:
    assert "\"${default}\" = '' ]; then" in disk.installed(GRUB_DEFAULT="saved")
    disk.saved("gnulinux-simple-1")
    assert "\"${default}\" = 'gnulinux-simple-1' ]; then" in disk.installed(GRUB_DEFAULT="saved")
    disk.saved("gnulinux-advanced-1>gnulinux-2")
    assert disk.entry(GRUB_DEFAULT="saved") == ""


def test_users_of_grub(disk: Disk) -> None:
    """The entry needs a password where the default entry needs one."""
    free = "menuentry 'Memory test' --unrestricted {\n\tlinux /boot/memtest\n}\n"
    disk.write(STOCK.replace("--class debian", "--class debian --unrestricted"))
    assert "menuentry 'QuickStart' --class gnu-linux --unrestricted --id quickstart {\n" in disk.installed()
    disk.write(free + STOCK)
    assert "menuentry 'QuickStart' --class gnu-linux --id quickstart {\n" in disk.installed(GRUB_DEFAULT="1")
    for header in ("${menuentry_id_option} 'own' --unrestricted", "--class debian\t--unrestricted\t--id x"):
        disk.write(STOCK.replace("$menuentry_id_option 'gnulinux-simple-1'", header))
        assert " --unrestricted --id quickstart {\n" in disk.installed()


@pytest.mark.parametrize("name", ["quickstart/initramfs.img", "quickstart/entry", "quickstart/settings"])
def test_without_one_of_its_files(disk: Disk, name: str) -> None:
    assert disk.installed()
    (disk.boot / name).unlink()
    assert disk.entry() == ""


def test_settings_that_are_lost(disk: Disk) -> None:
    assert disk.installed()
    (disk.boot / "quickstart/settings").write_text("")
    assert disk.entry() == ""
    assert "settings is empty or missing" in disk.said
