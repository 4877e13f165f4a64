"""The start set: the files from the trace and the closure, their names, and their reasons."""

from __future__ import annotations

import os

import pytest

from quickstart.errors import StartSetError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Event, FileKind, Op, StartSet
from quickstart.pack import reasons as pack_reasons
from quickstart.pack.startset import compute
from tests.unit.elfbuilder import LD_SO, MULTIARCH, elf
from tests.unit.imagebuilder import RULES, Image, P, excluded, files, links, reasons, rules, trace

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
    made = Event(line=9, pid=77, program="app", op=Op.OPEN, path=P("/etc/app.conf"), error=None, made=True)
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


def test_the_reasons_have_a_limit(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """39 links on the way of each path made 840 MiB of start-set.json out of a log of 55 KiB."""
    names = [f"/lib/x86_64-linux-gnu{'/.' * number}/liba.so.1" for number in range(9)]
    monkeypatch.setattr(pack_reasons, "_MOST_CHARACTERS", 10_000)
    image.compute((Op.EXEC, "/bin/app"), *names, *names)
    monkeypatch.setattr(pack_reasons, "_MOST_CHARACTERS", 400)
    with pytest.raises(StartSetError, match="the reasons for the files of the start set have more than 400"):
        image.compute((Op.EXEC, "/bin/app"), *names)
