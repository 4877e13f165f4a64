"""manifest.json and start-set.json of strangers: what no build writes is refused before it is used, with one line and status 2."""

from __future__ import annotations

import json
import os
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quickstart.artefact import manifest as manifests
from quickstart.artefact.directory import load, run_script
from quickstart.artefact.manifest import Manifest, read_manifest, read_start_set
from quickstart.errors import ArtefactError, BadInputError
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.serving import Delivery
from quickstart.model.words import Payload
from tests.unit.outs import READY, change, manifest_of, write_manifest

GUESTFWD = "80,guestfwd=tcp:10.0.2.100:1234-cmd:/path/script"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_manifest(tmp_path)
    return tmp_path


def sets(*path: str, to: object) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return edit


HOSTILE = {
    "the issue's: a port that is words of -netdev": sets("ready", "port", to=GUESTFWD),
    "a port behind the last": sets("ready", "port", to=65536),
    "a port below the first": sets("ready", "port", to=-1),
    "a port that is true": sets("ready", "port", to=True),
    "no port to ask": sets("ready", "port", to=0),
    "a kind that the agent does not know": sets("ready", "kind", to="exec'; reboot; '"),
    "a path with a line of its own": sets("ready", "path", to="/\r\nHost: other"),
    "a path that is none": sets("ready", "path", to="@evil.example/"),
    "a command that is two lines": sets("ready", to={**vars(READY), "kind": "exec", "command": "a\nb"}),
    "a command that moves the cursor": sets(
        "ready", to={**vars(READY), "kind": "exec", "command": "\x1b[2J"}
    ),
    "an account that is an option": sets("ready", to={**vars(READY), "kind": "mysql", "account": "a b"}),
    "a time without an end": sets("ready", "timeout_s", to=10**9),
    "another key of ready": sets("ready", "netdev", to="user"),
    "memory that is an option": sets("memory_mib", to="1024,slots=4"),
    "memory without an end": sets("memory_mib", to=1 << 40),
    "memory of half a MiB": sets("memory_mib", to=0.5),
    "a MAC that is an option": sets("mac", to="52:54:00:00:00:01,romfile=/etc/shadow"),
    "a MAC of a group": sets("mac", to="ff:ff:ff:ff:ff:ff"),
    "a UUID that is an option": sets("uuid", to="0 -S"),
    "a command line of two lines": sets("cmdline", to="ro\ninit=/bin/sh"),
    "a command line that the shell of run.sh would run": sets("cmdline", to="ro $(touch /pwned)"),
    "a command line that ends its quotes": sets("cmdline", to='ro" -drive file=/etc/shadow "'),
    "a command line that is too long": sets("cmdline", to="a" * 2049),
    "a disk above OUT": sets("disk", "name", to="../root.raw"),
    "a disk elsewhere": sets("disk", "name", to="/dev/sda"),
    "a format that is an option": sets("disk", "format", to="raw,readonly=off"),
    "a format that is probed": sets("disk", "format", to="vmdk"),
    "a name of another format": sets("disk", "format", to="qcow2"),
    "a size that is infinite": sets("disk", "size_bytes", to=float("inf")),
    "a size that is not there": sets("disk", "size_bytes", to=1 << 45),
    "a disk of the target disk": sets("disk", "name", to="disk.raw"),
    "a target without its disk": sets("target", to="disk"),
    "a root volume within the disk": sets("disk", "root_at_bytes", to=1 << 20),
    "a root volume before the disk": sets("disk", "root_at_bytes", to=-512),
    "a root volume in the middle of a sector": sets("disk", "root_at_bytes", to=1000),
    "a root volume behind every disk": sets("disk", "root_at_bytes", to=1 << 60),
    "a root volume behind its disk": sets(
        "disk", to={"name": "disk.raw", "format": "raw", "size_bytes": 4096, "root_at_bytes": 4096}
    ),
    "a root volume that is words": sets("disk", "root_at_bytes", to="512,offset=1"),
    "an empty disk": sets("disk", "size_bytes", to=0),
    "a file that is not ours": sets("files", "../../etc/passwd", to={"size_bytes": 1, "sha256": "0" * 64}),
    "an empty kernel": sets("files", "vmlinuz", "size_bytes", to=0),
    "a kernel of more bytes than any": sets("files", "vmlinuz", "size_bytes", to=(256 << 20) + 1),
    "a script of more bytes than any": sets(
        "files", "run.sh", to={"size_bytes": (1 << 16) + 1, "sha256": "0" * 64}
    ),
    "a digest that is none": sets("files", "vmlinuz", "sha256", to="0" * 63),
    "an initramfs of two sizes": sets("initramfs_bytes", to=1),
    "an initramfs that would fill the memory": sets("initramfs_unpacked_bytes", to=1 << 40),
    "a profile that is a path": sets("profile", to="../../tmp/evil"),
    "a profile that is an option": sets("profile", to="app,debug-threads=on"),
    "a unit that is none": sets("unit", to="app.service; reboot"),
    "a hash that is a path": sets("image_hash", to="../../x"),
    "a build key that is a path": sets("build_key", to="../x"),
    "an interface that is words": sets("interface", to="eth0 up"),
    "a delivery that is none": sets("delivery", to="slow"),
    "a payload that is none": sets("payload", to="xz"),
    "a hand-off that is none": sets("hand_off", to=["keep"]),
    "a superblock of strings": sets("superblock", "mount_count", to="0"),
    "a volume that is words of the command line": sets("superblock", "uuid", to="x init=/bin/sh"),
    "a secret that is a number": sets("secrets", to=[5]),
    "a secret of a thousand stars": sets("secrets", to=["/" + "*a" * 300]),
    "secrets by more patterns than a profile has": sets("secrets", to=["/**/a"] * 101),
    "a budget below nothing": sets("budget", to={"requests": -1}),
    "a table that is a list": sets("ready", to=[]),
    "a table that is nothing": sets("files", to=None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_by_one_line(out: Path, name: str) -> None:
    change(out, HOSTILE[name])
    with pytest.raises(ArtefactError) as caught:
        load(out)
    said = caught.value.message
    assert re.fullmatch(r"\S+ is (damaged: .{1,300}|missing or cut)", said), said
    assert said.isprintable()
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_a_kernel_of_256_mib_is_none(out: Path) -> None:
    """Of holes."""
    os.truncate(out / "vmlinuz", (256 << 20) + 1)
    change(out, HOSTILE["a kernel of more bytes than any"])
    with pytest.raises(ArtefactError, match=r"damaged: files\.vmlinuz\.size_bytes"):
        load(out)


def test_no_fault_of_a_hostile_manifest_is_due_to_another(out: Path) -> None:
    """What the hostile ones are made from holds."""
    assert load(out).memory_mib == 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 200_000 + b"]" * 200_000, "nested more than 16 deep"),
        (b'{"schema": 1, "disk": ' + b"[" * 50 + b"]" * 50 + b"}", "nested more than 16 deep"),
        (b'{"memory_mib": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b'{"size_bytes": Infinity}', "Infinity is not JSON"),
        (b'{"schema": 1, "schema": 1}', "twice"),
        (b'{"quickstart": "1"}', "schema: missing"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_text_that_is_no_manifest(out: Path, text: bytes, said: str) -> None:
    (out / "manifest.json").write_bytes(text)
    with pytest.raises(ArtefactError, match=f"is damaged: .*{said}"):
        load(out)


@pytest.mark.parametrize("schema", ["2", "true", '"1"', "[1]", "null"])
def test_another_schema(out: Path, schema: str) -> None:
    (out / "manifest.json").write_text(f'{{"schema": {schema}}}')
    with pytest.raises(ArtefactError, match=r"manifest\.json has schema \S+, this quickstart knows 1"):
        load(out)


def test_a_manifest_without_an_end(out: Path) -> None:
    with (out / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInputError, match=f"{1 << 40} bytes; at most 1048576 are read"):
        load(out)


def test_what_an_earlier_quickstart_did_not_say_has_a_default(out: Path) -> None:
    later = ("unit", "initramfs_unpacked_bytes")
    change(out, lambda document: [document.pop(name) for name in later])
    change(out, lambda document: [document["ready"].pop(name) for name in ("loopback", "account")])
    found = read_manifest(out)
    assert (found.payload, found.delivery, found.hand_off, found.trace_hashes) == ("cpio", "fast", "keep", ())
    assert found.unpacked_bytes == found.initramfs_bytes
    assert found.root_budget.requests == 80
    assert load(out).early == "always"


def test_what_a_newer_quickstart_says_more_is_passed_by(out: Path) -> None:
    change(out, lambda document: document.update(engine="restore", stack=[{"unit": "x"}]))
    assert load(out).profile_name == "app"


def test_the_words_are_those_of_the_options() -> None:
    for name, words in (("hand_off", HandOff), ("delivery", Delivery), ("payload", Payload)):
        known = typing.get_args(Manifest.model_fields[name].annotation)
        assert set(known) == {each.value for each in words}


def test_run_sh_has_what_the_manifest_says(out: Path) -> None:
    text = run_script(read_manifest(out))
    assert "@" not in text.replace("$@", "")
    assert "-m 1024 " in text
    assert 'hostfwd=tcp:127.0.0.1:${PORT:-8080}-:80"' in text


# ---------------------------------------------------------------- start-set.json

FILE = {"path": "/usr/app", "kind": "file", "size_bytes": 1, "reasons": ["trace: x"]}


@pytest.mark.parametrize(
    "file",
    [
        {**FILE, "path": "usr/app"},
        {**FILE, "path": "/" + "a/" * 4096},
        {**FILE, "path": ["/usr/app"]},
        {**FILE, "path": "/a\0b"},
        {**FILE, "kind": "device"},
        {**FILE, "size_bytes": -1},
        {**FILE, "size_bytes": "1"},
        {**FILE, "target": "a/" * 5000},
        {**FILE, "reasons": "trace: x"},
        {**FILE, "reasons": [5]},
        {**FILE, "reasons": ["x"] * 10_001},
    ],
)
def test_a_hostile_start_set_is_refused_by_one_line(tmp_path: Path, file: dict[str, object]) -> None:
    document = {"files": [FILE], "excluded": [], "schema": 1}
    (tmp_path / "start-set.json").write_text(json.dumps(document))
    assert read_start_set(tmp_path).files[0].path == "/usr/app"
    (tmp_path / "start-set.json").write_text(json.dumps({**document, "files": [FILE, file]}))
    with pytest.raises(ArtefactError, match=r"start-set\.json cannot be read: files\[1\]") as caught:
        read_start_set(tmp_path)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600


def test_any_name_is_a_path(tmp_path: Path) -> None:
    document = {"files": [{**FILE, "path": "/caf\udcff\n"}], "excluded": [{"path": "/\udc80", "rule": "x"}]}
    (tmp_path / "start-set.json").write_text(json.dumps(document))
    assert read_start_set(tmp_path).files[0].path == "/caf\udcff\n"


def test_a_thousand_faults_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "start-set.json").write_text(json.dumps({"files": [{}] * 100_000, "excluded": []}))
    with pytest.raises(ArtefactError) as caught:
        read_start_set(tmp_path)
    assert len(caught.value.message) < 600


def test_the_start_set_of_the_largest_budget_is_read(tmp_path: Path) -> None:
    """20 000 files are more than any service has shown."""
    files = [
        {**FILE, "path": f"/usr/lib/some/where/{number}", "reasons": ["x" * 300]} for number in range(20_000)
    ]
    (tmp_path / "start-set.json").write_text(json.dumps({"files": files, "excluded": []}))
    assert len(read_start_set(tmp_path).files) == 20_000


@pytest.mark.parametrize(("key", "entry"), [("files", FILE), ("excluded", {"path": "/x", "rule": "x"})])
def test_a_start_set_has_no_more_files_than_an_initramfs(
    tmp_path: Path, key: str, entry: dict[str, object]
) -> None:
    """9.6 MB of them took 453 MiB."""
    for count in (100_000, 100_001):
        document = {"files": [], "excluded": [], key: [entry] * count}
        (tmp_path / "start-set.json").write_text(json.dumps(document))
        if count == 100_000:
            assert len(getattr(read_start_set(tmp_path), key)) == count
    with pytest.raises(ArtefactError, match=f"cannot be read: {key}: .*at most 100000 items"):
        read_start_set(tmp_path)


def test_the_limits_are_larger_than_what_is_written(tmp_path: Path) -> None:
    assert len(json.dumps(manifest_of(tmp_path), indent=1)) < manifests._MANIFEST_BYTES // 100
