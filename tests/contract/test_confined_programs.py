"""Programs that AppArmor confines in a stock boot, and that have begun before its profiles were loaded."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces

pytestmark = pytest.mark.host_root

INIT = Path(__file__).parents[2] / "quickstart/initramfs/init"
SECONDS = 60.0
SHELLS = [("dash",), ("busybox", "sh")]
# Control groups as files, and a process `$pid` in one of them. `$1` is the caretaker, `$2` a place of ours.
MACHINE = r"""
set -eu
mount -t proc proc /proc
mount -t tmpfs none /sys/fs/cgroup
group=/sys/fs/cgroup/system.slice/app.service/below
mkdir -p "$group"
cd "$2"
%s &
pid=$!
echo $pid >"$group/cgroup.procs"
: >/sys/fs/cgroup/system.slice/app.service/cgroup.procs
# Until it has become what it is to be.
sleep 0.3
%s
status=0
"$1" find-unconfined "$2/patterns" system.slice/none.service system.slice/app.service || status=$?
echo $status
"""


def found(place: Path, caretaker: Path, patterns: str, starts: str, then: str = "") -> list[str]:
    """What the caretaker says of a machine with that process, and its status."""
    (place / "patterns").write_text(patterns)
    script = MACHINE % (starts.format(place), then)
    done = subprocess.run(
        [*own_namespaces(), "sh", "-c", script, "sh", str(caretaker), str(place)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """With a program and a script."""
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/capture").write_bytes(Path("/usr/bin/sleep").read_bytes())
    (tmp_path / "usr/bin/capture").chmod(0o755)
    script = tmp_path / "usr/bin/a-script-with-a-long-name"
    script.write_text(f"#!/bin/sh -u\nread -r x <>{tmp_path}/fifo\n")
    script.chmod(0o755)
    subprocess.run(["mkfifo", tmp_path / "fifo"], check=True, timeout=SECONDS)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "is_found"),
    [
        ("{}/usr/bin/capture", True),
        ("{}/usr/*/capture", True),
        ("/other\n{}/usr/bin/cap*", True),
        ("*/capture\n", True),
        ("{}/usr/bin/captur", False),
        ("{}/usr/bin/capture*e", False),
        ("/usr/bin/sleep\n\n", False),
    ],
)
def test_a_program_is_known_by_its_path(
    place: Path, caretaker: Path, pattern: str, *, is_found: bool
) -> None:
    said = found(place, caretaker, pattern.format(place), "{}/usr/bin/capture 60")
    assert said == ([f"{place}/usr/bin/capture", "0"] if is_found else ["1"])


def test_a_script_that_begins_with_env_is_known_by_its_path(place: Path, caretaker: Path) -> None:
    """AppArmor attaches when it is executed; its name is the interpreter's afterwards."""
    script = place / "usr/bin/a-script-with-a-long-name"
    script.write_text(script.read_text().replace("/bin/sh -u", "/usr/bin/env -S sh -u"))
    assert found(place, caretaker, f"{script}\n", str(script)) == [str(script), "0"]
    script.write_text(script.read_text().replace("env -S sh -u", "env sh"))
    assert found(place, caretaker, f"{script}\n", str(script)) == [str(script), "0"]
    assert found(place, caretaker, f"{script}x\n", str(script)) == ["1"]
    script.write_text(script.read_text().replace("env sh", "environ sh"))
    assert found(place, caretaker, f"{script}\n", f"sh {script}") == ["1"]


def test_a_program_that_was_replaced_is_known_by_its_path(place: Path, caretaker: Path) -> None:
    pattern = f"{place}/usr/bin/capture"
    said = found(place, caretaker, pattern, "{}/usr/bin/capture 60", f"rm {place}/usr/bin/capture")
    assert said == [pattern, "0"]


