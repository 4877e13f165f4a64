"""sysctl.d(5) of an image, by the rules of systemd-sysctl(8); tests/contract/test_sysctl.py compares with the real one."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.guestconfig import settings_text
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.before import settling_files
from quickstart.inspect.unit.sysctl import KernelSetting, content_sums, kernel_settings


def settings_of(base: Path, **files: str) -> tuple[KernelSetting, ...]:
    """Of files ``etc_NAME``, ``local_NAME`` and ``usr_NAME``."""
    places = {"etc": "etc", "local": "usr/local/lib", "usr": "usr/lib"}
    for name, text in files.items():
        place, _, stem = name.partition("_")
        path = base / places[place] / f"sysctl.d/{stem}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    deliver(base, *sorted(base.glob("usr/lib/sysctl.d/*")))
    return kernel_settings(ImageRoot(base))


def deliver(base: Path, *files: Path) -> None:
    """Make the files those of a package of the image."""
    info = base / "var/lib/dpkg/info"
    info.mkdir(parents=True, exist_ok=True)
    status = "Package: app\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n"
    (base / "var/lib/dpkg/status").write_text(status)
    names = [str(file.relative_to(base)) for file in files if file.is_file() and not file.is_symlink()]
    (info / "app.list").write_text("".join(f"/{name}\n" for name in ("", *names)))
    sums = (
        (hashlib.md5((base / name).read_bytes(), usedforsecurity=False).hexdigest(), name) for name in names
    )
    (info / "app.md5sums").write_text("".join(f"{digest}  {name}\n" for digest, name in sums))


def pairs(found: tuple[KernelSetting, ...]) -> list[tuple[str, str]]:
    return [(each.key, each.value) for each in found]


def test_a_file_that_no_package_has_is_the_administrator_s(tmp_path: Path) -> None:
    """Or one that was changed: an image's maker has put it there, and no upgrade writes it anew."""
    settings_of(tmp_path, usr_10="a.b=1\n", usr_20="c.d=1\n", usr_30="e.f=1\n")
    own = tmp_path / "usr/lib/sysctl.d"
    (own / "20.conf").write_text("c.d=2\n")
    deliver(tmp_path, own / "10.conf")
    root = ImageRoot(tmp_path)
    found = {each.key: each.is_packages for each in kernel_settings(root)}
    assert found == {"a/b": True, "c/d": False, "e/f": False}
    watched = {path.name for path in settling_files(root) if path.is_relative_to("/usr/lib/sysctl.d")}
    assert watched == {"20.conf", "30.conf"}


def test_an_image_without_any_has_none(tmp_path: Path) -> None:
    assert settings_of(tmp_path) == ()
    assert settings_text(()) == ""


def test_the_last_of_a_key_counts_in_the_order_of_the_files_names(tmp_path: Path) -> None:
    found = settings_of(tmp_path, usr_90="a.b=usr\n", etc_10="a.b=etc\nc.d=1\n", local_50="c.d=2\n")
    assert pairs(found) == [("c/d", "2"), ("a/b", "usr")]
    assert [each.is_packages for each in found] == [False, True]


def test_of_two_files_with_one_name_the_administrator_s_counts(tmp_path: Path) -> None:
    assert pairs(settings_of(tmp_path, usr_50="a.b=1\n", local_50="a.b=2\n", etc_50="")) == []
    (tmp_path / "etc/sysctl.d/50.conf").unlink()
    assert pairs(kernel_settings(ImageRoot(tmp_path))) == [("a/b", "2")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kernel.pid_max = 5", ("kernel/pid_max", "5")),
        ("-kernel.pid_max=5", ("kernel/pid_max", "5")),
        ("net/ipv4/conf/eth0.7/forwarding=1", ("net/ipv4/conf/eth0.7/forwarding", "1")),
        ("net.ipv4.conf.eth0/7.forwarding=1", ("net/ipv4/conf/eth0.7/forwarding", "1")),
        ("/vm//./x/ = a=b", ("vm/x", "a=b")),
        ("a.b =", ("a/b", "")),
        ("a.b = x\r", ("a/b", "x")),
        ("a.b = \udcff", ("a/b", "\udcff")),
    ],
)
def test_a_line(tmp_path: Path, line: str, expected: tuple[str, str]) -> None:
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.d/a.conf").write_bytes(line.encode(errors="surrogateescape"))
    assert pairs(kernel_settings(ImageRoot(tmp_path))) == [expected]


