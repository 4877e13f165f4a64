"""The start set: what the trace, the closure and the rules put in, and what keeps a file out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import StartSetError
from quickstart.imageroot import ImageRoot
from quickstart.model import Event, FileKind, FileRules, Mapped, NetworkFacts, Op, StartSet, Trace
from quickstart.startset import compute, matches
from tests.unit.elfbuilder import LD_SO, MULTIARCH, elf

RULES = FileRules(include=(), exclude=(), data=("/var/**",), secrets=())
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----\n"


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


def trace(
    *opened: str | tuple[Op, str] | tuple[Op, str, str] | Event,
    ldd: Mapping[str, Sequence[str]] | None = None,
    mapped: Sequence[str] = (),
) -> Trace:
    events = []
    for line, each in enumerate(opened, 1):
        if isinstance(each, Event):
            events.append(each)
            continue
        op, path, *error = (Op.OPEN, each) if isinstance(each, str) else each
        events.append(Event(line, 77, "app", op, P(path), error[0] if error else None))
    return Trace(
        events=tuple(events),
        processes=1,
        blind=(),
        mapped=tuple(Mapped(77, "app", P(path)) for path in mapped),
        ldd={P(path): tuple(P(each) for each in found) for path, found in (ldd or {}).items()},
        modules_before=(),
        modules=(),
        network=NetworkFacts("ens3", "52:54:00:00:00:01", "10.0.2.15"),
        trace_hash="0",
        ready_uptime_ns=1,
        log_lines=len(events),
    )


@dataclass
class Image:
    """A tree with a merged /usr and one program with one library."""

    base: Path

    def file(self, path: str, content: bytes | str = "text", mode: int = 0o644) -> None:
        host = self.base / path.lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        host.write_bytes(content.encode() if isinstance(content, str) else content)
        host.chmod(mode)

    def link(self, path: str, target: str) -> None:
        host = self.base / path.lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        host.symlink_to(target)

    def compute(
        self,
        *opened: str | tuple[Op, str] | tuple[Op, str, str],
        rules: FileRules = RULES,
        ldd: Mapping[str, Sequence[str]] | None = None,
        mapped: Sequence[str] = (),
    ) -> StartSet:
        """The set of a trace in which one process, app, did that with these paths."""
        return compute([trace(*opened, ldd=ldd, mapped=mapped)], ImageRoot(self.base), rules)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    image = Image(tmp_path / "image")
    for name in ("bin", "lib", "lib64"):
        image.link(name, f"usr/{name}")
    image.file("/usr/bin/app", elf(["liba.so.1"], interpreter=LD_SO), 0o755)
    image.file(f"{MULTIARCH}/liba.so.1.2", elf(soname="liba.so.1"))
    image.link(f"{MULTIARCH}/liba.so.1", "liba.so.1.2")
    image.file(f"{MULTIARCH}/ld-linux-x86-64.so.2", elf(), 0o755)
    image.link("/usr/lib64/ld-linux-x86-64.so.2", f"..{MULTIARCH[4:]}/ld-linux-x86-64.so.2")
    image.file("/etc/app.conf")
    return image


def rules(**changed: tuple[str, ...]) -> FileRules:
    return FileRules(**{"include": (), "exclude": (), "data": ("/var/**",), "secrets": (), **changed})


def files(start_set: StartSet) -> list[str]:
    return [str(file.path) for file in start_set.files if file.kind is FileKind.FILE]


def links(start_set: StartSet) -> list[str]:
    return [str(file.path) for file in start_set.files if file.kind is FileKind.SYMLINK]


def excluded(start_set: StartSet) -> dict[str, str]:
    return {str(each.path): each.rule for each in start_set.excluded}


def reasons(start_set: StartSet, path: str) -> list[tuple[str, str]]:
    (file,) = [file for file in start_set.files if file.path == P(path)]
    return [(reason.source, reason.detail) for reason in file.reasons]


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


# ---------------------------------------------------------------- what is in


def test_a_program_with_all_that_it_needs(image: Image) -> None:
    found = image.compute((Op.EXEC, "/bin/app"), "/etc/app.conf")
    libraries = [f"{MULTIARCH}/ld-linux-x86-64.so.2", f"{MULTIARCH}/liba.so.1.2"]
    assert files(found) == ["/etc/app.conf", "/usr/bin/app", *libraries]
    assert links(found) == [
        "/bin",
        "/lib",
        "/lib64",
        f"{MULTIARCH}/liba.so.1",
        "/usr/lib64/ld-linux-x86-64.so.2",
    ]
    directories = [str(file.path) for file in found.files if file.kind is FileKind.DIRECTORY]
    assert directories == ["/etc", "/usr", "/usr/bin", "/usr/lib", MULTIARCH, "/usr/lib64"]
    assert [file.path for file in found.files] == sorted(file.path for file in found.files)
    assert found.excluded == ()


def test_every_file_has_its_reasons(image: Image) -> None:
    found = image.compute((Op.EXEC, "/bin/app"), "/lib/x86_64-linux-gnu/liba.so.1")
    assert reasons(found, "/usr/bin/app") == [("trace", "exec by app (line 1)")]
    assert reasons(found, f"{MULTIARCH}/liba.so.1.2") == [
        ("elf", "needed liba.so.1 of /usr/bin/app"),
        ("trace", "open by app (line 2)"),
    ]
    assert reasons(found, f"{MULTIARCH}/ld-linux-x86-64.so.2") == [("elf", "PT_INTERP of /usr/bin/app")]
    assert reasons(found, "/bin") == [("symlink", "on the way of /bin/app")]
    assert reasons(found, MULTIARCH) == [("parent", "holds files of the set")]
    assert all(file.reasons for file in found.files)


def test_facts_of_files(image: Image) -> None:
    os.utime(image.base / "etc/app.conf", (1, 1_234_567_890))
    found = {str(file.path): file for file in image.compute((Op.EXEC, "/bin/app"), "/etc/app.conf").files}
    conf, app, link = found["/etc/app.conf"], found["/usr/bin/app"], found["/bin"]
    assert (conf.mode, conf.size_bytes, conf.mtime_s, conf.interpreter) == (0o100644, 4, 1_234_567_890, "")
    assert (app.mode, app.interpreter, app.target) == (0o100755, LD_SO, "")
    assert (link.kind, link.target, link.size_bytes) == (FileKind.SYMLINK, "usr/bin", 7)
    assert found["/usr"].size_bytes == 0


def test_a_chain_of_links_is_packed_whole(image: Image) -> None:
    image.file("/usr/lib/app/real", "x")
    image.link("/etc/alternatives/app", "/lib/app/real")
    image.link("/etc/app", "alternatives/app")
    found = image.compute("/etc/app")
    assert (files(found), links(found)) == (
        ["/usr/lib/app/real"],
        ["/etc/alternatives/app", "/etc/app", "/lib"],
    )


def test_dots_are_resolved_by_the_links_before_them(image: Image) -> None:
    image.file("/opt/app-1/conf/a", "right")
    image.file("/conf/a", "wrong")
    (image.base / "opt/app-1/bin").mkdir()
    image.link("/app", "opt/app-1/bin")
    assert files(image.compute("/app/../conf/a")) == ["/opt/app-1/conf/a"]


def test_what_a_script_needs(image: Image) -> None:
    image.file("/usr/bin/script", "#! /bin/app -x\n", 0o755)
    image.file("/etc/no-script", "#!relative\n")
    found = image.compute((Op.EXEC, "/usr/bin/script"), "/etc/no-script")
    assert reasons(found, "/usr/bin/app") == [("script", "#! of /usr/bin/script")]
    assert f"{MULTIARCH}/liba.so.1.2" in files(found)
    assert "/bin" in links(found)


def test_what_ldd_named(image: Image) -> None:
    image.file(f"{MULTIARCH}/libdl.so.2", elf())
    found = image.compute("/etc/app.conf", ldd={"/usr/bin/app": ["/lib/x86_64-linux-gnu/libdl.so.2"]})
    assert reasons(found, f"{MULTIARCH}/libdl.so.2") == [("ldd", "of /usr/bin/app")]


def test_a_missing_library_is_an_error(image: Image) -> None:
    image.file("/usr/bin/broken", elf(["libnone.so.1"], interpreter=LD_SO), 0o755)
    with pytest.raises(StartSetError, match=r"/usr/bin/broken needs library libnone\.so\.1"):
        image.compute((Op.EXEC, "/usr/bin/broken"))


@pytest.mark.parametrize(
    "event",
    [
        (Op.WRITE, "/etc/app.conf"),
        (Op.LOOKUP, "/etc/app.conf"),
        (Op.LIST, "/etc"),
        (Op.OPEN, "/etc/app.conf", "EACCES"),
        (Op.OPEN, "/etc"),
        (Op.OPEN, "/"),
        (Op.OPEN, "/none"),
        (Op.OPEN, "/proc/meminfo"),
        (Op.OPEN, "/dev/null"),
        (Op.OPEN, "/run/app.pid"),
        (Op.OPEN, "/sys/kernel/x"),
        (Op.OPEN, "/var/run/app.pid"),
    ],
)
def test_what_is_no_file_of_the_set(image: Image, event: tuple[Op, str] | tuple[Op, str, str]) -> None:
    for path in ("/proc/meminfo", "/dev/null", "/run/app.pid", "/sys/kernel/x"):
        image.file(path)
    image.link("/var/run", "/run")
    assert image.compute(event) == StartSet((), ())


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


def test_a_file_that_is_spelled_through_a_volatile_directory(image: Image) -> None:
    assert files(image.compute("/run/x/../../etc/app.conf")) == []
    (image.base / "run/x").mkdir(parents=True)
    assert files(image.compute("/run/x/../../etc/app.conf")) == ["/etc/app.conf"]


# ---------------------------------------------------------------- several traces, what was mapped, what the boot made


def test_files_are_counted_in_the_traces_that_used_them(image: Image) -> None:
    image.file("/etc/other.conf")
    traces = [trace("/etc/app.conf", (Op.EXEC, "/usr/bin/app")), trace("/etc/app.conf", "/etc/other.conf")]
    found = compute(traces, ImageRoot(image.base), RULES)
    seen = {str(file.path): file.seen_in for file in found.files if file.kind is FileKind.FILE}
    assert found.traces == 2
    assert seen == {
        "/etc/app.conf": 2,
        "/etc/other.conf": 1,
        "/usr/bin/app": 1,
        f"{MULTIARCH}/liba.so.1.2": 0,
        f"{MULTIARCH}/ld-linux-x86-64.so.2": 0,
    }
    (other,) = [file for file in found.files if file.path == P("/etc/other.conf")]
    assert [reason.detail for reason in other.reasons] == ["open by app (line 2 of trace 2)"]


def test_a_mapped_file_that_nothing_leads_to_is_a_lost_event(image: Image) -> None:
    image.file("/usr/lib/plugin.so", elf())
    with pytest.raises(StartSetError, match=r"/usr/lib/plugin\.so was mapped by app .* events were lost"):
        image.compute("/etc/app.conf", mapped=["/usr/lib/plugin.so"])
    found = image.compute((Op.MAP, "/usr/lib/plugin.so"), mapped=["/lib/plugin.so"])
    assert P("/usr/lib/plugin.so") in {file.path for file in found.files}


def test_a_mapped_file_may_be_kept_out_by_a_rule(image: Image) -> None:
    image.file("/var/cache/jit.so", elf())
    image.file("/usr/bin/su", elf(), 0o4755)
    found = image.compute(
        mapped=["/var/cache/jit.so", "/usr/bin/su", "/run/x.so", "/usr/lib/made-at-run-time.so"]
    )
    assert {str(each.path): each.rule.partition(":")[0] for each in found.excluded} == {
        "/var/cache/jit.so": "data",
        "/usr/bin/su": "setuid",
    }


def test_what_the_boot_wrote_before_it_was_read_is_kept_out(image: Image) -> None:
    made = Event(9, 77, "app", Op.OPEN, P("/etc/app.conf"), None, made=True)
    found = compute([trace(made)], ImageRoot(image.base), RULES)
    assert [(str(each.path), each.rule) for each in found.excluded] == [
        ("/etc/app.conf", "made: the boot writes it before it is read")
    ]
    assert found.files == ()
    # Another trace in which it was read as the image has it puts it in.
    found = compute([trace(made), trace("/etc/app.conf")], ImageRoot(image.base), RULES)
    assert found.excluded == ()


# ---------------------------------------------------------------- other names, packages


def hard_link(image: Image, path: str, to: str) -> None:
    host = image.base / path.lstrip("/")
    host.parent.mkdir(parents=True, exist_ok=True)
    host.hardlink_to(image.base / to.lstrip("/"))


def test_the_other_names_of_a_file_come_too(image: Image) -> None:
    hard_link(image, "/opt/bin/app", "/usr/bin/app")
    hard_link(image, "/usr/bin/app1.0", "/usr/bin/app")
    found = image.compute((Op.EXEC, "/usr/bin/app"))
    assert reasons(found, "/usr/bin/app1.0") == [("hardlink", "another name of /usr/bin/app")]
    first_of = {str(file.path): str(file.hard_link_to) for file in found.files if file.hard_link_to}
    # The first in the archive has the content, whatever name was traced.
    assert first_of == {"/usr/bin/app": "/opt/bin/app", "/usr/bin/app1.0": "/opt/bin/app"}
    assert reasons(found, "/opt") == [("parent", "holds files of the set")]


def test_another_name_is_kept_out_by_the_rules_of_its_place(image: Image) -> None:
    hard_link(image, "/var/lib/app", "/usr/bin/app")
    hard_link(image, "/usr/share/app", "/usr/bin/app")
    found = image.compute((Op.EXEC, "/usr/bin/app"), rules=rules(exclude=("/usr/share/**",)))
    assert not [file for file in found.files if file.hard_link_to]
    assert excluded(found) == {"/var/lib/app": "data: /var/**", "/usr/share/app": "exclude: /usr/share/**"}


def test_a_program_needs_other_libraries_under_another_name(image: Image) -> None:
    image.file("/opt/a/bin/run", elf(["libself.so"], interpreter=LD_SO, runpath="$ORIGIN/../lib"), 0o755)
    hard_link(image, "/opt/b/bin/run", "/opt/a/bin/run")
    for place in ("a", "b"):
        image.file(f"/opt/{place}/lib/libself.so", elf(soname="libself.so"))
    found = image.compute((Op.EXEC, "/opt/a/bin/run"))
    assert {"/opt/a/lib/libself.so", "/opt/b/lib/libself.so"} <= set(files(found))


def test_the_tree_is_not_searched_without_a_file_that_has_other_names(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_search(root: ImageRoot) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(ImageRoot, "hard_links", no_search)
    image.compute((Op.EXEC, "/usr/bin/app"))
    hard_link(image, "/opt/app", "/usr/bin/app")
    with pytest.raises(AssertionError, match="searched"):
        image.compute((Op.EXEC, "/usr/bin/app"))


def test_files_name_their_package_and_directories_do_not(image: Image) -> None:
    image.file("/var/lib/dpkg/info/app.list", "/.\n/bin\n/bin/app\n")
    stanza = "Package: app\nStatus: install ok installed\nArchitecture: all\nVersion: 1:2-3\n"
    image.file("/var/lib/dpkg/status", stanza)
    found = image.compute((Op.EXEC, "/bin/app"), "/etc/app.conf")
    packages = {str(file.path): file.package for file in found.files}
    assert packages["/usr/bin/app"] == "app 1:2-3"
    assert [packages[path] for path in ("/bin", "/usr/bin", "/etc/app.conf")] == ["", "", ""]


def test_times_are_whole_seconds_that_have_begun(image: Image) -> None:
    os.utime(image.base / "etc/app.conf", ns=(0, 1_700_000_000_999_999_999))
    (file,) = [file for file in image.compute("/etc/app.conf").files if file.path == P("/etc/app.conf")]
    assert file.mtime_s == 1_700_000_000
