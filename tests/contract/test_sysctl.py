"""Init makes the same kernel settings as systemd-sysctl(8). Both write into a directory of ours in place of /proc/sys."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path, PurePosixPath

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces
from quickstart.initramfs.guestconfig import settings_text
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import KernelSetting, content_sums, kernel_settings
from tests.unit.test_sysctl import deliver

SYSTEMD_SYSCTL = "/usr/lib/systemd/systemd-sysctl"
SECONDS = 60.0
INIT = resources.files("quickstart.initramfs").joinpath("init")
KEYS = (
    *("a/b", "a/c", "a/d", "a/e.f", "kernel/x", "kernel/y", "kernel/z", "kernel/modules_disabled", "vm/v-1"),
    *(f"net/ipv4/conf/{name}/rp_filter" for name in ("all", "default", "eth0", "eth0.7", "lo")),
    *(f"net/ipv6/conf/{name}/use_tempaddr" for name in ("all", "default", "eth0")),
)
FILES = {
    "etc/sysctl.d/10-a.conf": (
        "# no\n ; no\na.b = 1\na.c=2\r\nnot an assignment\n-a.d = -n\n  kernel/x =  two  words \nkernel.absent=1\n"
    ),
    "etc/sysctl.d/20-masked.conf": "",
    "usr/lib/sysctl.d/20-masked.conf": "a.b = masked\n",
    "usr/local/lib/sysctl.d/30-glob.conf": (
        "net.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\nnet.ipv4.conf.default.rp_filter=1\n"
    ),
    "usr/lib/sysctl.d/30-glob.conf": "net.ipv4.conf.lo.rp_filter=9\n",
    "usr/lib/sysctl.d/40-p.conf": (
        "a/e.f = \\x41 $(x) 'q' \"r\"\nkernel.y=\nnet/ipv4/conf/eth0.7/rp_filter = 7\n/kernel//./z/=3\na.b=\n"
        "/../../evil = 1\n/../../*/evil = 1\n= 5\nvm.v-1==6\n"
        "net.ipv6.conf.[ae]*.use_tempaddr=2\nnet.ipv6.conf.eth[!1].use_tempaddr = 0\n"
    ),
    "usr/lib/sysctl.d/50-again.conf": "a.b = 4\nkernel.z = 3\n",
    "usr/lib/sysctl.d/.hidden.conf": "a.c = hidden\n",
    "usr/lib/sysctl.d/60-not.conf.bak": "a.c = not\n",
}


def written(base: Path) -> dict[str, str]:
    return {str(path.relative_to(base)): path.read_text() for path in base.rglob("*") if path.is_file()}


def unset_tree(base: Path) -> Path:
    for key in KEYS:
        (base / key).parent.mkdir(parents=True, exist_ok=True)
        # Nothing is cut off before it is written to, and systemd leaves alone what is as it is to be.
        (base / key).write_text("?")
    return base


@pytest.fixture
def image(tmp_path: Path) -> Path:
    image = tmp_path / "image"
    for name, text in FILES.items():
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).write_text(text, newline="")
    (image / "etc/sysctl.conf").write_text("a.c = from the link\n")
    (image / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    (image / "etc/sysctl.d/50-again.conf").symlink_to("/dev/null")
    (image / "etc/sysctl.d/70-dir.conf").mkdir()
    deliver(image, *image.glob("usr/lib/sysctl.d/*.conf"))
    return image


def by_systemd(image: Path, settings: Path) -> dict[str, str]:
    assert Path(SYSTEMD_SYSCTL).exists(), "apt-get install systemd"
    places = [("etc", "/etc"), ("usr/local/lib", "/usr/local/lib"), ("usr/lib/sysctl.d", "/usr/lib/sysctl.d")]
    binds = "".join(f"mount --bind {image}/{name} {place}\n" for name, place in places)
    script = (
        f"set -e\n{binds}mount -t proc proc /proc\nmount --bind {settings} /proc/sys\n{SYSTEMD_SYSCTL} || :"
    )
    subprocess.run([*own_namespaces(), "sh", "-c", script], check=True, capture_output=True, timeout=SECONDS)
    return written(settings)


def by_init(
    image: Path, settings: Path, shell: tuple[str, ...], more: Iterable[KernelSetting] = ()
) -> tuple[dict[str, str], str]:
    second = resources.files("quickstart.initramfs").joinpath("init", "second").read_text()
    function = re.search(r"^setting\(\) \{.*?^\}", second, re.MULTILINE | re.DOTALL)
    assert function
    text = settings_text((*kernel_settings(ImageRoot(image)), *more))
    script = f'note() {{ echo "$*"; }}\nAT={image} Q={INIT}\n{function[0]}\n{text}'
    script = script.replace("/proc/sys", str(settings))
    done = subprocess.run(
        [*shell, "-euc", script], check=True, capture_output=True, text=True, timeout=SECONDS
    )
    return written(settings), done.stdout


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
def test_init_sets_what_systemd_would(image: Path, tmp_path: Path, shell: tuple[str, ...]) -> None:
    theirs = by_systemd(image, unset_tree(tmp_path / "theirs"))
    ours, said = by_init(image, unset_tree(tmp_path / "ours"), shell)
    assert theirs["a/c"] == "from the link\n"
    assert theirs["net/ipv4/conf/eth0/rp_filter"] == "2\n"
    assert ours == theirs
    assert said.splitlines() == ["kernel/absent is left to systemd-sysctl"]


HIDDEN = (
    "# no = 1\n ;a.c=no\n\n\t a.c \t=\t two  words \t\n-  kernel.y=\nkernel/z = a=b ; # $(x) `y` 'q' \"r\" \\\\n *\nvm.v-1==6\n"
    "kernel.absent = 1\n-a.d=-n"
)


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
def test_a_file_that_not_all_may_read(tmp_path: Path, shell: tuple[str, ...]) -> None:
    """Init reads it on the volume: what is in it is not in the archive."""
    image = tmp_path / "image"
    for name in ("etc/sysctl.d", "usr/lib/sysctl.d", "usr/local/lib"):
        (image / name).mkdir(parents=True)
    (image / "etc/sysctl.d/10-a.conf").write_text("a.b=1\n")
    (image / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    (image / "etc/sysctl.conf").write_text(HIDDEN)
    (image / "etc/sysctl.conf").chmod(0o440)
    text = settings_text(kernel_settings(ImageRoot(image)))
    assert text == "setting a/b 1\n. $Q/settings-of\nsettings_of /etc/sysctl.conf\n"
    theirs = by_systemd(image, unset_tree(tmp_path / "theirs"))
    ours, said = by_init(image, unset_tree(tmp_path / "ours"), shell)
    assert theirs["kernel/z"].startswith("a=b ; # $(x)")
    assert ours == theirs
    assert said.splitlines() == ["kernel/absent is left to systemd-sysctl"]


def sums_of(image: Path, more: Iterable[str], shell: tuple[str, ...]) -> tuple[bytes, bytes]:
    """What the build lists of the packages' files, and what init finds."""
    expected = content_sums(ImageRoot(image), map(PurePosixPath, more))
    with tempfile.NamedTemporaryFile() as sums:
        sums.write(expected)
        sums.flush()
        script = str(resources.files("quickstart.initramfs").joinpath("init", "settings-files"))
        done = subprocess.run(
            [*shell, script, str(image), sums.name], check=True, capture_output=True, timeout=SECONDS
        )
    assert done.stderr == b""
    return expected, done.stdout


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
def test_the_contents_of_packages_files_as_init_lists_them(image: Path, shell: tuple[str, ...]) -> None:
    """As built and in the machine. What the administrator masks does not count."""
    (image / "usr/lib/tmpfiles.d").mkdir()
    (image / "usr/lib/tmpfiles.d/ksm.conf").write_text("w /sys/kernel/mm/ksm/run - - - - 1\n")
    (image / "usr/lib/sysctl.d/80-link.conf").symlink_to("/etc/sysctl.conf")
    (image / "usr/lib/sysctl.d/90 odd.txt").write_text("a.b=1\n")
    expected, found = sums_of(image, ["/usr/lib/tmpfiles.d/ksm.conf"], shell)
    assert found == expected
    assert [line.split("  ")[1] for line in found.decode().splitlines()] == [
        "usr/lib/sysctl.d/40-p.conf",
        "usr/lib/tmpfiles.d/ksm.conf",
        # It has none.
        "sbin/init",
    ]


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
def test_a_masked_service_makes_no_difference_to_the_list(image: Path, shell: tuple[str, ...]) -> None:
    """Init does not know about it: with a shorter list of the build's, each boot would be a stock one."""
    before, _ = sums_of(image, (), shell)
    (image / "etc/systemd/system").mkdir(parents=True)
    (image / "etc/systemd/system/systemd-sysctl.service").symlink_to("/dev/null")
    assert sums_of(image, (), shell) == (before, before)


