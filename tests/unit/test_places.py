"""Who else could replace what is at a path: owners, modes, links and FUSE, made up and in directories of our own."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from quickstart.artefact import output
from quickstart.cli.main import group
from quickstart.cli.output import Verb, run_verb
from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door, places, userns
from quickstart.host.files import temporary_directory
from quickstart.host.owners import fuse_users
from quickstart.host.places import Step, Trust, fault, place_of, swapped_by_others, way
from quickstart.host.workspace import workspace
from quickstart.store.store import Store

OURS = Trust(frozenset({0, 1000}))
DIRECTORY, LINK, FILE = stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG
# No group of any host has it.
NO_GROUP = 3_999_999_999


def step(mode: int, uid: int = 0, gid: int = NO_GROUP, **more: int | bool) -> Step:
    status = os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))
    return Step(path=Path("/x"), status=status, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (step(DIRECTORY | 0o755), ""),
        (step(DIRECTORY | 0o700, 1000), ""),
        (step(DIRECTORY | 0o755, 1001), "belongs to another user (1001)"),
        (step(LINK | 0o777, 1001), "belongs to another user (1001)"),
        (step(LINK | 0o777), ""),
        (step(DIRECTORY | 0o777), "can be written by others"),
        (step(DIRECTORY | 0o1777), ""),
        (step(DIRECTORY | 0o1777, 1001), "belongs to another user (1001)"),
        # The sticky bit of a file says nothing.
        (step(FILE | 0o1666), "can be written by others"),
        (step(DIRECTORY | 0o775), "can be written by others"),
        # FUSE may say that all is root's.
        (step(DIRECTORY | 0o755, mounter=1001), "lies on a FUSE file system of another user (1001)"),
        (step(DIRECTORY | 0o755, mounter=-1), "lies on a FUSE file system of nobody known"),
        (step(DIRECTORY | 0o755, mounter=1000), ""),
        (step(DIRECTORY | 0o755, mounter=0), ""),
        (step(LINK | 0o777, by_proc=True), "is a link of /proc"),
        (step(DIRECTORY | 0o555, by_proc=True), ""),
        (step(DIRECTORY | 0o755, 65534), "belongs to another user (65534)"),
    ],
)
def test_each_kind_of_step(found: Step, said: str) -> None:
    assert fault(found, OURS).startswith(said)
    assert bool(fault(found, OURS)) == bool(said)


def test_in_a_user_namespace_ids_that_it_does_not_map_are_roots() -> None:
    there = Trust(frozenset({0}), unmapped=True)
    assert fault(step(DIRECTORY | 0o755, 65534), there) == ""
    assert fault(step(DIRECTORY | 0o755, 1001), there) == "belongs to another user (1001)"


def test_a_group_without_strangers_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubuntu's users each have a group of their own, and the umask 002."""
    monkeypatch.setattr(places, "_is_private", lambda gid, trust: gid == 1000)
    assert fault(step(DIRECTORY | 0o775, 1000, 1000), OURS) == ""
    assert fault(step(DIRECTORY | 0o775, 1000, 50), OURS) == "can be written by others"
    # An ACL names others, and what it gives at most stands where the group's rights do.
    assert fault(step(DIRECTORY | 0o775, 1000, 1000, acl=True), OURS) == "can be written by others"
    assert fault(step(DIRECTORY | 0o757, 1000, 1000), OURS) == "can be written by others"


def test_whose_a_fuse_is() -> None:
    text = (
        "36 35 0:52 / /mnt rw,nosuid,nodev shared:1 - fuse.sshfs me@there: rw,user_id=1001,group_id=1001,allow_other\n"
        "37 35 0:53 / /a\\040b rw - fuse lie rw,user_id=0,group_id=0\n"
        "38 35 0:54 / /v rw - virtiofs tag rw\n"
        "39 35 0:55 / /f rw - fuse.odd x rw\n"
        "40 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
    )
    assert fuse_users(text) == {"0:52": 1001, "0:53": 0, "0:54": 0}