@pytest.mark.parametrize(
    "line", ["# a=b", "; a=b", "a.b", "= 5", "/../x = 1", "a/../../x=1", "/../*/x=1", "-a.b"]
)
def test_a_line_that_sets_nothing(tmp_path: Path, line: str) -> None:
    assert settings_of(tmp_path, etc_a=f"{line}\n") == ()


def test_a_pattern_spares_what_is_set_or_left_out_by_name(tmp_path: Path) -> None:
    text = "n.*.f=2\n-n.all.f\nn.lo.f=1\nn.lo.g=1\nn.lo.deep.f=1\n-n.x*.f\n"
    found = settings_of(tmp_path, etc_a=text)
    assert found[0] == KernelSetting("n/*/f", "2", False, ("n/all/f", "n/lo/f"))
    assert found[1] == KernelSetting("n/lo/f", "1", False)


def test_what_the_administrator_says_too_is_his(tmp_path: Path) -> None:
    assert not settings_of(tmp_path, usr_10="a.b=1\n", etc_20="a.b=1\n")[0].is_packages
    assert not settings_of(tmp_path, etc_05="a.b=1\n")[0].is_packages


def test_settings_that_not_all_may_read_are_read_by_init(tmp_path: Path) -> None:
    """The archive is readable by whoever may read OUT, and behind the application's start some settings would come too late."""
    settings_of(
        tmp_path,
        etc_10="n.a.f=1\nk.z=1\n",
        etc_20="# x\nk.x=secret\n-k.y = secret\nk.z=secret\n",
        etc_30="a.b=1\n",
    )
    (tmp_path / "etc/sysctl.d/20.conf").chmod(0o440)
    found = kernel_settings(ImageRoot(tmp_path))
    assert pairs(found) == [("n/a/f", "1"), ("k/x", ""), ("k/y", ""), ("k/z", ""), ("a/b", "1")]
    assert settings_text(found) == (
        "setting n/a/f 1\n. $Q/settings-of\nsettings_of /etc/sysctl.d/20.conf\nsetting a/b 1\n"
    )
    assert "secret" not in repr(found)
    # Who asks about the rest of a boot is told of their values, too.
    later = kernel_settings(ImageRoot(tmp_path), with_hidden=True)
    assert ("k/x", "secret") in pairs(later)


def test_settings_in_a_closed_directory_are_read_by_init(tmp_path: Path) -> None:
    settings_of(tmp_path, etc_10="n.a.f=secret\n", usr_20="k.x=1\n")
    (tmp_path / "etc/sysctl.d").chmod(0o700)
    assert settings_text(kernel_settings(ImageRoot(tmp_path))) == (
        ". $Q/settings-of\nsettings_of /etc/sysctl.d/10.conf\nsetting k/x 1\n"
    )


@pytest.mark.parametrize("place", ["usr/lib/sysctl.d/20.conf", "opt/20.conf"])
def test_a_hidden_file_that_is_not_compared_is_refused(tmp_path: Path, place: str) -> None:
    """A list of digests would tell who guesses a secret that he is right."""
    settings_of(tmp_path, usr_10="k.x=1\n", etc_10="k.y=1\n")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("a.b=secret\n")
    (tmp_path / place).chmod(0o600)
    (tmp_path / "etc/sysctl.d/90.conf").symlink_to(f"/{place}")
    with pytest.raises(UnsupportedUnitError, match=f"/{place} has kernel settings"):
        kernel_settings(ImageRoot(tmp_path))


def test_a_hidden_file_without_settings(tmp_path: Path) -> None:
    settings_of(tmp_path, etc_20="# *\x07\n;\n")
    (tmp_path / "etc/sysctl.d/20.conf").chmod(0o600)
    assert kernel_settings(ImageRoot(tmp_path)) == ()


