"""Directories where another user, who exists here, may rename and replace files: what root does in them, and what root refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import quickstart
from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.errors import BadInputError, HostLacksError
from quickstart.host.places import swapped_by_others
from quickstart.launch import accel
from quickstart.report import document
from quickstart.store.store import Store, key_of
from tests.unit.benchdata import realistic
from tests.unit.outs import write_manifest

COMMAND = Path(sys.executable).with_name("quickstart")
STRANGER = 4242


def outside(uid: int) -> int:
    """The user ID that ``uid`` has outside of our user namespace, in which an ordinary user runs these tests. QuickStart
    finds the owners of directories there.
    """
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inner, outer, count = map(int, line.split())
        if inner <= uid < inner + count:
            return outer + uid - inner
    return uid


STRANGER_OUTSIDE = outside(STRANGER)
LIMIT_S = 120.0
CELL = ["--profile=nginx", "--configuration=standard", "--storage=local", "--clock=virtual"]


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory of another user."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they give files to others")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    return theirs


def out_in(place: Path) -> Path:
    out = place / "out"
    out.mkdir()
    write_manifest(out)
    return out


# ---------------------------------------------------------------- the store


def test_no_store_below_another_users_directory(theirs: Path) -> None:
    (theirs / "roots").mkdir()
    for place in (theirs / "roots/store", theirs / "store"):
        with Store(place) as store:
            with pytest.raises(
                HostLacksError, match=f"belongs to another user .{STRANGER_OUTSIDE}.*is run here"
            ):
                store.get_or_make("agent", {}, lambda directory: None)
            with pytest.raises(HostLacksError, match="is run here"):
                store.find("agent", {})
    assert sorted(theirs.iterdir()) == [theirs / "roots"]
    assert list((theirs / "roots").iterdir()) == []


def test_a_link_to_the_store_that_another_user_made(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "own").mkdir()
    (link := tmp_path / "sticky/store").symlink_to(tmp_path / "own")
    with Store(link) as store:
        assert store.get_or_make("agent", {}, lambda directory: None).made
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with Store(link) as store, pytest.raises(HostLacksError, match="belongs to another user"):
        store.get_or_make("agent", {}, lambda directory: None)


@pytest.mark.parametrize("name", ["store", "store/agent"])
def test_somebody_makes_the_store_before_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In /tmp, after we have looked and before we make it."""
    (sticky := tmp_path / "sticky").mkdir()
    sticky.chmod(0o1777)
    real = Path.mkdir

    def later(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self == sticky / name:
            real(self)
            os.chown(self, STRANGER, STRANGER)
        real(self, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", later)
    made: list[Path] = []
    with Store(sticky / "store") as store, pytest.raises(HostLacksError, match="is run here"):
        store.get_or_make("agent", {}, made.append)
    assert made == []
    # Not even a lock of root's is in what is theirs.
    assert list((sticky / name).iterdir()) == []


def test_no_store_that_is_open_to_others(tmp_path: Path, theirs: Path) -> None:
    """As /tmp itself: the sticky bit keeps nobody from making an entry that we would run, or one that `cache gc` removes."""
    (tmp_path / "victim" / ("a" * 32)).mkdir(parents=True)
    for mode in (0o1777, 0o1775):
        (place := tmp_path / f"{mode:o}").mkdir()
        place.chmod(mode)
        shutil.copytree(theirs, place / "agent")
        (place / "agent" / ("b" * 32)).mkdir()
        with Store(place) as store:
            for ask in (
                lambda: store.find("agent", {}),
                lambda: store.get_or_make("agent", {}, lambda made: None),
                lambda: store.remove(next(iter(store.entries()))),
                store.remove_locks,
                lambda: list(store.marks("agent")),
            ):
                with pytest.raises(HostLacksError, match=f"{place} can be written by others.*is run here"):
                    ask()
                (place / "agent" / f"{'c' * 32}.lock").touch()
        # One in it is made.
        with Store(place / "ours") as store:
            assert store.get_or_make("agent", {}, lambda made: None).made


def test_the_owner_of_a_given_top_directory_is_the_image_s(tmp_path: Path) -> None:
    def make(directory: Path) -> None:
        (directory / "root").mkdir()
        os.chown(directory / "root", STRANGER, STRANGER)

    for made in (True, False):
        with Store(tmp_path / "store") as store:
            assert store.get_or_make("reference", {"kind": "tar"}, make).made == made
            assert store.find("reference", {"kind": "tar"})
            assert len(list(store.marks("reference"))) == 1
            # Of no other stage, and nothing else of an entry.
            with pytest.raises(HostLacksError, match="belongs to another user"):
                store.get_or_make("disk", {}, make)
                store.find("disk", {})


def test_the_verdict_on_kvm_is_written_through_nobody_s_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another user makes `verdicts` while we try, in a store that was open to others until then."""
    (kernel := tmp_path / "kernel").write_bytes(b"kernel")
    (target := tmp_path / "shadow").write_text("root's\n")
    (place := tmp_path / "store").mkdir()

    def tried(kernel: Path) -> bool:
        (place / "verdicts").mkdir()
        os.chown(place / "verdicts", STRANGER, STRANGER)
        (place / "verdicts" / f"{keys[-1]}.{os.getpid()}").symlink_to(target)
        return True

    keys: list[str] = []

    def noted(stage: str, inputs: Mapping[str, object]) -> str:
        keys.append(key_of(stage, inputs))
        return keys[-1]

    access = os.access
    monkeypatch.setattr(accel, "key_of", noted)
    monkeypatch.setattr(accel, "_try_kvm", tried)
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev/kvm" or access(path, mode))
    with Store(place) as store, pytest.raises(HostLacksError, match="is run here"):
        accel.choose(kernel, store)
    assert target.read_text() == "root's\n"


# ---------------------------------------------------------------- OUT


def test_a_build_is_not_led_elsewhere(theirs: Path, tmp_path: Path) -> None:
    """Whom the directory belongs to swaps the one that is being made for a link; root gave what is there to all."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    with suppress(BadInputError), output.new_directory(theirs / "out") as partial:
        partial.rename(theirs / "aside")
        partial.symlink_to(closed)
    assert closed.stat().st_mode & 0o777 == 0o700


def test_a_link_that_says_where_out_is(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (link := tmp_path / "sticky/out").symlink_to(tmp_path / "elsewhere")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(BadInputError, match="sticky/out belongs to another user"):
        output.check_place(link)


def test_a_link_of_the_name_that_out_has_by_default(theirs: Path, tmp_path: Path) -> None:
    """In /tmp another user knows the name of root's OUT beforehand."""
    elsewhere = out_in(tmp_path)
    (sticky := tmp_path / "sticky").mkdir()
    sticky.chmod(0o1777)
    (link := sticky / "quickstart-nginx").symlink_to(elsewhere)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    done = subprocess.run(
        [COMMAND, "build", "--profile", "nginx"],
        capture_output=True,
        cwd=sticky,
        timeout=LIMIT_S,
        env={**os.environ, "QUICKSTART_CACHE": str(tmp_path / "store")},
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, f"{link} belongs to another user ({STRANGER})" in said) == (2, True), said
    assert artefacts.load(elsewhere).profile_name == "app"


def test_the_verbs_that_boot_or_write_refuse_it_and_those_that_look_do_not(theirs: Path) -> None:
    out = out_in(theirs)
    environment = {**os.environ, "QUICKSTART_CACHE": str(theirs.parent / "store")}
    for words in (["run", out, "--check"], ["verify", out], ["rebuild", out], ["shell", out]):
        done = subprocess.run(
            [COMMAND, *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            env=environment,
            check=False,
        )
        said = done.stderr.decode()
        assert (done.returncode, f"{theirs} belongs to another user ({STRANGER})" in said) == (2, True), said
        assert "cp -r" in said or "-o in a directory of yours" in said
    for words in (
        ["build", "--profile", "nginx", "-o", theirs / "new"],
        ["trace", "--profile", "nginx", "-o", theirs / "new"],
    ):
        done = subprocess.run(
            [COMMAND, *map(str, words)], capture_output=True, timeout=LIMIT_S, env=environment, check=False
        )
        said = done.stderr.decode()
        assert (done.returncode, f"{theirs} belongs to another user ({STRANGER})" in said) == (2, True), said
        assert "choose an -o in a directory of yours" in said
    assert sorted(each.name for each in theirs.iterdir()) == ["out"]
    # Whoever wants to look before a copy is made.
    assert artefacts.load(out).profile_name == "app"


@pytest.mark.parametrize("kind", ["another user's", "with another user's figures"])
@pytest.mark.parametrize("options", [["--report"], CELL])
def test_results_go_into_no_directory_of_another_user(
    tmp_path: Path, kind: str, options: Sequence[str]
) -> None:
    """He would put a link in place of `figures` while the report is drawn."""
    place, figures = tmp_path / "results", tmp_path / "results/figures"
    figures.mkdir(parents=True)
    stranger = place if kind == "another user's" else figures
    os.chown(stranger, STRANGER, STRANGER)
    document.save(realistic(), place / "results.json")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [COMMAND, "bench", *options, "-o", place],
        capture_output=True,
        timeout=LIMIT_S,
        env={**os.environ, "QUICKSTART_CACHE": str(tmp_path / "store")},
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, f"{stranger} belongs to another user ({STRANGER})" in said) == (2, True), said
    assert sorted(tmp_path.rglob("*")) == before


def test_an_out_of_another_user_in_a_sticky_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    out = out_in(tmp_path)
    with output.in_use(out):
        pass
    os.chown(out, STRANGER, STRANGER)
    with (
        pytest.raises(BadInputError, match=f"out belongs to another user .{STRANGER_OUTSIDE}"),
        output.in_use(out),
    ):
        pytest.fail("it was used")
    os.chown(out, 0, 0)
    os.chown(out / "root.raw", STRANGER, STRANGER)
    with pytest.raises(BadInputError, match=r"root\.raw belongs to another user"), output.in_use(out):
        pytest.fail("it was used")


def test_whoever_can_change_the_program_is_trusted_as_it_is(theirs: Path) -> None:
    """`make demo` by root in another user's clone: that user has root's rights by the program already."""
    shutil.copytree(
        Path(quickstart.__file__).parent, theirs / "quickstart", ignore=shutil.ignore_patterns("__pycache__")
    )
    script = "import sys, pathlib, quickstart.host.places as p; print(p.swapped_by_others(pathlib.Path(sys.argv[1])))"
    said = subprocess.run(
        [sys.executable, "-B", "-c", script, theirs / "out"],
        capture_output=True,
        cwd="/",
        env={"PYTHONPATH": str(theirs), "PATH": "/usr/bin:/bin"},
        timeout=LIMIT_S,
        check=True,
        text=True,
    )
    assert said.stdout == "\n"
    assert swapped_by_others(theirs / "out") == f"{theirs} belongs to another user ({STRANGER_OUTSIDE})"


# ---------------------------------------------------------------- a FUSE that says all is root's

# A directory of root's that anybody may mount: mode and owner are what it says, whoever serves it. $2 is who mounted it.
LIAR = """
import ctypes, os, struct, sys
from pathlib import Path
from quickstart.host.beneath import read_judged
from quickstart.host.places import swapped_by_others
from quickstart.store.store import Store
place, mounter, silent = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "silent"
fuse = os.open("/dev/fuse", os.O_RDWR)
words = f"fd={fuse},rootmode=40000,user_id={mounter},group_id={mounter},allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
# linux/mount.h: MS_NOSUID | MS_NODEV
if libc.mount(b"liar", os.fsencode(place), b"fuse", 6, words) != 0:
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
server = os.fork()
if server == 0:
    # linux/fuse.h; attr: ino, size, blocks, times, mode, nlink, uid, gid, rdev, blksize, flags
    attr = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
    answers = {
        26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 1, 1, 65536, 1, 1, 0, 0),
        3: struct.pack("<QII", 0, 0, 0) + attr,
        17: bytes(80),
    }
    # Its one file, whose node is 2.
    file = struct.pack("<6Q10I", 2, 4, 1, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
    of_file = {3: struct.pack("<QII", 0, 0, 0) + file, 15: b"text", 17: bytes(80)}
    while True:
        asked = os.read(fuse, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", asked)
        answer = (of_file if node == 2 else answers).get(opcode)
        if opcode == 1 and asked[40:] == b"file\\0":
            answer = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + file
        if silent and opcode != 26:
            answer = None
        # FORGET and its like want none.
        if opcode not in (2, 36, 42):
            error = 0 if answer is not None else (-2 if opcode == 1 else -38)
            os.write(fuse, struct.pack("<IiQ", 16 + len(answer or b""), error, unique) + (answer or b""))
try:
    print(swapped_by_others(place / "store") if len(sys.argv) < 5 else read_judged(place / "file", 9))
finally:
    os.kill(server, 9)
    os.waitpid(server, 0)
"""


@pytest.fixture
def in_namespace(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The beginning of an argv that mounts where nobody else sees it."""
    yield (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        LIAR,
        str(tmp_path / "liar"),
    )


@pytest.mark.host_root
@pytest.mark.parametrize(
    ("mounter", "answers", "said"),
    [
        (
            str(STRANGER),
            "lies",
            f"lies on a FUSE file system of another user ({STRANGER}), who says of owners what he likes\n",
        ),
        (
            str(STRANGER),
            "silent",
            "lies on a FUSE file system of nobody known, who says of owners what he likes\n",
        ),
        # What root has mounted is what root says.
        ("0", "lies", "\n"),
    ],
)
def test_a_fuse_that_says_it_is_roots(
    tmp_path: Path, in_namespace: tuple[str, ...], mounter: str, answers: str, said: str
) -> None:
    if not Path("/dev/fuse").exists():
        pytest.fail("this kernel has no FUSE: modprobe fuse")
    (tmp_path / "liar").mkdir()
    done = subprocess.run(
        [*in_namespace, mounter, answers], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = said if said == "\n" else f"{tmp_path}/liar {said}"
    assert done.stdout == wanted


@pytest.mark.host_root
@pytest.mark.parametrize("mounter", [str(STRANGER), "0"])
def test_commands_of_a_profile_on_such_a_fuse_are_its_mounters(
    tmp_path: Path, in_namespace: tuple[str, ...], mounter: str
) -> None:
    (tmp_path / "liar").mkdir()
    done = subprocess.run(
        [*in_namespace, mounter, "lies", "read"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{(b'text', '' if mounter == '0' else f'{tmp_path}/liar')}\n"
