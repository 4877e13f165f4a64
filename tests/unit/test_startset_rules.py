"""The rules of the start set: what a glob matches, what excludes a file, and what a profile includes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import cast

import pytest

from quickstart.engines.boot import rules_of
from quickstart.errors import StartSetError
from quickstart.initramfs.serving import without_hidden
from quickstart.inspect import script
from quickstart.inspect.globs import matches
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.model import Op, Profile, ReferenceImage
from quickstart.pack import startset
from tests.unit.acl import hide_from_somebody
from tests.unit.elfbuilder import MULTIARCH, elf
from tests.unit.imagebuilder import RULES, Image, P, excluded, files, links, reasons, rules

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----\n"

# ---------------------------------------------------------------- globs


@pytest.mark.parametrize(
    ("path", "glob", "expected"),
    [
        ("/etc/a", "/etc/a", True),
        ("/etc/a/b", "/etc/a", True),
        ("/etc/ab", "/etc/a", False),
        ("/etc/a", "/etc/a/b", False),
        ("/etc/a/b", "/etc/*", False),
        ("/etc/a", "/etc/*", True),
        ("/etc/.a", "/etc/*", True),
        ("/etc/a/b", "/etc/**", True),
        ("/etc", "/etc/**", False),
        ("/etc/a/b/c.so", "/etc/**/*.so", True),
        ("/etc/ab", "/etc/a?", True),
        ("/etc/a/", "/etc/a?", False),
        ("/etc/ab", "/etc/a[bc]", True),
        ("/etc/ad", "/etc/a[bc]", False),
        ("/etc/ad", "/etc/a[!bc]", True),
        ("/etc/a*", "/etc/a[*]", True),
        ("/etc/ab", "/etc/a[*]", False),
        ("/etc/a[", "/etc/*[", True),
        ("/etc/a.b+c", "/etc/?.b+c", True),
        ("/etc/axb+c", "/etc/?.b+c", False),
        ("/etc/a\nb", "/etc/a?b", True),
        ("/x/etc/a", "/etc/*", False),
        ("/etc/a.key.old", "/etc/*.key", False),
    ],
)
def test_matches(path: str, glob: str, expected: bool) -> None:
    assert matches(P(path), glob) is expected


# ---------------------------------------------------------------- what is kept out


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/var/lib/app/db", "data: /var/**"),
        ("/etc/shadow", "secret: /etc/shadow*"),
        ("/etc/shadow-", "secret: /etc/shadow*"),
        ("/etc/gshadow", "secret: /etc/gshadow*"),
        ("/etc/ssh/ssh_host_rsa_key", "secret: /etc/ssh/ssh_host_*_key"),
        ("/etc/ssl/private/a/b.key", "secret: /etc/ssl/private/**"),
    ],
)
def test_kept_out_by_name(image: Image, path: str, rule: str) -> None:
    image.file(path)
    found = image.compute(path, "/etc/app.conf")
    assert files(found) == ["/etc/app.conf"]
    assert excluded(found) == {path: rule}


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_setuid_files_stay_out(image: Image, mode: int) -> None:
    image.file("/usr/bin/su", elf(["liba.so.1"]), mode)
    found = image.compute((Op.EXEC, "/usr/bin/su"))
    assert (files(found), list(excluded(found))) == ([], ["/usr/bin/su"])
    assert excluded(found)["/usr/bin/su"].startswith("setuid")


def test_what_is_not_for_everybody_stays_out_unless_named(image: Image) -> None:
    image.file("/etc/app/.htpasswd", "me:$apr1$x", 0o640)
    found = image.compute("/etc/app/.htpasswd")
    assert excluded(found) == {"/etc/app/.htpasswd": "secret: not readable by all"}


@pytest.mark.parametrize("kind", ["", "RSA ", "OPENSSH ", "EC ", "ENCRYPTED "])
def test_private_keys_stay_out_wherever_they_are(image: Image, kind: str) -> None:
    image.file("/etc/app.pem", "cert\n" + KEY.replace("RSA ", kind))
    assert excluded(image.compute("/etc/app.pem")) == {"/etc/app.pem": "secret: it holds a private key"}


def test_a_library_that_knows_the_marker_of_a_key_is_no_secret(image: Image) -> None:
    marker = b"-----BEGIN OPENSSH PRIVATE KEY-----"
    image.file("/usr/lib/libssh2.so.1", elf(soname="libssh2.so.1") + marker + b"\0" + marker + b"\n\0x")
    assert files(image.compute("/lib/libssh2.so.1")) == ["/usr/lib/libssh2.so.1"]


def test_secrets_that_the_profile_names_are_packed(image: Image) -> None:
    image.file("/etc/ssl/private/app.key", KEY)
    image.file("/etc/ssl/private/other.key", KEY)
    opened = ("/etc/ssl/private/app.key", "/etc/ssl/private/other.key")
    found = image.compute(*opened, rules=rules(secrets=("/etc/ssl/private/app.*",)))
    assert files(found) == ["/etc/ssl/private/app.key"]
    assert list(excluded(found)) == ["/etc/ssl/private/other.key"]


def test_exclude_and_data_go_by_the_canonical_path(image: Image) -> None:
    image.file("/var/lib/real", "x")
    image.link("/etc/link", "/var/lib/real")
    found = image.compute(
        "/etc/link", "/lib64/ld-linux-x86-64.so.2", rules=rules(exclude=(f"{MULTIARCH}/*",))
    )
    assert files(found) == []
    assert excluded(found) == {
        f"{MULTIARCH}/ld-linux-x86-64.so.2": f"exclude: {MULTIARCH}/*",
        "/var/lib/real": "data: /var/**",
    }
    assert links(found) == []


def test_a_file_that_is_no_regular_one_stays_out(image: Image) -> None:
    os.mkfifo(image.base / "etc/fifo")
    assert excluded(image.compute("/etc/fifo")) == {"/etc/fifo": "kind: not a regular file"}


# ---------------------------------------------------------------- include


def test_include_overrides_data_but_not_exclude_or_secrets(image: Image) -> None:
    image.file("/var/lib/app/a", "a")
    image.file("/var/lib/app/b", "b")
    image.file("/var/lib/app/key", KEY)
    found = image.compute(rules=rules(include=("/var/lib/app",), exclude=("/var/lib/app/b",)))
    assert files(found) == ["/var/lib/app/a"]
    assert reasons(found, "/var/lib/app/a") == [("rule", "include: /var/lib/app")]
    assert excluded(found) == {
        "/var/lib/app/b": "exclude: /var/lib/app/b",
        "/var/lib/app/key": "secret: it holds a private key",
    }


def test_a_traced_data_file_that_is_included_is_not_listed_as_kept_out(image: Image) -> None:
    image.file("/var/lib/app/a", "a")
    found = image.compute("/var/lib/app/a", rules=rules(include=("/var/lib/app/a",)))
    assert (files(found), excluded(found)) == (["/var/lib/app/a"], {})


def test_an_included_program_brings_what_it_needs(image: Image) -> None:
    found = image.compute(rules=rules(include=("/bin/ap?",)))
    assert f"{MULTIARCH}/liba.so.1.2" in files(found)
    assert f"{MULTIARCH}/liba.so.1" in links(found)


def test_an_included_script_brings_its_interpreter(image: Image) -> None:
    image.file("/usr/share/app/run", "#!/bin/app\n", 0o755)
    found = image.compute(rules=rules(include=("/usr/share/app/run",)))
    assert reasons(found, "/usr/bin/app") == [("script", "#! of /usr/share/app/run")]
    assert f"{MULTIARCH}/liba.so.1.2" in files(found)


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("/usr/share/*", [".h", "a/.h", "a/b/x.so", "a/b/y", "a/x.so", "z.so"][1:]),
        ("/usr/share/**", [".h", "a/.h", "a/b/x.so", "a/b/y", "a/x.so", "z.so"]),
        ("/usr/share/**/*.so", ["a/b/x.so", "a/x.so"]),
        ("/usr/share/**.so", ["a/b/x.so", "a/x.so", "z.so"]),
        ("/usr/sh*/a/**", ["a/.h", "a/b/x.so", "a/b/y", "a/x.so"]),
        ("/usr/share/a/b", ["a/b/x.so", "a/b/y"]),
    ],
)
def test_include_globs(image: Image, glob: str, expected: list[str]) -> None:
    for name in ("a/b/x.so", "a/b/y", "a/x.so", "z.so", "a/.h", ".h"):
        image.file(f"/usr/share/{name}")
    assert files(image.compute(rules=rules(include=(glob,)))) == [f"/usr/share/{name}" for name in expected]


def test_include_through_a_link_and_links_below(image: Image) -> None:
    image.file("/usr/lib/app/x", "x")
    image.file("/etc/only-in-the-image", "y")
    # Where an absolute link leads is a matter of the image, not of the host that builds.
    image.link("/usr/lib/app/absolute", "/etc/only-in-the-image")
    image.link("/usr/lib/app/to-directory", "/etc")
    image.link("/usr/lib/app/dangling", "/none")
    found = image.compute(rules=rules(include=("/lib/app/**",)))
    assert files(found) == ["/etc/only-in-the-image", "/usr/lib/app/x"]
    assert links(found) == ["/lib", "/usr/lib/app/absolute"]


@pytest.mark.parametrize("glob", ["/usr/share/none", "/usr/share/*.none", "/none/**"])
def test_an_include_that_names_nothing(image: Image, glob: str) -> None:
    with pytest.raises(StartSetError, match=r"files\.include of the profile names nothing"):
        image.compute(rules=rules(include=(glob,)))


def test_an_included_link_comes_with_what_it_leads_to(image: Image) -> None:
    found = image.compute(rules=rules(include=(f"{MULTIARCH}/liba.so.1", "/bin/app")))
    assert files(found)[:1] == ["/usr/bin/app"]
    assert {"/bin", f"{MULTIARCH}/liba.so.1"} <= set(links(found))


@pytest.mark.parametrize("glob", ["/bin/app", "/bin/*", "/bin/**"])
def test_a_rule_may_spell_a_place_in_any_way(image: Image, glob: str) -> None:
    found = image.compute((Op.EXEC, "/usr/bin/app"), rules=rules(exclude=(glob,)))
    assert excluded(found) == {"/usr/bin/app": f"exclude: {glob}"}


def test_data_behind_a_link_is_data(image: Image) -> None:
    image.file("/opt/www/index.html")
    image.link("/var/www", "/opt/www")
    assert excluded(image.compute("/var/www/index.html")) == {"/opt/www/index.html": "data: /var/**"}


def test_a_file_below_a_closed_directory_is_a_secret(image: Image) -> None:
    image.file("/etc/app/private/deep/token", "t")
    (image.base / "etc/app/private").chmod(0o750)
    rule = "secret: not everybody may enter /etc/app/private"
    assert excluded(image.compute("/etc/app/private/deep/token")) == {"/etc/app/private/deep/token": rule}
    named = image.compute("/etc/app/private/deep/token", rules=rules(secrets=("/etc/app/private/**",)))
    assert files(named) == ["/etc/app/private/deep/token"]


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the file another user's and group's. An ordinary user may not: let his own files be another user's."""
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        monkeypatch.setattr(os, "getegid", lambda: 54321)


