"""The command line: texts, the JSON envelope and exit codes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quickstart import __version__
from quickstart.cli import cache
from quickstart.cli.main import group
from quickstart.cli.output import Verb, run_verb
from quickstart.engines.boot import BuildOptions, build_tools
from quickstart.profile import load_profile
from quickstart.store.kept import Kept
from quickstart.store.store import MARK, Store, key_of


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(group, arguments)


def said(found: Result) -> str:
    """What is on stderr, whatever width the lines were broken for."""
    return " ".join(found.stderr.split())


def test_bare() -> None:
    found = invoke()
    assert found.exit_code == 0
    assert "quickstart build --profile nginx" in found.stdout
    assert "quickstart run quickstart-nginx" in found.stdout


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_lists_every_verb(argument: str) -> None:
    found = invoke(argument)
    assert found.exit_code == 0
    assert "build" in found.stdout
    assert "run" in found.stdout


def test_why_shows_the_first_reasons(tmp_path: Path) -> None:
    reasons = [f"trace: reason {number}" for number in range(250)]
    file = {"path": "/x", "kind": "file", "size_bytes": 1, "reasons": reasons}
    (tmp_path / "start-set.json").write_text(json.dumps({"files": [file], "excluded": []}))
    lines = invoke("why", str(tmp_path), "/x").stdout.splitlines()
    assert lines == ["/x", *(f"  {each}" for each in reasons[:100]), "  and 150 more"]
    found = json.loads(invoke("why", str(tmp_path), "/x", "--json").stdout)
    assert found["result"]["reasons"] == reasons


def test_a_rootfs_that_cannot_be_one(tmp_path: Path) -> None:
    found = invoke("build", "--profile", "nginx", "--rootfs", "/", "-o", str(tmp_path / "out"))
    assert found.exit_code == 2
    assert "/ is this host's own root" in said(found)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["build", "trace"])
def test_a_rootfs_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """One error for both, as JSON too."""
    tools = tmp_path / "tools"
    tools.mkdir()
    every = build_tools(load_profile("nginx"), BuildOptions(out=tmp_path / "out"), Store(tmp_path / "store"))
    for name in (*every, "tar"):
        (tools / name).write_text("")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tools))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    found = invoke(verb, "--json", "--profile", "nginx", "--rootfs", str(tmp_path / "none"))
    assert found.exit_code == 2
    error = json.loads(found.stdout)["error"]
    assert (error["kind"], error["message"]) == (
        "BadInputError",
        f"{tmp_path}/none is neither a directory nor a file",
    )


def test_version() -> None:
    assert __version__ in invoke("--version").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["biuld"],
        ["build"],
        ["build", "--profile", "nginx", "--format", "vdi"],
        ["run"],
        ["run", "x", "--port", "0"],
    ],
)
def test_bad_usage(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_an_unknown_profile() -> None:
    found = invoke("build", "--profile", "ngnix")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "quickstart build: there is no profile 'ngnix'" in said(found)
    assert "did you mean 'nginx'?" in said(found)


def test_a_bad_profile_as_json(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text("schema = 1\n")
    found = invoke("build", "--json", "--profile", str(tmp_path))
    document = json.loads(found.stdout)
    assert found.exit_code == 2
    assert (document["schema"], document["verb"], document["ok"]) == (1, "build", False)
    assert document["error"]["kind"] == "ProfileError"
    assert document["error"]["exit_code"] == 2
    assert document["error"]["message"] == f"profile {tmp_path / 'profile.toml'} is not valid:"
    assert "unit: missing" in document["error"]["details"]


def test_run_of_what_is_no_artefact(tmp_path: Path) -> None:
    found = invoke("run", str(tmp_path), "--json")
    assert found.exit_code == 2
    assert json.loads(found.stdout)["error"]["kind"] == "BadInputError"
    assert "is not an artefact" in said(found)


def test_run_of_a_damaged_artefact(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert invoke("run", str(tmp_path)).exit_code == 2


def test_run_both_ways_and_only_one_way(tmp_path: Path) -> None:
    found = invoke("run", str(tmp_path), "--stock", "--beside-stock")
    assert found.exit_code == 2
    assert "exclude each other" in said(found)


def test_run_that_ends_at_once_and_runs_a_command(tmp_path: Path) -> None:
    found = invoke("run", str(tmp_path), "--check", "--exec", "true")
    assert found.exit_code == 2
    assert "--check and --exec exclude each other" in said(found)
    assert "leave --check out" in said(found)


def test_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tmp_path / "empty"))
    found = invoke("build", "--json", "--profile", "nginx", "-o", str(tmp_path / "out"))
    error = json.loads(found.stdout)["error"]
    assert (found.exit_code, error["kind"], error["exit_code"]) == (3, "MissingToolError", 3)
    assert error["hint"].startswith("apt-get install ")
    assert not (tmp_path / "out").exists()


def test_a_build_that_is_not_root_says_so_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("busybox", "cc"):
        (tools / name).write_text("")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tools))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = invoke("build", "--json", "--profile", "nginx", "-o", str(tmp_path / "out"))
    error = json.loads(found.stdout)["error"]
    assert (found.exit_code, error["kind"]) == (3, "NeedsRootError")
    assert error["message"].startswith("making and tracing an image ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tools"]


def test_a_place_for_out_that_is_not_there(tmp_path: Path) -> None:
    found = invoke("build", "--profile", "nginx", "-o", str(tmp_path / "none/out"))
    assert found.exit_code == 2
    assert "none is not a directory" in said(found)


def test_an_output_that_is_not_ours(tmp_path: Path) -> None:
    found = invoke("build", "--profile", "nginx", "-o", str(tmp_path))
    assert found.exit_code == 2
    assert "is not an artefact" in said(found)


def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    found = invoke("build", "--profile", "nginx", "--dry-run", "--json")
    assert found.exit_code == 0
    (stage,) = json.loads(found.stdout)["result"]["stages"]
    assert (stage["stage"], stage["stored"]) == ("reference", False)
    assert not (tmp_path / "store").exists()


def test_cache_keeps_what_was_used_lately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path))
    with Store(tmp_path) as store:
        old = store.get_or_make("trace", {"n": 1}, lambda path: None)
        new = store.get_or_make("trace", {"n": 2}, lambda path: None)
    os.utime(old.path / MARK, (1, 1))
    shown = json.loads(CliRunner().invoke(group, ["cache", "gc", "--dry-run", "--json"]).stdout)
    assert [entry["key"] for entry in shown["result"]["removed"]] == [old.key]
    assert old.path.is_dir()
    assert CliRunner().invoke(group, ["cache", "gc"]).exit_code == 0
    listed = json.loads(CliRunner().invoke(group, ["cache", "ls", "--json"]).stdout)
    assert [entry["key"] for entry in listed["result"]["entries"]] == [new.key]


def test_cache_gc_removes_what_killed_builds_left_and_keeps_what_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path))
    dead = tmp_path / "disk" / f"{key_of('disk', {})}.partial"
    dead.mkdir(parents=True)
    with Store(tmp_path) as store:
        used = store.get_or_make("trace", {}, lambda path: None)
        found = CliRunner().invoke(group, ["cache", "gc", "--days", "0", "--json"])
        rows = json.loads(found.stdout)["result"]["removed"]
        assert [(row["stage"], row["partial"]) for row in rows] == [("disk", True)]
        assert used.path.is_dir()
    assert list(dead.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.EISDIR, 2, "out of the way"),
        (errno.ENOTEMPTY, 2, "out of the way"),
        (errno.ELOOP, 2, "give another path"),
        (errno.ENOSPC, 3, "free some space"),
        (errno.EPERM, 3, "another user's"),
        (errno.EIO, 3, "its file system"),
        (errno.ENOENT, 3, "its file system"),
        (errno.EOVERFLOW, 3, "its file system"),
    ],
)
def test_an_error_about_a_file_names_it(
    capsys: pytest.CaptureFixture[str], number: int, code: int, hint: str
) -> None:
    def work(verb: Verb) -> int:
        raise OSError(number, os.strerror(number), "in/\nthe way", None, b"there/x\xff")

    assert run_verb("bench", False, work) == code
    shown = " ".join(capsys.readouterr().err.split())
    assert f"bench: there/x\\xff: {os.strerror(number)}" in shown
    assert hint in shown


@pytest.mark.parametrize(
    "words", ["ls x", "run x", "audit x", "rebuild x", "build --profile nginx", "bench --report"]
)
def test_a_current_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found = invoke(*words.split())
    assert (found.exit_code, "the current directory was removed" in said(found)) == (3, True), found.exception


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "Bad file descriptor", 7), OSError(errno.EPIPE, "x")])
def test_an_error_about_no_file_is_a_fault_of_ours(error: OSError) -> None:
    def work(verb: Verb) -> int:
        raise error

    with pytest.raises(OSError, match=r"Bad|x"):
        run_verb("bench", False, work)


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_an_error_of_a_file_system_has_no_traceback(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Python does not know the name of a file that is open."""

    def work(verb: Verb) -> int:
        raise OSError(number, os.strerror(number))

    assert run_verb("bench", False, work) == 3
    assert capsys.readouterr().err.startswith(f"quickstart bench: a file: {os.strerror(number)}\n  ")