def test_the_way_follows_links(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    (base / "real/deep").mkdir(parents=True)
    (base / "absolute").symlink_to(base / "real")
    (base / "real/relative").symlink_to("../absolute/deep")
    names = [str(each.path) for each in way(base / "absolute/relative/none/more")]
    wanted = ["absolute", "real", "real/relative", "absolute", "real", "real/deep"]
    found = [name for name in names if name.startswith(f"{base}/")]
    assert [Path(name).relative_to(base) for name in found if "/.." not in name] == [
        *map(Path, wanted[:3]),
        *map(Path, wanted[3:]),
    ]


def test_a_place_is_where_the_links_lead_that_were_judged(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    (base / "out").symlink_to("link/new/out")
    for said in ("real/out", "link/out", "real/../link/out", "real/a/b"):
        assert place_of(base / said) == ((base / said).resolve(), "")
    assert place_of(base / "out") == (base / "real/new/out", "")
    assert place_of(Path("/")) == (Path("/"), "")


def test_only_a_link_counts_of_what_is_at_the_place(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    (base / "open").mkdir()
    (base / "open").chmod(0o777)
    (base / "out").symlink_to("open")
    assert place_of(base / "open") == (base / "open", "")
    assert place_of(base / "out") == (base / "open", f"{base}/open can be written by others")
    assert place_of(base / "open/out")[1] == f"{base}/open can be written by others"


def test_what_is_missing_is_made_only_where_nobody_leads_us_elsewhere(tmp_path: Path) -> None:
    output.make_into(tmp_path / "a/b/figures")
    assert (tmp_path / "a/b/figures").is_dir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(BadInputError, match="open can be written by others"):
        output.make_into(tmp_path / "open/figures")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(BadInputError, match="link is not a directory"):
        output.make_into(tmp_path / "link/figures")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "link", "open"]
    assert not list((tmp_path / "open").iterdir())


@pytest.mark.parametrize("dry", [False, True])
def test_bench_makes_its_directories_before_it_enters_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry: bool
) -> None:
    """In there one that another user makes first, in /tmp for example, looks like root's."""

    def refuse() -> None:
        raise HostLacksError("no namespace")

    monkeypatch.setattr(userns, "become_root", refuse)
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))
    cell = ("--profile=nginx", "--configuration=standard", "--storage=local", "--clock=virtual")
    more = ("--dry-run",) if dry else ()
    found = CliRunner().invoke(group, ["bench", *cell, *more, "-o", str(tmp_path / "results")])
    assert found.exit_code == 3
    assert (tmp_path / "results/figures").is_dir() is not dry


def test_a_verb_has_the_place_that_was_judged(tmp_path: Path) -> None:
    """A link that another user makes after the look, in /tmp for example, leads nobody elsewhere."""
    out = tmp_path.resolve() / "out"

    def work(verb: Verb) -> int:
        out.symlink_to("elsewhere")
        assert verb.place == out
        return 0

    assert run_verb("trace", False, work, out=lambda: out) == 0


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(way(tmp_path / "a")) < 100


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """A directory of ours into which everybody may write, with one of ours in it."""
    opened = tmp_path / "open"
    (opened / "ours").mkdir(parents=True)
    opened.chmod(0o777)
    return opened


def test_a_directory_above_that_others_may_write_to(opened: Path) -> None:
    for place in ("ours", "ours/none", "none"):
        assert swapped_by_others(opened / place) == f"{opened} can be written by others"
    opened.chmod(0o1777)
    assert swapped_by_others(opened / "ours") == ""
    opened.chmod(0o755)
    assert swapped_by_others(opened / "ours") == ""