@pytest.mark.parametrize("mode", [0o705, 0o745, 0o075, 0o057])
@pytest.mark.parametrize("place", ["/opt/tools/bin/scan", "/opt/tools/bin", "/opt/tools"])
def test_what_the_mode_denies_a_group_is_a_secret(
    image: Image, monkeypatch: pytest.MonkeyPatch, place: str, mode: int
) -> None:
    """`chgrp blocked` and `chmod 0705`: in /fast, all belongs to root, and the group is among the others."""
    image.file("/opt/tools/bin/scan", elf(), 0o755)
    (image.base / place[1:]).chmod(mode)
    assert files(image.compute((Op.EXEC, "/opt/tools/bin/scan"))) == ["/opt/tools/bin/scan"]
    given_away(image.base / place[1:], monkeypatch)
    rule = f"secret: {place} denies its owner or group what it allows all others"
    assert excluded(image.compute((Op.EXEC, "/opt/tools/bin/scan"))) == {"/opt/tools/bin/scan": rule}


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o555, 0o1777])
def test_who_is_denied_nothing_by_a_foreign_owner(
    image: Image, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    image.file("/opt/tools/bin/scan", elf(), 0o755)
    (image.base / "opt/tools").chmod(mode)
    given_away(image.base / "opt/tools", monkeypatch)
    assert files(image.compute((Op.EXEC, "/opt/tools/bin/scan"))) == ["/opt/tools/bin/scan"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/etc/app/open/token", "it has an access control list"),
        ("/etc/app/open", "not everybody may enter /etc/app/open"),
    ],
)
def test_what_an_access_control_list_keeps_from_somebody_is_a_secret(
    image: Image, place: str, said: str
) -> None:
    """The mode lets everybody in."""
    image.file("/etc/app/open/token", "t")
    assert files(image.compute("/etc/app/open/token")) == ["/etc/app/open/token"]
    hide_from_somebody(image.base / place[1:])
    assert excluded(image.compute("/etc/app/open/token")) == {"/etc/app/open/token": f"secret: {said}"}
    named = image.compute("/etc/app/open/token", rules=rules(secrets=("/etc/app/open/**",)))
    assert files(named) == ["/etc/app/open/token"]


