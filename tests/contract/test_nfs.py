"""An image on a real NFS server behind a link: its bytes, the link's rate, and that nothing stays afterwards (as root)."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.errors import MissingToolError, VolumeError
from quickstart.host.files import temporary_directory
from quickstart.host.namespaces import own_namespaces
from quickstart.volume import nfs
from quickstart.volume.nbd import Connection, read_extents
from quickstart.volume.nfs import NfsVolume, exported

# The server opens files by their handles.
pytestmark = pytest.mark.host_root

SIZE_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 128 * 1024
SECONDS = 30.0


@pytest.fixture
def image(tmp_path: Path) -> Path:
    # A name that a URL and a shell would both take for something else.
    place = tmp_path / "a store's key"
    place.mkdir()
    file = place / "disk #1.img"
    file.write_bytes(random.Random(1).randbytes(SIZE_BYTES))
    return file


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def inside(namespace: str) -> dict[int, str]:
    """The processes of a PID namespace, by their names."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str((place / "ns/pid").readlink()) == namespace:
                found[int(place.name)] = (place / "comm").read_text().strip()
        except OSError:
            continue
    return found


def namespace_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid_for_children").readlink())


def the(name: str, volume: NfsVolume) -> int:
    """The process of that name of the volume's."""
    (pid,) = (pid for pid, each in inside(namespace_of(volume.process.pid)).items() if each == name)
    return pid


def asked(pid: int, *command: str) -> list[dict[str, object]]:
    """What ip(8) or tc(8) says, in JSON, of the network that process is in."""
    words = ["nsenter", f"--net=/proc/{pid}/ns/net", *command]
    said = subprocess.run(words, check=True, capture_output=True, timeout=SECONDS).stdout
    return list(json.loads(said))


def received_bytes(volume: NfsVolume) -> int:
    (interface,) = asked(volume.process.pid, "ip", "-json", "-statistics", "link", "show", "client")
    received = interface["stats64"]["rx"]["bytes"]  # type: ignore[index]
    assert isinstance(received, int)
    return received


def wait_until_gone(namespace: str) -> None:
    end_s = time.monotonic() + SECONDS
    while left := inside(namespace):
        assert time.monotonic() < end_s, left
        time.sleep(0.05)


def left_behind() -> Iterator[Path]:
    return temporary_directory().glob("quickstart-nfs-*")


def test_every_read_is_the_image_s_and_crosses_the_wire(image: Path) -> None:
    with exported(image, "100mbit") as volume:
        for _ in range(2):
            before = received_bytes(volume)
            with Connection(volume.socket) as client:
                assert client.size_bytes == SIZE_BYTES
                read = b"".join(
                    client.read(offset, PIECE_BYTES).data for offset in range(0, SIZE_BYTES, PIECE_BYTES)
                )
            assert digest(read) == digest(image.read_bytes())
            # The second time as the first: nobody on this side has kept anything.
            assert SIZE_BYTES < received_bytes(volume) - before < 1.2 * SIZE_BYTES


def test_a_boot_loader_reads_of_it_and_qemu_takes_its_address(image: Path) -> None:
    with exported(image, None) as volume:
        assert read_extents(volume.socket, [(4096, 300_000)], PIECE_BYTES, 4) > 0
        words = ["qemu-img", "info", "--output=json", "-f", "raw", volume.uri]
        said = subprocess.run(words, check=True, capture_output=True, timeout=SECONDS).stdout
        assert json.loads(said)["virtual-size"] == SIZE_BYTES


def test_what_is_written_is_read_again_and_is_not_in_the_image(image: Path) -> None:
    before = digest(image.read_bytes())
    with exported(image, None) as volume:
        with Connection(volume.socket) as client:
            assert client.write(8192, b"w" * 4096).error == 0
        with Connection(volume.socket) as client:
            assert client.read(8192, 4096).data == b"w" * 4096
    assert digest(image.read_bytes()) == before


def test_who_speaks_with_the_client_speaks_with_nobody(image: Path) -> None:
    """A guest that has taken its QEMU over says what it likes to the program behind the socket."""
    with exported(image, None) as volume:
        text = Path(f"/proc/{the('qemu-nbd', volume)}/status").read_text()
        said = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
        with Connection(volume.socket) as client:
            assert client.write(8192, b"w" * 4096).error == 0
    assert len(set(said["Uid"])) == len(set(said["Gid"])) == 1
    assert not {"0", str(os.getuid())} & {*said["Uid"], *said["Gid"], *said["Groups"]}
    assert {each for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") for each in said[name]} == {
        "0" * 16
    }
    assert said["NoNewPrivs"] == ["1"]


