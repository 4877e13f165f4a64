"""`profile new` without guests: its request, its decisions, and the two files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import (
    BadInputError,
    NoProfileError,
    OutputExistsError,
    ProfileError,
    UnsupportedUnitError,
)
from quickstart.inspect.globs import matches
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.directives import KNOWN
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import (
    Event,
    Exclusion,
    FileRules,
    Op,
    Profile,
    Readiness,
    ReferenceImage,
    RootBudget,
    StartFile,
    StartSet,
)
from quickstart.model.words import Early, Payload, ReadyKind
from quickstart.newprofile.findings import (
    Findings,
    budget_mib,
    by_package,
    data_rules,
    disk_mib,
    early,
    fate,
    memory_mib,
    only_checks,
    payload,
    written_files,
)
from quickstart.newprofile.look import parse_look
from quickstart.newprofile.make import (
    Place,
    check_place,
    checked_text,
    describe,
    examine,
    fitting_payload,
)
from quickstart.newprofile.readme import notes, readme_text, request
from quickstart.newprofile.reads import Reads, root_budget
from quickstart.newprofile.request import first_draft, parse_ready
from quickstart.newprofile.size import tree_bytes
from quickstart.newprofile.survey import Survey
from quickstart.newprofile.toml import profile_text
from quickstart.newprofile.units import own_name
from quickstart.profile import DATA, parse_bench, parse_profile
from tests.unit import startfiles
from tests.unit.imagebuilder import Image, P, trace

ANY = "0.0.0.0"  # noqa: S104 - where the guest listens
READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=600)
TCP = replace(READY, kind=ReadyKind.TCP)
DRAFT = first_draft("app", ["app-server"], "app", parse_ready("http:80/"), "bookworm", 600)


# ---------------------------------------------------------------- decisions


def command(text: str, flags: str = "") -> UnitCommand:
    words = tuple(text.split())
    return UnitCommand(words[0], words, flags)


@pytest.mark.parametrize(
    ("pre", "start", "checks"),
    [
        (["/usr/sbin/lighttpd -tt -f /etc/l.conf"], "/usr/sbin/lighttpd -D -f /etc/l.conf", True),
        (["/usr/sbin/haproxy -Ws -f /x -c -q"], "/usr/sbin/haproxy -Ws -f /x", True),
        (["/usr/sbin/named-checkconf"], "/usr/sbin/named -f", True),
        (["/usr/share/dnsmasq/systemd-helper checkconfig"], "/usr/sbin/dnsmasq", True),
        (["/usr/sbin/knotc conf-check"], "/usr/sbin/knotd", True),
        (["/usr/sbin/x --precheck-config=no"], "/usr/bin/y", False),
        (["/usr/sbin/squid --foreground -z"], "/usr/sbin/squid --foreground", False),
        (["/bin/mkdir -p /run/x"], "/usr/sbin/x", False),
        (["/usr/sbin/x -t", "/bin/mkdir /run/x"], "/usr/sbin/x", False),
        (["/usr/bin/x -c /etc/x.conf"], "/usr/bin/x -c /etc/x.conf", False),
        ([], "/usr/sbin/x", False),
    ],
)
def test_what_only_checks(pre: list[str], start: str, checks: bool) -> None:
    assert only_checks([command(each) for each in pre], command(start)) is checks


def test_every_known_directive_has_its_fate() -> None:
    assert [name for name in KNOWN if fate(name) == "not known"] == []
    assert fate("ExecStart") == "the start itself"
    assert fate("NoSuchThing") == "not known"


def test_files_that_are_written_outside_of_the_places_of_data(image: Image) -> None:
    for path in ("/opt/app/db", "/var/lib/app/db", "/etc/app/state", "/usr/lib/app/log"):
        image.file(path)
    events = [
        Event(line=1, pid=7, program="app", op=Op.WRITE, path=P(path), error=error)
        for path, error in (
            ("/opt/app/db", None),
            ("/opt/app/new", None),
            ("/var/lib/app/db", None),
            ("/lib/app/log", None),
            ("/etc/app/state", "EACCES"),
            ("/run/app.pid", None),
            ("/opt/app", None),
        )
    ]
    found = written_files([trace(*events)], ImageRoot(image.base))
    assert found == (P("/opt/app/db"), P("/usr/lib/app/log"))


def test_data_rules() -> None:
    many = [P(f"/opt/app/{name}") for name in "abc"]
    assert data_rules([*many, P("/etc/one"), P("/x")]) == ("/etc/one", "/opt/app/**", "/x")


@given(
    st.text(st.sampled_from("a*?[]b"), min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
)
def test_a_data_rule_means_its_file_alone(name: str) -> None:
    (rule,) = data_rules([P(f"/opt/{name}")])
    assert matches(P(f"/opt/{name}"), rule)
    assert not matches(P(f"/opt/{name}x"), rule)
    if "*" in name or "?" in name:
        assert not matches(P(f"/opt/{name.replace('*', 'z').replace('?', 'z')}"), rule)


@given(st.integers(1, 10**9))
def test_numbers_leave_room(size: int) -> None:
    assert budget_mib(size) * 1024 * 1024 > size * 5 // 4
    assert budget_mib(size) % 8 == 0
    assert disk_mib(size) * 1024 * 1024 > size + 512 * 1024 * 1024
    assert memory_mib(size // 10**6) >= 1024


@pytest.mark.parametrize(
    ("size", "form"), [(0, Payload.CPIO), ((24 << 20) - 1, Payload.CPIO), (24 << 20, Payload.LZ4)]
)
def test_a_large_initramfs_is_compressed_and_the_profile_says_so(size: int, form: Payload) -> None:
    assert payload(size) is form
    profile = replace(DRAFT, payload=form)
    written = profile_text(profile, {"payload": ["It is large."]})
    assert parse_profile(written, "x") == profile
    assert ('# It is large.\npayload = "lz4"\n' in written) is (form is Payload.LZ4)


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ("CONFIG_RD_LZ4=y\n", Payload.LZ4),
        ("# CONFIG_RD_LZ4 is not set\n", Payload.CPIO),
        (None, Payload.CPIO),
    ],
)
def test_a_kernel_that_takes_no_lz4_gets_none(tmp_path: Path, config: str | None, form: Payload) -> None:
    (tmp_path / "boot").mkdir()
    if config is not None:
        (tmp_path / "boot/config-6.1").write_text(config)
    reference = ReferenceImage(
        tree=tmp_path,
        image_hash="0",
        kernel=tmp_path / "boot/vmlinuz-6.1",
        initrd=tmp_path / "boot/initrd.img-6.1",
        kernel_version="6.1",
        volume_uuid="0",
        volume_label="root",
        origin=("directory", "0"),
    )
    assert fitting_payload(24 << 20, reference) is form
    assert fitting_payload(1 << 20, reference) is Payload.CPIO


def test_a_budget_is_one_that_a_profile_may_have() -> None:
    assert budget_mib(4 << 30) == 4096
    assert (budget_mib(15 << 20), memory_mib(10), memory_mib(600), disk_mib(0)) == (24, 1024, 1280, 2048)


# ---------------------------------------------------------------- the unit in the image

NETWORK = "/etc/systemd/system/multi-user.target.wants/networking.service"
UNIT = """\
[Unit]
Description=An application
[Service]
ExecStartPre=/usr/sbin/app -t
ExecStart=/usr/sbin/app
"""


@pytest.fixture
def served(image: Image) -> Image:
    image.file("/usr/lib/systemd/system/app.service", UNIT)
    image.file("/usr/lib/systemd/system/networking.service", "")
    image.file("/etc/fstab", "UUID=1 / ext4 errors=remount-ro 0 1\n")
    image.file(NETWORK)
    return image


def test_a_check_is_left_out(served: Image) -> None:
    unit, pre, run = examine(ImageRoot(served.base), DRAFT)
    assert (unit.start_pre, pre, run) == ((), ("/usr/sbin/app -t",), False)
    assert describe(ImageRoot(served.base), "app.service") == "An application"


def test_what_is_no_check_runs(served: Image) -> None:
    served.file("/usr/lib/systemd/system/app.service", UNIT.replace("app -t", "app -z"))
    unit, pre, run = examine(ImageRoot(served.base), DRAFT)
    assert (len(unit.start_pre), pre, run) == (1, ("/usr/sbin/app -z",), True)


def test_all_that_stands_in_the_way_is_named_at_once(served: Image) -> None:
    served.file("/usr/lib/systemd/system/app.service", UNIT + "PrivateIPC=yes\nRootDirectory=/x\n")
    served.file("/etc/fstab", "UUID=1 / xfs defaults 0 1\n")
    (served.base / NETWORK.lstrip("/")).unlink()
    with pytest.raises(NoProfileError) as caught:
        examine(ImageRoot(served.base), DRAFT)
    unit, network, root = caught.value.problems
    assert "it has PrivateIPC, RootDirectory" in unit
    assert "takes the network over" in network
    assert "the root volume is xfs" in root
    assert caught.value.exit_code == 1


def test_a_unit_that_is_not_there(served: Image) -> None:
    with pytest.raises(UnsupportedUnitError, match=r"the image has no unit other\.service"):
        examine(ImageRoot(served.base), replace(DRAFT, unit="other.service"))


def test_an_alias_is_called_by_the_units_own_name(served: Image) -> None:
    root = ImageRoot(served.base)
    served.link("/etc/systemd/system/other.service", "/lib/systemd/system/app.service")
    served.link("/etc/systemd/system/off.service", "/dev/null")
    served.file("/usr/lib/systemd/system/many@.service", UNIT)
    served.link("/etc/systemd/system/many@one.service", "/lib/systemd/system/many@.service")
    for unit, name in (
        ("other", "app"),
        ("app", "app"),
        ("off", "off"),
        ("none", "none"),
        ("many@one", "many@one"),
    ):
        assert own_name(root, f"{unit}.service") == f"{name}.service"


def test_the_units_that_may_have_been_meant(served: Image) -> None:
    status = "Package: app-server\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
    served.file("/var/lib/dpkg/status", status)
    served.file("/var/lib/dpkg/info/app-server.list", "/lib/systemd/system/app.service\n")
    for unit, hint in (
        ("apq.service", "did you mean 'app'?"),
        ("x.service", "services of app-server: app.service"),
    ):
        with pytest.raises(UnsupportedUnitError) as caught:
            examine(ImageRoot(served.base), replace(DRAFT, unit=unit))
        assert caught.value.hint == hint


# ---------------------------------------------------------------- the two files


def start_file(path: str, mode: int = 0o755, package: str = "app-server 1.0-1") -> StartFile:
    return startfiles.start_file(path, mode=0o100000 | mode, size_bytes=2 << 20, seen_in=1, package=package)


def findings(profile: Profile, **changes: Any) -> Findings:
    found = Findings(
        profile=profile,
        survey=Survey(
            loopback=False,
            used_mib=90,
            listeners=((ANY, 80), ("127.0.0.1", 9), ("::", 22)),
            unit_file_state="enabled",
            answer="HTTP/1.1 200 OK",
            ready_uptime_ns=1,
        ),
        unit=UnitStart(
            unit="app.service", type="simple", pid_file=None, start_pre=(), start=command("/usr/sbin/app -D")
        ),
        directives=(("ExecStart", "the start itself"), ("User", "repeated")),
        pre=(),
        start_set=StartSet((start_file("/usr/sbin/app"), start_file("/etc/app.conf", 0o644, "")), ()),
        traces=(trace("/etc/app.conf"),),
        initramfs_bytes=15 << 20,
        reads=Reads(
            ready_uptime_ns=5_000_000_000,
            requests=47,
            bytes=841_216,
            direct_requests=0,
            files=(("/etc/app.conf", "prefetcher", 4096),),
        ),
        given=False,
        written=(),
    )
    return replace(found, **changes)


def test_the_wrapper_that_was_asked_for_is_named() -> None:
    found = findings(DRAFT, wrapper="web.service")
    text = profile_text(found.profile, notes(found))
    assert (
        '# app.service does the work of web.service, which starts nothing itself.\nunit = "app.service"\n'
        in text
    )
    assert "It does the work of `web.service`, which starts nothing itself." in readme_text(found)
    without = findings(DRAFT)
    assert "does the work" not in profile_text(DRAFT, notes(without)) + readme_text(without)


def test_a_unit_that_another_one_needs_is_named() -> None:
    draft = replace(DRAFT, companions=("db.service",))
    found = findings(draft, needed=("db.service",))
    text = profile_text(found.profile, notes(found))
    note = "# db.service is here because another of these units needs it.\n"
    assert f'{note}units = ["db.service", "app.service"]\n' in text


def test_what_verify_lets_pass_is_more_than_was_read() -> None:
    reads = Reads(requests=47, bytes=841_216, direct_requests=3, files=(), ready_uptime_ns=5_000_000_000)
    assert root_budget(reads, beside_the_boot=False) == RootBudget(80, 1_750_000)
    assert root_budget(reads, beside_the_boot=True) == RootBudget(110, 2_000_000)


@pytest.mark.parametrize(
    ("stock_ns", "early_ns", "found"),
    [(9, 8, Early.SEEN), (9, 9, Early.NEVER), (8, 9, Early.NEVER), (0, 9, Early.SEEN)],
)
def test_an_early_start_that_brings_nothing(stock_ns: int, early_ns: int, found: Early) -> None:
    assert early(Early.SEEN, stock_ns, early_ns) is found


def test_a_profile_whose_boots_are_stock_boots_says_why() -> None:
    found = findings(replace(DRAFT, early=Early.NEVER))
    text = profile_text(found.profile, notes(found))
    note = "# The stock boot was ready after 0.0 s, an early start on trial after 5.0 s, so every boot is a stock boot."
    assert f'{note} Without this line, the unit starts early.\nearly = "never"\n' in text
    assert parse_profile(text, "x").early is Early.NEVER
    assert "early =" not in profile_text(DRAFT, notes(findings(DRAFT)))


def test_what_is_still_read_of_the_volume_is_said() -> None:
    found = findings(DRAFT)
    text = readme_text(found)
    assert "47 requests, 0.8 MB before ready, of a budget of 80 and 4.0 MB" in text
    assert "| `/etc/app.conf` | prefetcher | 4 |" in text
    assert "past the page cache" not in text
    assert "3 more are the service's own" in readme_text(
        replace(
            found,
            reads=Reads(requests=1, bytes=1, direct_requests=3, files=(), ready_uptime_ns=5_000_000_000),
        )
    )
    blind = replace(found.reads, files=(), unattributed="its kernel cannot tell")
    text = readme_text(replace(found, reads=blind))
    assert (
        "Who asked for what is unknown, so `quickstart verify OUT` only counts: its kernel cannot tell."
        in text
    )
    written = profile_text(replace(DRAFT, root_budget=RootBudget(90, 1_750_000)), notes(found))
    assert "47 requests, 0.8 MB" in written
    assert parse_profile(written, "x").root_budget == RootBudget(90, 1_750_000)


def test_the_files_of_a_plain_service() -> None:
    found = findings(replace(DRAFT, run_start_pre=False), pre=("/usr/sbin/app -t",))
    text = profile_text(found.profile, notes(found))
    assert parse_profile(text, "x") == found.profile
    assert (
        "# ExecStartPre only checks what the start itself checks again: /usr/sbin/app -t\npre = false\n"
        in text
    )
    assert "# The initramfs has 15.0 MiB, not compressed.\n" in text
    readme = readme_text(found)
    for line in (
        "Ready is the first `200` to `GET /` on port 80 of the external address.",
        "Type=simple; `/usr/sbin/app -D`.",
        "ExecStartPre `/usr/sbin/app -t` is left out: it only checks.",
        "| User | repeated |",
        "| app-server | 1 | 2.00 |",
        "- `/etc/app.conf`",
        "- Nothing was found that needs a decision.",
    ):
        assert line in readme
    assert profile_text(found.profile, notes(found)) == text
    given = readme_text(replace(found, given=True))
    assert "unchanged" in readme and "unchanged" not in given
    assert "`quickstart build` needs it too" in given


def test_the_files_of_one_to_be_looked_at() -> None:
    ready = replace(DRAFT.ready, kind=ReadyKind.TCP, loopback=True, path="/", status=200)
    rules = replace(DRAFT.files, data=(*DATA, "/opt/app/db"))
    found = findings(
        replace(DRAFT, ready=ready, files=rules), written=(P("/opt/app/db"),), pre=("/bin/mkdir /x",)
    )
    text = profile_text(found.profile, notes(found))
    assert parse_profile(text, "x") == found.profile
    assert '# The service listens on 127.0.0.1 only.\naddress = "loopback"\n' in text
    assert '# The service writes to them.\ndata = ["/opt/app/db"]\n' in text
    readme = readme_text(found)
    assert "nobody reaches it from outside" in readme
    assert "- `/opt/app/db` is written to by the service and so is data." in readme
    assert "`pre = false` leaves it out" in readme


def test_one_that_is_asked_for_its_databases() -> None:
    ready = Readiness(
        kind=ReadyKind.MYSQL, port=3306, path="/", status=200, command="", timeout_s=60, account="asker"
    )
    profile = replace(DRAFT, ready=ready)
    assert parse_profile(profile_text(profile, {}), "x") == profile
    assert "`show databases` that port 3306 of the external address answers to asker" in request(ready)


def test_served_from_memory_by_package() -> None:
    files = (
        start_file("/usr/sbin/app"),
        start_file("/usr/lib/x.so", 0o644, "libx 2"),
        start_file("/etc/x", 0o644),
    )
    assert by_package(StartSet(files, ()), ()) == {"app-server": (1, 2 << 20), "libx": (1, 2 << 20)}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
GLOBS = st.lists(TEXT.map(lambda text: f"/{text}"), max_size=3).map(tuple)


@given(TEXT, LINE, GLOBS, GLOBS, st.booleans())
def test_any_profile_reads_as_it_was_written(
    description: str, said: str, include: tuple[str, ...], data: tuple[str, ...], pre: bool
) -> None:
    ready = Readiness(kind=ReadyKind.EXEC, port=0, path="/", status=200, command=said, timeout_s=77)
    rules = FileRules(include=include, exclude=data, data=(*DATA, *data), secrets=include)
    profile = replace(DRAFT, description=description, ready=ready, files=rules, run_start_pre=pre)
    assert parse_profile(profile_text(profile, {}), "x") == profile


# ---------------------------------------------------------------- images and guests of strangers


EVIL = "x\n[bench]\ncommands = ['true']\nready = {kind = 'tcp', port = 1}\n#\x1b]0;\a"


def test_no_comment_goes_on_as_toml() -> None:
    found = findings(DRAFT, wrapper=f"{EVIL}.service", pre=(EVIL,))
    text = checked_text(found.profile, notes(found))
    assert parse_profile(text, "x") == found.profile
    assert parse_bench(text, "x") is None


def test_what_no_profile_can_say_is_not_written() -> None:
    with pytest.raises(ProfileError, match="unit"):
        checked_text(replace(DRAFT, unit=f"{EVIL}.service"), {})
    with pytest.raises(ProfileError, match="machine_mib"):
        checked_text(replace(DRAFT, memory_mib=1 << 20), {})


def test_no_name_begins_a_line_of_the_readme() -> None:
    file = start_file("/etc/app.conf", 0o644, f"{EVIL} 1")
    found = findings(
        DRAFT,
        wrapper=EVIL,
        unit=replace(findings(DRAFT).unit, unit=EVIL, pid_file=P(f"/run/{EVIL}")),
        start_set=StartSet(
            (file, start_file(f"/usr/{EVIL}", 0o755, EVIL)), (Exclusion(P(f"/{EVIL}"), "secret: mode 0600"),)
        ),
    )
    text = readme_text(found)
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert not [line for line in text.splitlines() if line.startswith(("[bench]", "commands"))]
    assert text.count("[bench]") >= 4


def test_a_path_that_is_no_utf_8_is_a_rule_all_the_same() -> None:
    path = P("/opt/\udcff[x]")
    (rule,) = data_rules([path])
    assert rule.encode() and matches(path, rule) and not matches(P("/opt/ab[x]"), rule)


def test_a_guest_does_not_choose_the_memory_of_the_next_one() -> None:
    for total, left in ((10**14, 1), (1, 10**14), (3 << 20, 0)):
        look = parse_look(f"== memory\nMemTotal: {total} kB\nMemAvailable: {left} kB\n")
        assert 1024 <= memory_mib(look.used_mib) <= 4096


def test_a_file_of_many_names_counts_once(image: Image) -> None:
    before = tree_bytes(ImageRoot(image.base))
    image.file("/data/a", "x")
    os.truncate(image.base / "data/a", 1 << 30)
    for number in range(50):
        os.link(image.base / "data/a", image.base / f"data/{number}")
    assert tree_bytes(ImageRoot(image.base)) == before + (1 << 30)


def test_an_image_too_large_for_any_profile() -> None:
    with pytest.raises(BadInputError, match="at most 1048576 MiB"):
        disk_mib(1 << 40)


# ---------------------------------------------------------------- where it goes


def test_a_place(tmp_path: Path) -> None:
    out = tmp_path / "app"
    check_place(Place(out, 1))
    out.mkdir()
    check_place(Place(out, 1))
    (out / "profile.toml").write_text("")
    with pytest.raises(OutputExistsError, match="has a profile"):
        check_place(Place(out, 1))
    check_place(Place(out, 1, force=True))
    (out / "mine").write_text("")
    with pytest.raises(OutputExistsError, match="is no profile's directory"):
        check_place(Place(out, 1, force=True))


def test_files_whose_names_are_too_long_for_a_path(tmp_path: Path) -> None:
    root = ImageRoot(tmp_path)
    (tmp_path / "file").write_text("x")
    at = os.open(root.base, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(24):
        os.mkdir("d" * 200, dir_fd=at)
        os.close(os.open("f" * 200, os.O_WRONLY | os.O_CREAT, dir_fd=at))
        below = os.open("d" * 200, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert tree_bytes(root) == 4096
    assert root.hard_links() == {}