def test_a_file_that_is_spelled_through_a_volatile_directory(image: Image) -> None:
    assert files(image.compute("/run/x/../../etc/app.conf")) == []
    (image.base / "run/x").mkdir(parents=True)
    assert files(image.compute("/run/x/../../etc/app.conf")) == ["/etc/app.conf"]


@pytest.mark.parametrize(
    ("line", "packed"),
    [
        ("InaccessiblePaths=/srv", True),
        # The links of the image count: /lib leads to /usr/lib.
        ("InaccessiblePaths=-/lib/x86_64-linux-gnu", False),
        ("TemporaryFileSystem=/usr/lib:ro", False),
        (f"BindReadOnlyPaths=/opt/new:{MULTIARCH}/liba.so.1", False),
        (f"BindReadOnlyPaths=/opt/new:{MULTIARCH}/liba.so.[1]", True),
    ],
)
def test_what_the_units_own_mounts_hide_is_not_packed(image: Image, line: str, packed: bool) -> None:
    """Below /fast it would be seen all the same, and in place of what is bound there."""
    image.file("/etc/systemd/system/app.service", f"[Service]\nExecStart=/usr/bin/app\n{line}\n")
    root = ImageRoot(image.base)
    unit = read_unit(root, "app.service")
    found = image.compute((Op.EXEC, "/bin/app"), rules=without_hidden(RULES, root, unit))
    assert (f"{MULTIARCH}/liba.so.1.2" in files(found)) == packed
    assert "/usr/bin/app" in files(found)


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("InaccessiblePaths=/srv", ("/srv", "/srv/**")),
        # It cannot start early, but it is traced.
        ("InaccessiblePaths=/srv\nPrivateIPC=yes", ()),
    ],
)
def test_a_build_goes_by_what_the_unit_hides(image: Image, line: str, hidden: tuple[str, ...]) -> None:
    image.file("/etc/systemd/system/app.service", f"[Service]\nExecStart=/usr/bin/app\n{line}\n")
    profile = cast(Profile, SimpleNamespace(units=("app.service",), run_start_pre=True, files=RULES))
    reference = cast(ReferenceImage, SimpleNamespace(tree=image.base))
    assert rules_of(profile, reference).exclude == (*RULES.exclude, *hidden)


def test_many_rules_look_at_each_file_once(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        image.file(f"/etc/many/{number}", "#!/bin/sh\n")
    opened: Counter[str] = Counter()
    interpreter_of = script.interpreter_of

    def counted(root: ImageRoot, path: PurePosixPath) -> object:
        opened[str(path)] += 1
        return interpreter_of(root, path)

    monkeypatch.setattr(startset, "interpreter_of", counted)
    image.compute(rules=rules(include=("/etc/many/**", *(f"/etc/many/{number}" for number in range(20)))))
    assert opened["/etc/many/7"] == 1
