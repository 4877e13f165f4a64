"""`quickstart profile new` and `check` up to the first guest: usage, all faults at once, and results that are
in the store already.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quickstart.cli.main import group
from quickstart.engines.boot import TraceOptions
from quickstart.newprofile.check import check
from quickstart.profile import parse_profile, spelled
from quickstart.reference import entry
from quickstart.reference.debootstrap import reference_inputs
from quickstart.store.store import Store
from tests.unit.imagebuilder import Image, small_image
from tests.unit.smallprofile import SMALL

NEW = ("profile", "new", "app", "--package", "app", "--unit", "app", "--ready", "http:80/")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(group, arguments)


def error(found: Result) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(found.stdout)["error"]
    assert found.exit_code == said["exit_code"]
    return said


def written(tmp_path: Path, text: str = SMALL) -> str:
    (tmp_path / "mine").mkdir(exist_ok=True)
    (tmp_path / "mine/profile.toml").write_text(text)
    return str(tmp_path / "mine")


# ---------------------------------------------------------------- new


@pytest.mark.parametrize("left_out", ["--package", "--unit"])
def test_what_has_to_be_said(left_out: str) -> None:
    words = list(NEW)
    at = words.index(left_out)
    assert invoke(*words[:at], *words[at + 2 :]).exit_code == 2


def test_an_image_comes_from_one_place() -> None:
    found = invoke(*NEW, "--image", "disk.raw", "--rootfs", "root.tar", "--json")
    assert error(found)["message"] == "--rootfs and --image each name an image"


@pytest.mark.parametrize("words", [("--ready", "udp:1"), ("--unit", "a.socket"), ("--suite", "A B")])
def test_options_that_do_not_hold(tmp_path: Path, words: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    assert error(invoke(*NEW, *words, "-o", str(out), "--json"))["exit_code"] == 2
    assert not out.exists()


def test_a_place_that_is_taken_is_seen_first(tmp_path: Path) -> None:
    out = written(tmp_path)
    assert error(invoke(*NEW, "-o", out, "--json"))["kind"] == "OutputExistsError"
    assert (tmp_path / "mine/profile.toml").read_text() == SMALL


def test_without_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert error(invoke(*NEW, "-o", str(tmp_path / "out"), "--json"))["kind"] == "NeedsRootError"
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- check


def test_ours_hold() -> None:
    for name in ("nginx", "apache", "mysql"):
        found = invoke("profile", "check", name, "--json")
        assert found.exit_code == 0, found.stdout
        result = json.loads(found.stdout)["result"]
        assert (result["profile"], result["unit"], result["start_set_files"]) == (name, None, None)
        assert [each["stored"] for each in result["stages"]] == [False]


def test_one_without_an_image_says_so(tmp_path: Path) -> None:
    found = invoke("profile", "check", written(tmp_path))
    assert found.exit_code == 0
    assert "the store has no image of this profile" in " ".join(found.stdout.split())


def test_every_fault_of_the_text(tmp_path: Path) -> None:
    text = SMALL.replace("port = 80", 'prot = "x"').replace('"app.service"', '"a/b"')
    said = error(invoke("profile", "check", written(tmp_path, text), "--json"))
    assert (said["kind"], said["exit_code"]) == ("ProfileError", 2)
    for fault in ("unit: ", "ready.prot: no such key; did you mean 'port'?"):
        assert fault in "\n".join(said["details"])


def test_no_such_profile() -> None:
    found = invoke("profile", "check", "ngnix", "--json")
    assert (found.exit_code, error(found)["hint"]) == (2, "did you mean 'nginx'?")


UNIT = "[Service]\nExecStartPre=/usr/bin/app -t\nExecStart=/usr/bin/app\n"


def stored(tmp_path: Path, unit: str) -> Store:
    """A store with an image for SMALL in which the unit is as ``unit`` says."""

    def make(directory: Path) -> None:
        image: Image = small_image(directory / "root")
        image.file("/usr/lib/systemd/system/app.service", unit)
        image.file("/etc/fstab", "UUID=1 / ext4 defaults 0 1\n")
        image.file("/etc/systemd/system/multi-user.target.wants/networking.service")
        for name in ("vmlinuz", "initrd.img"):
            image.file(f"/boot/{name}-6.1.0")
        entry.write_facts(directory, "11111111-2222-3333-4444-555555555555", "root")

    store = Store(tmp_path / "store")
    store.get_or_make("reference", reference_inputs(parse_profile(SMALL, "x")), make)
    return store


def test_with_an_image_in_the_store(tmp_path: Path) -> None:
    store = stored(tmp_path, UNIT)
    checked = check(written(tmp_path), TraceOptions(), store)
    assert checked.unit is not None
    assert (checked.unit.type, checked.unit.start.program) == ("simple", "/usr/bin/app")
    assert [(stage, have) for stage, _, have in checked.stages] == [
        ("reference", True),
        ("disk", False),
        ("trace", False),
    ]
    found = invoke("profile", "check", written(tmp_path))
    assert "app.service (Type=simple) can start early; ExecStartPre /usr/bin/app -t" in found.stdout


def test_every_fault_that_the_image_shows(tmp_path: Path) -> None:
    stored(tmp_path, UNIT + "RootEphemeral=yes\n")
    text = SMALL + '[files]\ninclude = ["/no/such"]\n'
    said = error(invoke("profile", "check", written(tmp_path, text), "--json"))
    assert said["exit_code"] == 2
    for fault in (
        "it has RootEphemeral",
        "files.include of the profile names nothing in the image: /no/such",
    ):
        assert fault in "\n".join(said["details"])


def test_a_kernel_that_does_not_take_the_payload_is_a_fault(tmp_path: Path) -> None:
    stored(tmp_path, UNIT)
    text = SMALL.replace("schema = 1\n", 'schema = 1\npayload = "lz4"\n')
    said = error(invoke("profile", "check", written(tmp_path, text), "--json"))
    assert said["exit_code"] == 2
    assert "the image has no /boot/config-6.1.0" in "\n".join(said["details"])


def test_nothing_is_made(tmp_path: Path) -> None:
    stored(tmp_path, UNIT)
    before = sorted((tmp_path / "store").rglob("*"))
    assert invoke("profile", "check", written(tmp_path)).exit_code == 0
    assert sorted((tmp_path / "store").rglob("*")) == before


# ---------------------------------------------------------------- --profile DIR everywhere


def test_the_bench_takes_a_directory_without_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (spelled("mine"), spelled("nginx"), spelled("none")) == ("./mine", "nginx", "none")
    words = (
        "bench",
        "--profile",
        "mine",
        "--configuration",
        "standard",
        "--storage",
        "local",
        "--dry-run",
        "--json",
    )
    found = invoke(*words, "--clock", "wall")
    assert found.exit_code == 0, found.stderr
    assert "./mine" in found.stdout


@pytest.mark.parametrize("verb", [("build", "--dry-run"), ("shell", "--at", "reference")])
def test_a_directory_where_a_name_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = invoke(*verb, "--profile", "mine")
    assert "there is no profile" not in found.stderr