def test_a_program_of_the_start_set_has_its_path_on_the_volume(tmp_path: Path, caretaker: Path) -> None:
    """In a root of its own, which has a /fast."""
    for name in ("fast/usr/bin", "proc", "sys/fs/cgroup/app.service"):
        (tmp_path / name).mkdir(parents=True)
    for name, source in (
        ("fast/usr/bin/busybox-capture", door.tool_path("busybox")),
        ("caretaker", caretaker),
    ):
        (tmp_path / name).write_bytes(source.read_bytes())
        (tmp_path / name).chmod(0o755)
    (tmp_path / "patterns").write_text("/usr/bin/busybox-capture\n")
    script = """
mount -t proc proc "$1/proc"
chroot "$1" /fast/usr/bin/busybox-capture sleep 60 &
sleep 0.3
echo $! >"$1/sys/fs/cgroup/app.service/cgroup.procs"
exec chroot "$1" /caretaker find-unconfined /patterns app.service
"""
    done = subprocess.run(
        [*own_namespaces(), "sh", "-euc", script, "sh", str(tmp_path)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "/usr/bin/busybox-capture\n", "")


@pytest.mark.parametrize(
    ("starts", "is_found"),
    [
        ("{}/usr/bin/a-script-with-a-long-name", True),
        # It is another program's word, and the kernel has not looked at it.
        ("sh {}/usr/bin/a-script-with-a-long-name", False),
        ("tail -f {}/usr/bin/a-script-with-a-long-name >/dev/null", False),
    ],
)
def test_a_script_is_known_by_its_own_path(
    place: Path, caretaker: Path, starts: str, *, is_found: bool
) -> None:
    pattern = f"{place}/usr/bin/a-script-with-a-long-name"
    said = found(place, caretaker, pattern, starts.replace("{}", str(place)))
    assert said == ([pattern, "0"] if is_found else ["1"])


@pytest.mark.parametrize(
    ("label", "is_found"),
    [("unconfined", True), ("capture (enforce)", False), ("capture (unconfined)", False)],
)
def test_a_process_that_has_its_profile(place: Path, caretaker: Path, label: str, *, is_found: bool) -> None:
    then = f"echo '{label}' >{place}/label; mount --bind {place}/label /proc/$pid/attr/current"
    said = found(place, caretaker, "*/capture", "{}/usr/bin/capture 60", then)
    assert said[-1] == ("0" if is_found else "1")


def function(script: str, name: str) -> str:
    text = re.search(rf"^{name}\(\) \{{.*?^\}}", (INIT / script).read_text(), re.MULTILINE | re.DOTALL)
    assert text
    return text[0]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("files", "status", "said"),
    [
        # No profiles at the build, a kernel without AppArmor, one where it is off: nobody is asked.
        ({"enabled": "Y\n"}, 0, "1"),
        ({"packed.confined": "/a\n"}, 0, "1"),
        ({"packed.confined": "/a\n", "enabled": "N\n"}, 0, "1"),
        ({"packed.confined": "/a\n", "enabled": "Y\n"}, 0, "0 a.slice/b.service c.service"),
        ({"packed.confined": "/a\n", "enabled": "Y\n"}, 1, "1 a.slice/b.service c.service"),
        # A wrong call, no program of that name, killed.
        *(
            ({"packed.confined": "/a\n", "enabled": "Y\n"}, status, "0 a.slice/b.service c.service")
            for status in (2, 127, 137)
        ),
    ],
)
def test_the_hand_off_asks_where_profiles_come_later(
    tmp_path: Path, shell: tuple[str, ...], files: dict[str, str], status: int, said: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    text = function("hand-off", "escapes_profile").replace("/sys/module/apparmor/parameters", str(tmp_path))
    stub = f'caretaker() {{ shift 2; echo "$*"; return {status}; }}'
    script = f"Q={tmp_path} GROUPS_OF_ALL='a.slice/b.service c.service' escaped=\n{stub}\n{text}\nr=0; escapes_profile || r=$?"
    done = subprocess.run(
        [*shell, "-uc", f"{script}; echo $r $escaped"], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.stdout.strip(), done.stderr) == (said, "")


def test_it_is_asked_before_the_machine_changes_hands() -> None:
    text = function("hand-off", "hand_off")
    assert 0 < text.index("escapes_profile || fall_back") < text.index("stamp hand-off")