def test_an_image_without_files_of_packages(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    for shell in (("dash",), ("busybox", "sh")):
        assert sums_of(tmp_path, (), shell) == (b"OTHER  sbin/init\n", b"OTHER  sbin/init\n")
    (tmp_path / "usr/sbin").mkdir()
    (tmp_path / "usr/sbin/init").symlink_to("../lib/systemd/systemd")
    for shell in (("dash",), ("busybox", "sh")):
        assert sums_of(tmp_path, (), shell) == (b"", b"")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        # An upgrade that writes the same, at another time and as another inode.
        ("cp {0}/40-p.conf {0}/x; mv {0}/x {0}/40-p.conf; touch -d 2001-01-01 {0}/40-p.conf", ""),
        ("echo kernel.x=2 >>{0}/40-p.conf", "/usr/lib/sysctl.d/40-p.conf"),
        ("rm {0}/40-p.conf", "/usr/lib/sysctl.d/40-p.conf"),
        # A package that was installed later, and one that has none to say.
        ("echo user.max_user_namespaces=0 >{0}/10-hardening.conf", "/usr/lib/sysctl.d/10-hardening.conf"),
        ("echo >{0}/README", ""),
        ("echo a.b=1 >{0}/50-again.conf", ""),
        ("rm {0}/../tmpfiles.d/ksm.conf", "/usr/lib/tmpfiles.d/ksm.conf"),
    ],
)
def test_other_settings_of_packages_are_a_stock_boot(
    image: Path, tmp_path: Path, change: str, named: str
) -> None:
    """Some are taken only once, so it would be too late when systemd-sysctl makes them."""
    (image / "usr/lib/tmpfiles.d").mkdir()
    (image / "usr/lib/tmpfiles.d/ksm.conf").write_text("w /sys/kernel/mm/ksm/run - - - - 1\n")
    sums = content_sums(ImageRoot(image), [PurePosixPath("/usr/lib/tmpfiles.d/ksm.conf")])
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "packed.settings").write_bytes(sums)
    script = resources.files("quickstart.initramfs").joinpath("init", "settings-files").read_bytes()
    (ours / "settings-files").write_bytes(script)
    (ours / "busybox").symlink_to(door.tool_path("busybox"))
    subprocess.run(["sh", "-ec", change.format(image / "usr/lib/sysctl.d")], check=True, timeout=SECONDS)
    first = resources.files("quickstart.initramfs").joinpath("init", "first").read_text()
    function = re.search(r"^contents_as_packed\(\) \{.*?^\}", first, re.MULTILINE | re.DOTALL)
    assert function
    text = function[0].replace("/newroot", str(image)).replace("/run/", f"{ours}/found.")
    script_text = f'Q={ours} STALE=\n{text}\ncontents_as_packed || echo "$STALE"'
    done = subprocess.run(
        ["busybox", "sh", "-c", script_text], check=True, capture_output=True, timeout=SECONDS
    )
    said = done.stdout.decode().strip()
    assert (said, done.stderr) == (f"{named} is not as it was packed" if named else "", b"")


