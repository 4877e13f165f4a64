"""What init's scripts do for each companion of a stack (docs/adr/0016-stacks.md)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.initscript import INIT, function

SECONDS = 60.0
SHELLS = [("dash",), ("busybox", "sh")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """/fast/quickstart of a stack with two companions."""
    for number, name in ((1, "db"), (2, "php")):
        directory = tmp_path / "companions" / str(number)
        directory.mkdir(parents=True)
        (directory / "config").write_text(
            f"UNIT={name}.service\nUNIT_GROUP='system.slice/{name}.service'\nUNIT_TYPE=exec\nSOCKETS=0\n"
        )
    return tmp_path


def said(shell: tuple[str, ...], place: Path, text: str, *functions: tuple[str, str]) -> list[str]:
    setup = (
        f"Q={place} RUN=/r UNIT=web.service GROUP=/sys/fs/cgroup/w COMPANIONS='1 2' COMPANION_UNITS='db.service php.service'\n"
        "GROUPS_OF_ALL='d p w'\n"
    )
    parts = "\n".join(function(*each) for each in (("lib", "with_companions"), ("lib", "lives"), *functions))
    done = subprocess.run(
        [*shell, "-uc", f"{setup}{parts}\n{text}"],
        check=True, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_each_companion_has_its_own_words_and_the_last_unit_keeps_its_own(
    shell: tuple[str, ...], place: Path
) -> None:
    text = """show() { echo "$1 $UNIT $GROUP $RUN ${Q##*/companions}"; }
    with_companions show of
    show "$?"
    stop() { echo "$UNIT"; return 1; }
    with_companions stop || echo "stopped in $UNIT"
    """
    assert said(shell, place, text) == [
        "of db.service /sys/fs/cgroup/system.slice/db.service /r/companions/1 /1",
        "of php.service /sys/fs/cgroup/system.slice/php.service /r/companions/2 /2",
        f"0 web.service /sys/fs/cgroup/w /r {place}",
        "db.service",
        "stopped in web.service",
    ]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("failing", ["", "db.service", "php.service", "web.service"])
def test_units_start_one_after_the_other_and_the_first_failure_ends_it(
    shell: tuple[str, ...], place: Path, failing: str
) -> None:
    run = place / "run"
    text = f"""starter() {{
        mkdir -p "$2"
        echo "start ${{1#$ALL/}} $UNIT" >&3
        if [ "$UNIT" = "{failing}" ]; then echo 'out of luck' >"$2/reason"; return 1; fi
        echo 1 >"$2/main.pid"
    }}
    fall_back() {{ echo "fall back: $*" >&3; exit 0; }}
    ALL=$Q RUN={run}
    exec 3>&1
    start_application
    echo "companions:$companions"
    """
    parts = "\n".join(
        function(*each).replace("/run/quickstart", str(run))
        for each in (("lib", "with_companions"), ("second", "start_unit"), ("second", "start_application"))
    )
    setup = f"Q={place} UNIT=web.service COMPANIONS='1 2' COMPANION_UNITS='db.service php.service'\n"
    done = subprocess.run(
        [*shell, "-uc", f"{setup}{parts}\n{text}"],
        check=True, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    started = [
        "start companions/1/unit db.service",
        "start companions/2/unit php.service",
        "start unit web.service",
    ]
    if not failing:
        assert done.stdout.splitlines() == [*started, "companions: 1 1"]
    else:
        until = [line.endswith(failing) for line in started].index(True) + 1
        reason = f"fall back: {failing} did not start: out of luck"
        assert done.stdout.splitlines() == [*started[:until], reason]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("main", "companions", "ended"),
    [
        ("self", "self self", ""),
        ("self", "self 0", "php.service"),
        ("self", "0 self", "db.service"),
        ("0", "self self", "web.service"),
    ],
)
def test_the_unit_that_has_ended_is_named(
    shell: tuple[str, ...], place: Path, main: str, companions: str, ended: str
) -> None:
    run = place / "run"
    run.mkdir()
    (run / "main.pid").write_text(f"{main}\n")
    text = f"""RUN={run} companions='{companions}'
    all_live && echo all || echo "$ended"
    """
    assert said(shell, place, text, ("second", "main_pid"), ("second", "all_live")) == [ended or "all"]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_what_all_groups_have_used_counts(shell: tuple[str, ...], place: Path) -> None:
    for name, used_us in (("d", 30_000), ("w", 12)):
        (place / name).mkdir()
        (place / name / "cpu.stat").write_text(f"usage_usec {used_us}\nuser_usec 1\n")
    parts = function("hand-off", "read_used").replace("/sys/fs/cgroup", str(place))
    done = subprocess.run(
        [*shell, "-uc", f"GROUPS_OF_ALL='d p w'\n{parts}\nread_used\necho $used"],
        check=True, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.stdout == "30012\n"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("contents", "found"), [(("", ""), "no"), (("", "memory pids\n"), "memory pids"), (("cpu\n", ""), "cpu")]
)
def test_controllers_that_a_unit_has_handed_on_are_seen(
    shell: tuple[str, ...], place: Path, contents: tuple[str, str], found: str
) -> None:
    """systemd would take them back when it adopts the unit. A group may be gone, too."""
    for name, content in zip("dw", contents, strict=True):
        (place / name).mkdir()
        (place / name / "cgroup.subtree_control").write_text(content)
    parts = function("hand-off", "hands_controllers_on").replace("/sys/fs/cgroup", str(place))
    script = f"GROUPS_OF_ALL='d p w'\n{parts}\nhands_controllers_on && echo $handed || echo no"
    done = subprocess.run(
        [*shell, "-uc", script], check=True, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout == f"{found}\n"


def test_adopt_takes_the_companion_whose_directory_it_is_in(place: Path) -> None:
    """The drop-in names it by that path (init/hand-off, write_drop_in)."""
    text = (
        (INIT / "adopt")
        .read_text()
        .replace("/fast/quickstart", str(place))
        .replace("/run/quickstart", f"{place}/run")
    )
    script = text[: text.index("\n# What the unit binds")] + '\necho "$UNIT $RUN"\n'
    (place / "adopt").write_text(script)
    (place / "config").write_text("UNIT=web.service\n")
    (place / "lib").write_text("")
    (place / "companions/2/adopt").symlink_to("../../adopt")
    for path, words in (
        (place / "adopt", f"web.service {place}/run"),
        (place / "companions/2/adopt", f"php.service {place}/run/companions/2"),
    ):
        done = subprocess.run(["sh", path], check=True, capture_output=True, text=True, timeout=SECONDS)
        assert done.stdout.strip() == words


def test_the_drop_in_of_a_companion_names_its_own_adopt(place: Path) -> None:
    text = f"UNITS={place}/units UNIT_TYPE=exec\nwith_companions write_drop_in\n"
    assert said(("dash",), place, text, ("hand-off", "write_drop_in")) == []
    drop_in = (place / "units/php.service.d/zzzz-quickstart.conf").read_text()
    ours = f"{place}/companions/2"
    assert f"ExecStart=+{ours}/bin/caretaker leave-unit /bin/sh {ours}/adopt\n" in drop_in


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_settle_sees_to_each_unit_whatever_became_of_another(shell: tuple[str, ...], place: Path) -> None:
    """systemctl may refuse to start one of them. The process of another is not to run on without systemd."""
    (line,) = [line for line in (INIT / "settle").read_text().splitlines() if line.endswith(" see_to")]
    text = f"""about_unit() {{
        case $1 in ActiveState) echo failed ;; LoadState) echo loaded ;; ActiveEnter*) echo 0 ;; *) echo 1 ;; esac
    }}
    end_group() {{ echo "end $UNIT"; }}
    systemctl() {{ return 1; }}
    {line}
    """
    parts = "\n".join(
        function(*each).replace("/dev/console", "/dev/null")
        for each in (
            *(("lib", "with_companions"), ("lib", "try"), ("settle", "see_to")),
            *(("settle", name) for name in ("see_to_unit", "see_to_sockets", "was_held_up")),
        )
    )
    done = subprocess.run(
        [*shell, "-uc", f"Q={place} COMPANIONS='1 2' LEFT={place}/left\n{parts}\n{text}"],
        check=True, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    called = done.stdout.splitlines()
    assert called == ["end db.service", "end php.service"]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_settle_starts_the_sockets_of_one_companion_and_no_other_unit(
    shell: tuple[str, ...], place: Path
) -> None:
    """Who requires it goes on: `systemctl stop` would end it as well."""
    for number, wanted in ((1, "web.service"), (2, "")):
        (place / f"companions/{number}/config").write_text(
            f"UNIT=db{number}.service UNIT_GROUP= SOCKETS=1 SOCKET_UNITS=db{number}.socket WANTED={wanted}\n"
        )
        (place / f"left/companions/{number}").mkdir(parents=True)
        (place / f"left/companions/{number}/other-sockets").touch()
    text = f"""about_unit() {{
        case $1 in ActiveEnter*) echo 1 ;; RequiredBy) echo "$WANTED" ;; esac
    }}
    end_group() {{ echo "end $UNIT"; }}
    systemctl() {{ [ "$1" != -q ] || return 1; case $1 in show) echo 1 ;; *) echo "$*" ;; esac }}
    RUN={place}/left WANTED= SOCKETS=1 SOCKET_UNITS=web.socket
    with_companions try see_to
    see_to
    """
    names = (
        "see_to",
        "see_to_unit",
        "see_to_sockets",
        "have_other_sockets",
        "was_stopped",
        "start_wanted",
        "is_wanted",
    )
    parts = "\n".join(
        function(*each).replace("/dev/console", "/dev/null")
        for each in (("lib", "with_companions"), ("lib", "try"), *(("settle", name) for name in names))
    )
    done = subprocess.run(
        [*shell, "-uc", f"Q={place} COMPANIONS='1 2' UNIT=web.service\n{parts}\n{text}"],
        check=True, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    calls = [
        [
            f"stop --job-mode=ignore-dependencies {name}.service",
            f"end {name}.service",
            f"stop --job-mode=ignore-dependencies {name}.socket",
            f"reset-failed {name}.socket {name}.service",
            f"start {name}.socket",
        ]
        for name in ("db1", "db2")
    ]
    # The second waits for its first client, as nobody else wants it.
    assert done.stdout.splitlines() == [*calls[0], "start --no-block db1.service", *calls[1]]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("hand_off", ["keep", "no"])
def test_init_notes_the_sockets_of_each_unit(shell: tuple[str, ...], place: Path, hand_off: str) -> None:
    """In the order of `caretaker listen`: the last unit's, the companions', journald's. A fallback keeps journald's alone."""
    files = [place / f"socket-{number}" for number in range(3, 8)]
    opened = " ".join(f"{fd}>{path}" for fd, path in zip(range(3, 8), files, strict=True))
    run = place / "run"
    run.mkdir()
    text = f"""exec {opened}
    RUN={run} SOCKETS=1 COMPANION_SOCKETS='2 0' JOURNAL_SOCKETS=2 HAND_OFF={hand_off}
    note_sockets
    let_go_of_sockets
    for fd in 3 4 5 6 7; do [ ! -e /proc/self/fd/$fd ] || echo "$fd is open"; done
    """
    names = ("count_sockets", "note_sockets", "note_next", "let_go_of_sockets")
    still = said(shell, place, text, *(("second", name) for name in names))
    assert still == ["6 is open", "7 is open"]
    assert (run / "sockets").read_text().splitlines() == [str(files[0])]
    assert (run / "companions/1/sockets").read_text().splitlines() == [str(files[1]), str(files[2])]
    assert not (run / "companions/2/sockets").exists()
    journal = [str(path) for path in files[3:]] if hand_off == "keep" else None
    assert ((run / "journal").read_text().splitlines() if journal else None) == journal
    assert (run / "journal").exists() is bool(journal)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_fallback_removes_the_group_of_each_unit(shell: tuple[str, ...], place: Path) -> None:
    """Their slice goes with the last of them; what is left would keep its limits and devices for systemd's own start."""
    slice_ = place / "groups/system.slice"
    for name in ("db", "php", "web"):
        (slice_ / f"{name}.service").mkdir(parents=True)
        # One has made groups of its own.
        if name != "php":
            (slice_ / f"{name}.service/below/.deep").mkdir(parents=True)
        if name != "web":
            config = place / "companions" / ("1" if name == "db" else "2") / "config"
            config.write_text(f"UNIT={name}.service UNIT_GROUP=system.slice/{name}.service\n")
    lines = [line.strip() for line in (INIT / "second").read_text().splitlines()]
    (line,) = [line for line in lines if line.startswith("with_companions") and line.endswith("remove_group")]
    parts = "\n".join(
        function(*each).replace("/sys/fs/cgroup", str(place / "groups"))
        for each in (("lib", "with_companions"), ("lib", "try"), ("second", "remove_group"))
    )
    setup = f"Q={place} GROUP={slice_}/web.service COMPANIONS='1 2'\n"
    subprocess.run(
        [*shell, "-uc", f"{setup}{parts}\n{line}\nremove_group"], capture_output=True, timeout=SECONDS
    )
    assert not slice_.exists()