def test_the_wire_has_its_rate_at_both_ends_or_none(image: Path) -> None:
    with exported(image, "100mbit") as volume:
        for pid, interface in ((volume.process.pid, "client"), (the("ganesha.nfsd", volume), "server")):
            (queue,) = asked(pid, "tc", "-json", "qdisc", "show", "dev", interface)
            assert (queue["kind"], queue["options"]["rate"]) == ("tbf", 12_500_000)  # type: ignore[index]
    with exported(image, None) as volume:
        kinds = {each["kind"] for each in asked(volume.process.pid, "tc", "-json", "qdisc", "show")}
        assert "tbf" not in kinds


def test_nothing_of_it_is_reached_from_the_host_s_network_or_stays(image: Path) -> None:
    with exported(image, "100mbit") as volume:
        namespace = namespace_of(volume.process.pid)
        networks = {Path(f"/proc/{pid}/ns/net").readlink() for pid in inside(namespace)}
        # The client's and the server's.
        assert len(networks) == 2
        assert Path("/proc/self/ns/net").readlink() not in networks
        assert {"ganesha.nfsd", "rpcbind", "qemu-nbd"} <= set(inside(namespace).values())
        place = volume.socket.parent
    wait_until_gone(namespace)
    assert not place.exists()
    assert not any(
        each["ifname"] in ("client", "server") for each in asked(os.getpid(), "ip", "-json", "link")
    )


@pytest.mark.parametrize(
    ("name", "said"), [("ganesha.nfsd", "the NFS server has ended"), ("qemu-nbd", "the NFS client has ended")]
)
def test_a_death_inside_ends_all_of_it_and_is_named(image: Path, name: str, said: str) -> None:
    with pytest.raises(VolumeError, match=said), exported(image, None) as volume:
        namespace = namespace_of(volume.process.pid)
        os.kill(the(name, volume), signal.SIGKILL)
        volume.process.wait(SECONDS)
    wait_until_gone(namespace)


def test_it_ends_with_a_parent_that_is_killed_and_the_next_one_takes_its_place_away(image: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom quickstart.volume.nfs import exported\n"
        "with exported(Path(sys.argv[1]), None) as volume:\n"
        "    print(volume.process.pid, volume.socket.parent, flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, image], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, _, place = parent.stdout.readline().strip().partition(" ")
        namespace = namespace_of(int(pid))
        parent.kill()
    wait_until_gone(namespace)
    assert Path(place) in left_behind()
    with exported(image, None):
        assert Path(place) not in left_behind()


def test_an_image_that_is_not_there_is_said_so_by_the_server(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match=r"did not come up.*NFS3ERR_NOENT"), exported(tmp_path / "no", None):
        pass


def test_an_image_on_an_overlay_is_refused_with_what_to_do(tmp_path: Path) -> None:
    prepare = (
        'mount -t tmpfs none "$1" && cd "$1" && mkdir lower upper work over && echo image >upper/image && '
        "mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work over && "
        'exec "$2" -c "$3" "$1/over/image"'
    )
    program = (
        "import sys\nfrom pathlib import Path\nfrom quickstart.errors import VolumeError\n"
        "from quickstart.volume.nfs import exported\n"
        "try:\n    exported(Path(sys.argv[1]), None).__enter__()\n"
        "except VolumeError as error:\n    print(error.hint)\n"
    )
    words = [*own_namespaces(), "sh", "-c", prepare, "sh", str(tmp_path), sys.executable, program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert "an overlay has none" in done.stdout, done.stderr


def test_what_the_host_lacks_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nfs.need_nfs()
    for plugin, package in (("block-nfs.so", "qemu-block-extra"), ("libfsalvfs.so", "nfs-ganesha-vfs")):
        monkeypatch.setattr(nfs, "PLUGINS", (f"nowhere/{plugin}",))
        with pytest.raises(MissingToolError) as caught:
            nfs.need_nfs()
        assert caught.value.hint == f"apt-get install {package}"
    for tool in nfs.TOOLS:
        if tool != "ganesha.nfsd":
            (tmp_path / tool).touch(0o755)
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tmp_path))
    with pytest.raises(MissingToolError) as caught:
        nfs.need_nfs()
    assert caught.value.hint == "apt-get install nfs-ganesha"


def test_the_script_that_measures_it_runs(tmp_path: Path) -> None:
    """bench/nfs/measure.py, one run: a row for each place and reading, as in the committed figures."""
    script = Path(__file__).parents[2] / "bench/nfs/measure.py"
    words = [sys.executable, str(script), "1", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, timeout=900, check=False, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found, committed = (
        json.loads((place / "figures.json").read_text()) for place in (tmp_path, script.parent)
    )
    assert list(found) == list(committed)
    assert [(row["place"], row["reading"]) for row in found["figures"]] == [
        (row["place"], row["reading"]) for row in committed["figures"]
    ]
    assert min(row["best_median_ns"] for row in found["figures"]) > 0