def test_a_link_into_such_a_directory(opened: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(opened / "ours")
    assert swapped_by_others(tmp_path / "link") == f"{opened.resolve()} can be written by others"


def test_no_store_there(opened: Path) -> None:
    with Store(opened / "ours/store") as store, pytest.raises(HostLacksError, match="is run here") as caught:
        store.get_or_make("s", {}, lambda directory: None)
    assert "QUICKSTART_CACHE" in (caught.value.hint or "")
    assert list((opened / "ours").iterdir()) == []


def test_no_out_there(opened: Path) -> None:
    said = "could be swapped while it is written"
    with pytest.raises(BadInputError, match=said) as caught, output.new_directory(opened / "ours/out"):
        pytest.fail("it was begun")
    assert "-o" in (caught.value.hint or "")
    assert list((opened / "ours").iterdir()) == []


def test_an_out_there_is_not_used(opened: Path) -> None:
    said = "could be swapped while it is used"
    with pytest.raises(BadInputError, match=said) as caught, output.in_use(opened / "ours"):
        pytest.fail("it was used")
    assert f"cp -r -- {opened / 'ours'}" in (caught.value.hint or "")


def test_an_out_with_a_file_that_others_may_write_to(tmp_path: Path) -> None:
    (tmp_path / "root.raw").touch()
    (tmp_path / "root.raw").chmod(0o666)
    with pytest.raises(BadInputError, match=r"root\.raw can be written by others"), output.in_use(tmp_path):
        pytest.fail("it was used")


def test_no_workspace_there(opened: Path) -> None:
    with (
        pytest.raises(HostLacksError, match="could be swapped") as caught,
        workspace("quickstart-", place=opened),
    ):
        pytest.fail("it was made")
    assert "TMPDIR=/tmp" in (caught.value.hint or "")


def test_no_program_gets_a_temporary_directory_there(opened: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler makes files in it, and reads them again: whoever replaces one of these chooses what is run here."""
    monkeypatch.setenv("TMPDIR", str(opened / "ours"))
    for ask in (temporary_directory, door.environment, lambda: door.run(["true"], timeout_s=9)):
        with pytest.raises(HostLacksError, match="could be swapped") as caught:
            ask()
        assert "TMPDIR=/tmp" in (caught.value.hint or "")
    # A jail has one of its own.
    assert door.environment({"TMPDIR": "."})["TMPDIR"] == "."


def test_a_program_s_temporary_directory_is_the_one_that_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else could make a directory that is missing, and another directory has another `tmp` in it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert door.environment()["TMPDIR"] == "/tmp"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "tmp")
    assert door.environment()["TMPDIR"] == str(tmp_path / "tmp")
    monkeypatch.delenv("TMPDIR")
    assert "TMPDIR" not in door.environment()


def test_no_tool_there_is_run(opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (opened / "ours", tmp_path):
        (place / "tool").write_text("#!/bin/sh\n")
        (place / "tool").chmod(0o755)
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(opened / "ours"))
    with pytest.raises(HostLacksError, match="QUICKSTART_TOOL_PATH are run here"):
        door.tool_path("tool")
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", f"{tmp_path}:{opened / 'ours'}")
    assert door.tool_path("tool") == tmp_path / "tool"


def test_no_program_gets_a_home_there(opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ccache and others do what the files in it say; sudo may leave HOME as it was."""
    for home, got in (
        (opened / "ours", "/"),
        # Somebody else could make it, and a relative one is another one in another directory.
        (tmp_path / "none", "/"),
        ("ours", "/"),
        (tmp_path, str(tmp_path)),
    ):
        monkeypatch.setenv("HOME", str(home))
        assert door.environment()["HOME"] == got
    # As in a user namespace, which shows everybody else as one user.
    monkeypatch.setenv("HOME", str(opened / "ours"))
    monkeypatch.setattr(door, "swapped_by_others", lambda path: "")
    assert door.environment()["HOME"] == "/"


@pytest.mark.parametrize(
    "words",
    [
        "doctor",
        "build --profile nginx -o {0}/new",
        "run {0}/out",
        "verify {0}/out",
        "rebuild {0}/out",
        "trace --profile nginx -o {0}/new",
        "profile new app --package nginx --unit nginx.service -o {0}/new",
        "bench --profile=nginx --configuration=standard --storage=local --clock=virtual -o {0}/new",
        "profile check nginx",
        "bench --report -o {0}/new",
        "shell --at reference {0}/out",
        "audit {0}/out",
        "cache gc",
    ],
)
def test_no_verb_begins_with_such_a_temporary_directory(
    opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(opened / "ours"))
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))
    started: list[object] = []
    monkeypatch.setattr("subprocess.Popen", lambda *argv, **more: started.append(argv))
    before = sorted(tmp_path.rglob("*"))
    found = CliRunner().invoke(group, words.format(tmp_path).split())
    assert (found.exit_code, "the temporary directory" in found.stderr) == (3, True), found.stderr
    assert (started, sorted(tmp_path.rglob("*"))) == ([], before)


def test_what_is_made_at_tmpdir_during_a_verb_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user namespace a directory of somebody else looks as one of root."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))

    def work(verb: Verb) -> int:
        (tmp_path / "none").mkdir()
        assert temporary_directory() == Path("/tmp")
        return 0

    assert run_verb("ls", False, work) == 0


@pytest.mark.parametrize(
    ("sources", "group", "private"),
    [
        ("passwd: files systemd", "staff", True),
        ("passwd:\tfiles [NOTFOUND=return] compat # ldap\ngroup: sss", "staff", True),
        # Of a directory's users nobody knows whose group it is.
        ("passwd: files sss", "staff", False),
        ("group: files\npasswd: files ldap", "staff", False),
        # But a user's own, which is called as he is.
        ("passwd: files sss", "builder", True),
    ],
)
def test_a_group_whose_members_nobody_tells_has_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str, group: str, private: bool
) -> None:
    (file := tmp_path / "nsswitch.conf").write_text(f"# whose\n{sources}\n")
    monkeypatch.setattr(places, "_SOURCES", file)
    user = pwd.struct_passwd(("builder", "x", 4242, 5555, "", "/", "/bin/sh"))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((group, "x", gid, [])))
    monkeypatch.setattr(pwd, "getpwall", lambda: [user])

    def of_id(uid: int) -> pwd.struct_passwd:
        if uid != 4242:
            raise KeyError(uid)
        return user

    monkeypatch.setattr(pwd, "getpwuid", of_id)
    assert places._is_private(5555, places.Trust(frozenset({0, 4242}))) == private
