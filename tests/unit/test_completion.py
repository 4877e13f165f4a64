"""What completion offers to a shell: verbs, profiles, directories that are artefacts; and the scripts that ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from quickstart.cli.main import group


def offered(*words: str) -> list[tuple[str, str]]:
    complete = ShellComplete(group, {}, "quickstart", "_QUICKSTART_COMPLETE")
    return [(each.type, each.value) for each in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("web", "webs/old"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("")
    (tmp_path / "weather").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    found = CliRunner().invoke(group, ["completion", shell])
    assert found.exit_code == 0
    assert f"_QUICKSTART_COMPLETE={shell}_complete" in found.stdout


def test_an_unknown_shell() -> None:
    assert CliRunner().invoke(group, ["completion", "tcsh"]).exit_code == 2


def test_verbs() -> None:
    assert ("plain", "audit") in offered("au")


@pytest.mark.parametrize("verb", ["build", "shell", "trace"])
def test_profiles(verb: str) -> None:
    assert ("plain", "nginx") in offered(verb, "--profile", "ng")
    assert offered(verb, "--profile", "./") == [("dir", "./")]


def test_a_profile_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "mint"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine/profile.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert offered("build", "--profile", "mi") == [("plain", "mine")]
    assert offered("profile", "check", "mi") == [("plain", "mine")]


@pytest.mark.parametrize("verb", ["run", "ls", "cat", "why", "diff", "audit", "shell"])
def test_artefacts(verb: str) -> None:
    assert offered(verb, "we") == [("plain", "web")]
    assert offered(verb, "webs/") == [("plain", "webs/old")]


def test_the_second_artefact_of_diff() -> None:
    assert offered("diff", "web", "w") == [("plain", "web")]


def test_directories_where_there_is_no_artefact() -> None:
    assert offered("run", "wea") == [("dir", "wea")]
    assert offered("run", "none/x") == [("dir", "none/x")]


def test_an_absolute_name(tmp_path: Path) -> None:
    assert offered("run", f"{tmp_path}/we") == [("plain", f"{tmp_path}/web")]


def test_moments() -> None:
    assert offered("run", "--when", "") == [("plain", "ready"), ("plain", "settled")]


@pytest.mark.parametrize(
    "name",
    ["a;id", "a$(id)", "a`id`", "a|id", "a&id", "a>b", "a b", "a'b", "a\\b", "a\nb", "a!b", "~", "-a", "a*"],
)
def test_no_name_that_a_shell_could_run_or_take_for_an_option(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "manifest.json").write_text("")
    (tmp_path / name / "profile.toml").write_text("")
    assert offered("run", "") == [("plain", "web")]
    assert ("plain", name) not in offered("build", "--profile", "")
    (tmp_path / name / "below").mkdir()
    (tmp_path / name / "below/manifest.json").write_text("")
    assert offered("run", f"./{name}/") == [("dir", f"./{name}/")] or name == "-a"


@pytest.mark.parametrize("name", ["näme", "a-b_c.d", "a+b", "v1:2"])
def test_names_that_are_no_more_than_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "manifest.json").write_text("")
    assert ("plain", name) in offered("run", "")