@pytest.mark.parametrize(
    ("hidden", "before", "after"),
    [
        # Another file has a word on it.
        ("k.x=secret\n", "", "k.x=2\n"),
        ("k.x=secret\n", "", "-k.x\n"),
        ("k.x=secret\n", "", "k.x=\n"),
        ("k.x=secret\n", "k.x=secret\n", ""),
        ("n.a.f=secret\n", "n.*.f=1\n", ""),
        # What init's shell would read otherwise than systemd, or not at once.
        ("n.*.f=secret\n", "", ""),
        ("k.x=secret\n-k.y\n", "", ""),
        ("net.ipv4.conf.eth0/7.f=secret\n", "", ""),
        ("k/../x=secret\n", "", ""),
        ("/k/x=secret\n", "", ""),
        ("k..x=secret\n", "", ""),
        ("k.x=secret\r\n", "", ""),
        ("k.x=secret\0\n", "", ""),
        ("k.x=secr\u00e9t\n", "", ""),
        ("k.x=1\nsecret\n", "", ""),
        ("k.x=secret\n" + "#\n" * 8192, "", ""),
    ],
)
def test_a_hidden_file_that_init_would_read_otherwise_is_refused(
    tmp_path: Path, hidden: str, before: str, after: str
) -> None:
    settings_of(tmp_path, etc_10=before, etc_20="", etc_30=after)
    (tmp_path / "etc/sysctl.d/20.conf").write_text(hidden, newline="")
    (tmp_path / "etc/sysctl.d/20.conf").chmod(0o600)
    with pytest.raises(
        UnsupportedUnitError, match=r"/etc/sysctl\.d/20\.conf has kernel settings that not all"
    ) as caught:
        kernel_settings(ImageRoot(tmp_path))
    assert "secr" not in f"{caught.value} {caught.value.hint}"


def test_the_contents_of_packages_files(tmp_path: Path) -> None:
    """A file in the place of which the administrator has another one has nothing to say."""
    settings_of(tmp_path, usr_10="a.b=1\n", usr_20="a.b=2\n", local_20="", etc_30="a.b=3\n")
    root, more = ImageRoot(tmp_path), PurePosixPath("/usr/lib/x.conf")
    (tmp_path / "usr/lib/x.conf").write_text("")
    named = [line.split(b"  ")[1] for line in content_sums(root, [more]).splitlines()]
    # The last one because it has none.
    assert named == [b"usr/lib/sysctl.d/10.conf", b"usr/lib/x.conf", b"sbin/init"]


@pytest.mark.parametrize("name", ["a b", "a\nb", "\\a", "\udcff"])
def test_a_name_that_a_list_of_sums_would_escape(tmp_path: Path, name: str) -> None:
    (tmp_path / "usr/lib/sysctl.d").mkdir(parents=True)
    (tmp_path / f"usr/lib/sysctl.d/{name}.conf").write_text("a.b=1\n")
    with pytest.raises(UnsupportedUnitError, match="is no plain name"):
        content_sums(ImageRoot(tmp_path), [])


@pytest.mark.parametrize(
    ("place", "text", "is_left"),
    [
        ("etc/systemd/system/systemd-sysctl.service", None, True),
        ("etc/systemd/system/systemd-sysctl.service", "[Service]\nExecStart=/bin/true\n", True),
        ("usr/lib/systemd/system/systemd-sysctl.service", "[Service]\nExecStart=/x\n", False),
        ("etc/systemd/system/systemd-sysctl.service.d/a.conf", "[Unit]\nConditionVirtualization=no\n", True),
        ("usr/lib/systemd/system/systemd-.service.d/a.conf", "[Service]\nExecStart=\n", True),
        ("etc/systemd/system/service.d/a.conf", "[Service]\nLimitCORE=0\n", False),
    ],
)
def test_where_systemd_sysctl_is_masked_or_changed_nothing_is_set(
    tmp_path: Path, place: str, text: str | None, is_left: bool
) -> None:
    """What the stock boot never sets would stay for the machine's life."""
    (tmp_path / place).parent.mkdir(parents=True)
    if text is None:
        (tmp_path / place).symlink_to("/dev/null")
    else:
        (tmp_path / place).write_text(text)
    assert (settings_of(tmp_path, etc_10="k.x=1\n") == ()) is is_left


def test_links_are_followed_inside_the_image(tmp_path: Path) -> None:
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.conf").write_text("a.b=1\n")
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    (tmp_path / "etc/sysctl.d/98-away.conf").symlink_to("/nowhere")
    (tmp_path / "etc/sysctl.d/97-dir.conf").mkdir()
    assert pairs(kernel_settings(ImageRoot(tmp_path))) == [("a/b", "1")]


def test_more_than_a_mebibyte_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedUnitError, match=r"the last read is /etc/sysctl\.d/b\.conf"):
        settings_of(tmp_path, etc_a="#" * (1 << 19), etc_b="#" * (1 << 20))


def test_no_value_is_anything_but_a_word_for_the_shell() -> None:
    found = (
        KernelSetting("kernel/x", "'; reboot; $(x) `y`", True),
        KernelSetting("n/*/f", "1", False, ("n/a/f",)),
    )
    assert settings_text(found) == ("setting kernel/x ''\"'\"'; reboot; $(x) `y`'\nsetting 'n/*/f' 1 n/a/f\n")