def test_the_settings_are_made_before_the_sockets_and_the_application() -> None:
    script = resources.files("quickstart.initramfs").joinpath("init", "second").read_text()
    prepare = script.partition("\nprepare() {\n")[2].partition("\n}\n")[0]
    assert prepare.splitlines()[-1] == "\t. $Q/settings"
    calls = [line.strip() for line in script.splitlines()]
    steps = ("prepare", "bind_sockets", "start_application")
    assert [line for line in calls if line in steps] == [*steps]


def test_kernel_modules_are_locked_by_systemd_alone(image: Path, tmp_path: Path) -> None:
    (image / "etc/sysctl.d/10-a.conf").write_text("kernel.modules_disabled = 1\nkernel.x = 1\n")
    ours, said = by_init(image, unset_tree(tmp_path / "ours"), ("busybox", "sh"))
    assert (ours["kernel/modules_disabled"], ours["kernel/x"]) == ("?", "1\n")
    assert "kernel/modules_disabled is left to systemd-sysctl" in said


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
def test_what_tmpfiles_d_writes(image: Path, tmp_path: Path, shell: tuple[str, ...]) -> None:
    """As systemd-tmpfiles does it: without the end of a line."""
    place = unset_tree(tmp_path / "ours")
    keys = [(f"{place}/net/ipv4/conf/eth*/rp_filter", "a  b"), (f"{place}/absent", "1"), ("a/b", "9")]
    more = [KernelSetting(key, value, False) for key, value in keys]
    ours, said = by_init(image, place, shell, more)
    assert [ours[f"net/ipv4/conf/{name}/rp_filter"] for name in ("eth0", "eth0.7")] == ["a  b", "a  b"]
    assert ours["a/b"] == "9\n"
    assert "\nabsent is left to systemd-tmpfiles\n" in said
