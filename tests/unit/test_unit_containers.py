"""dockerd starts early on a machine without containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack, read_unit
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.model import UnitStart
from tests.unit.imagebuilder import P

UNIT = "usr/lib/systemd/system/app.service"
PLAIN = "ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"
# Debian's file has comments alone.
COMMENTS = '# Use --data-root\n#DOCKER_OPTS="-g /srv"\n'


def put(base: Path, path: str, text: str) -> None:
    file = base / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(base: Path, text: str = PLAIN) -> UnitStart:
    put(base, UNIT, f"[Service]\n{text}\n")
    return read_unit(ImageRoot(base), "app.service")


def conditions(found: UnitStart) -> list[tuple[str, ...]]:
    return [record for record in found.settings if record[0] in ("unit-condition", "each-file-has")]


def test_a_machine_with_containers_boots_the_stock_way(tmp_path: Path) -> None:
    (_, kind, test, negated, triggers, path, *patterns), (of_files, text, *files) = conditions(read(tmp_path))
    assert (kind, test, negated, triggers) == ("Condition", "PathExistsGlob", "yes", "no")
    assert path.startswith("/var/lib/docker")
    assert set(patterns) == {
        f"/var/lib/docker{user}/{place}"
        for user in ("", "/*.*")
        for place in ("plugins/*/config.json", "swarm/docker-state.json")
    }
    assert (of_files, text) == ("each-file-has", '"RestartPolicy":{"Name":"no"')
    assert files == [f"/var/lib/docker{user}/containers/*/hostconfig.json" for user in ("", "/*.*")]


@pytest.mark.parametrize(
    "kept",
    [
        "containers/0a1b/hostconfig.json",
        "1000.1000/containers/0a1b/hostconfig.json",
        "1000.1000/swarm/docker-state.json",
    ],
)
def test_an_image_with_containers_is_refused(tmp_path: Path, kept: str) -> None:
    put(
        tmp_path,
        f"var/lib/docker/{kept}",
        '{"RestartPolicy":{"Name":"unless-stopped","MaximumRetryCount":0}}',
    )
    with pytest.raises(UnsupportedUnitError, match="would start what /var/lib/docker/") as error:
        read(tmp_path)
    assert error.value.hint is not None
    assert 'early = "never"' in error.value.hint


def test_what_dockerd_does_not_start_is_taken(tmp_path: Path) -> None:
    stays = '{"Binds":null,"RestartPolicy":{"Name":"no","MaximumRetryCount":0},"AutoRemove":false}'
    put(tmp_path, "var/lib/docker/containers/0a1b/hostconfig.json", stays)
    for each in (
        "image/overlay2/repositories.json",
        "network/files/local-kv.db",
        "plugins/storage/x",
        "swarm/x",
    ):
        put(tmp_path, f"var/lib/docker/{each}", "{}")
    assert conditions(read(tmp_path))


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (":qemu-arm:M::\\x7fELF\\x01\\x01:\\xff\\xff:/usr/bin/qemu-arm:OCPF\n", True),
        ("# x\n:qemu-arm:M::\\x7f\\x45\\x4c\\x46\\x01:\\xff:/usr/bin/qemu-arm:OCPF\n", True),
        # Debian's of Python, and a comment.
        (":python3.11:M::\\xa7\\x0d\\x0d\\x0a::/usr/bin/python3.11:\n", False),
        ("# \\x7fELF\n", False),
    ],
)
def test_emulators_come_with_systemd(tmp_path: Path, text: str, is_refused: bool) -> None:
    """dockerd looks at its start for which CPUs the machine can run programs."""
    put(tmp_path, "usr/lib/binfmt.d/a.conf", text)
    if is_refused:
        with pytest.raises(UnsupportedUnitError, match=r"the emulator of /usr/lib/binfmt.d/a.conf"):
            read(tmp_path)
    else:
        assert conditions(read(tmp_path))
    assert not conditions(read(tmp_path, "ExecStart=/usr/bin/app"))


def test_a_stack_looks_for_containers_before_its_first_unit(tmp_path: Path) -> None:
    """Otherwise each boot of a machine with containers would start containerd twice."""
    put(tmp_path, "usr/lib/systemd/system/first.service", "[Service]\nExecStart=/usr/bin/containerd\n")
    alone = read(tmp_path)
    stack = read_stack(ImageRoot(tmp_path), ("first.service", "app.service"))
    assert conditions(stack.companions[0]) == conditions(stack) == conditions(alone)
    other = read_stack(ImageRoot(tmp_path), ("app.service", "first.service"))
    assert conditions(other) == []


@pytest.mark.parametrize("command", ["/usr/bin/app", "/usr/bin/containerd", "/usr/bin/app /usr/sbin/dockerd"])
def test_other_programs_have_no_such_condition(tmp_path: Path, command: str) -> None:
    assert conditions(read(tmp_path, f"ExecStart={command}")) == []


@pytest.mark.parametrize(
    ("text", "file", "content", "why"),
    [
        (f"{PLAIN} --data-root /srv", "", "", "its command has --data-root"),
        (f"{PLAIN} -g /srv", "", "", "its command has -g"),
        (f"{PLAIN} -Dg/srv", "", "", "its command has -Dg"),
        (f"{PLAIN} --config-file=/srv/daemon.json", "", "", "its command has --config-file"),
        (f"{PLAIN}\nEnvironmentFile=/etc/docker/*.env", "", "", "is a pattern"),
        (f"{PLAIN}\nEnvironment='DOCKER_OPTS=--graph /srv'", "", "", "Environment= has --graph"),
        (PLAIN, "etc/docker/daemon.json", '{"data-root": "/srv"}', "/etc/docker/daemon.json has"),
        (PLAIN, "etc/docker/daemon.json", '{"\\u0067raph": "/srv"}', "/etc/docker/daemon.json has"),
        (
            f"{PLAIN}\nEnvironmentFile=-/etc/default/docker",
            *("etc/default/docker", f'{COMMENTS}DOCKER_OPTS="-g /srv"\n', "/etc/default/docker has"),
        ),
    ],
)
def test_another_place_is_refused(tmp_path: Path, text: str, file: str, content: str, why: str) -> None:
    if file:
        put(tmp_path, file, content)
    with pytest.raises(UnsupportedUnitError, match=why):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("etc/default/docker", COMMENTS + 'DOCKER_OPTS="--log-driver=journald"\n'),
        ("etc/docker/daemon.json", '{"storage-driver": "overlay2", "debug": true, "log-opts": {"tag": "-"}}'),
    ],
)
def test_other_settings_are_dockerd_s_own(tmp_path: Path, file: str, content: str) -> None:
    put(tmp_path, file, content)
    assert conditions(read(tmp_path, f"{PLAIN}\nEnvironmentFile=-/etc/default/docker"))


def test_what_may_name_another_place_is_compared_at_each_boot(tmp_path: Path) -> None:
    read(tmp_path, f"{PLAIN}\nEnvironmentFile=-/etc/default/docker")
    found = deciding(ImageRoot(tmp_path), "app.service")
    assert {P("/etc/docker/daemon.json"), P("/etc/default/docker")} <= set(found.files)
    # Emulators of other CPUs, for which dockerd looks only when it starts.
    emulators = {P("/etc/binfmt.d"), P("/usr/local/lib/binfmt.d"), P("/usr/lib/binfmt.d")}
    assert emulators <= set(found.places)
    read(tmp_path, "ExecStart=/usr/bin/app\nEnvironmentFile=-/etc/default/docker")
    found = deciding(ImageRoot(tmp_path), "app.service")
    assert not {P("/etc/docker/daemon.json"), P("/etc/default/docker")} & set(found.files)
    assert not emulators & set(found.places)


@pytest.mark.parametrize(
    "words", ["--group docker", "-c 'chgrp docker /srv'", "--root /srv/docker", "/run/docker.sock", "docker"]
)
def test_a_word_that_names_docker_is_no_command(tmp_path: Path, words: str) -> None:
    assert read(tmp_path, f"ExecStart=/usr/bin/app {words}").unit == "app.service"