@pytest.mark.parametrize("words", ["cache gc", "cache ls", "profile check nginx"])
@pytest.mark.parametrize("root", ["/dev/null/store", f"/{'x' * 300}", ""])
def test_a_store_that_cannot_be_ends_no_verb_with_a_traceback(
    monkeypatch: pytest.MonkeyPatch, words: str, root: str
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("QUICKSTART_CACHE", root)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    found = invoke(*words.split())
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    assert root or (found.exit_code, "set QUICKSTART_CACHE" in said(found)) == (3, True)


@pytest.mark.parametrize("used_s", [99999999999999999, -99999999999999999])
def test_a_time_that_no_calendar_has_is_shown(used_s: int) -> None:
    """tmpfs, xfs and btrfs keep such times."""
    entry = Kept(stage="trace", key="a" * 32, path=Path("a" * 32), size_bytes=0, used_s=used_s)
    assert ("  9999-" if used_s > 0 else "  19") in cache._line(entry)


@pytest.mark.parametrize("verb", ["ls", "audit", "why", "diff"])
@pytest.mark.parametrize("long", [False, True])
def test_a_path_that_leads_to_nothing(tmp_path: Path, verb: str, long: bool) -> None:
    """A loop of links, or a name that no file can have."""
    out = tmp_path / ("a" * 300 if long else "loop")
    if not long:
        out.symlink_to("loop")
    more = {"why": ["/x"], "diff": [str(out)]}.get(verb, [])
    found = invoke(verb, str(out), *more)
    assert found.exit_code == 2
    assert "give another path" in said(found)
