"""Profiles: defaults, every fault at once with its key's path, and the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.engines.boot import payload_of
from quickstart.errors import BadInputError, ProfileError
from quickstart.model import Readiness
from quickstart.model.residency import DataPrefetch
from quickstart.model.words import Payload, ReadyKind
from quickstart.profile import (
    BenchLayer,
    known_profiles,
    load_bench,
    load_profile,
    parse_bench,
    parse_profile,
)

GOOD = """\
schema = 1
name = "app"
packages = ["bb", "aa", "bb"]
unit = "app.service"
[ready]
kind = "tcp"
port = 80
"""
BENCH = """\
[bench]
commands = ["adduser x", "true"]
[bench.ready]
kind = "mysql"
port = 3306
account = "asker"
[bench.files]
"/etc/b.cnf" = "bb\\n"
"/etc/a.d/a-1_@.cnf" = ""
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "x.toml")
    assert "x.toml" in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_our_own_profiles_load() -> None:
    assert "nginx" in known_profiles()
    for name in known_profiles():
        assert load_profile(name).name == name


def test_nginx() -> None:
    nginx = load_profile("nginx")
    assert (nginx.unit, nginx.packages, nginx.suite) == ("nginx.service", ("nginx",), "bookworm")
    assert (nginx.ready.kind, nginx.ready.port, nginx.ready.path, nginx.ready.status) == (
        "http",
        80,
        "/",
        200,
    )


def test_defaults() -> None:
    profile = parse_profile(GOOD, "x")
    assert (profile.suite, profile.description, profile.run_start_pre) == ("bookworm", "", True)
    assert profile.early == "ask"
    assert (profile.memory_mib, profile.budget_mib, profile.disk_mib) == (1024, 64, 2048)
    assert (profile.root_budget.requests, profile.root_budget.read_bytes) == (80, 4_000_000)
    assert (profile.ready.path, profile.ready.status, profile.ready.timeout_s) == ("/", 200, 600)
    assert (profile.files.include, profile.files.exclude, profile.files.secrets) == ((), (), ())
    assert "/var/**" in profile.files.data
    assert profile.packages == ("aa", "bb")


@pytest.mark.parametrize("payload", Payload)
def test_every_form_of_the_initramfs_can_be_a_profile_s_own(payload: Payload) -> None:
    text = GOOD.replace("schema = 1\n", f'schema = 1\npayload = "{payload.value}"\n')
    profile = parse_profile(text, "x")
    assert profile.payload is payload
    assert payload_of(profile, None) is payload
    # The command line's word is the last.
    assert payload_of(profile, Payload.ZSTD) is Payload.ZSTD


def test_the_form_is_plain_where_nobody_says_anything() -> None:
    assert payload_of(parse_profile(GOOD, "x"), None) is Payload.CPIO
    with pytest.raises(ProfileError, match="payload: "):
        parse_profile(GOOD.replace("schema = 1\n", 'schema = 1\npayload = "xz"\n'), "x")


def test_user_data_are_for_ask() -> None:
    start = f'[start]\nearly = "ask"\nuser_data = ["{"0a" * 32}"]\n'
    profile = parse_profile(GOOD + start, "x")
    assert (profile.early, profile.user_data) == ("ask", ("0a" * 32,))
    for bad in (start.replace("ask", "seen"), start.replace("0a0a", "0A0A"), start.replace("0a0a", "")):
        with pytest.raises(ProfileError):
            parse_profile(GOOD + bad, "x")


def test_early_always() -> None:
    assert parse_profile(GOOD + '[start]\nearly = "always"\n', "x").early == "always"


def test_the_budget_of_reads() -> None:
    profile = parse_profile(GOOD + "[budget]\nroot_requests = 0\nroot_bytes = 5\n", "x")
    assert (profile.root_budget.requests, profile.root_budget.read_bytes) == (0, 5)
    with pytest.raises(ProfileError, match="root_requests"):
        parse_profile(GOOD + "[budget]\nroot_requests = -1\n", "x")


def test_data_adds_to_what_is_data_anyway() -> None:
    profile = parse_profile(GOOD + '[files]\ndata = ["/opt/d"]\n', "x")
    assert profile.files.data[-1] == "/opt/d"
    assert "/home/**" in profile.files.data


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("schema = 1", "schema = 2", "schema: "),
        ("schema = 1\n", "", "schema: missing"),
        ('name = "app"', 'name = "App"', "name: "),
        ('name = "app"', 'name = "../x"', "name: "),
        ('name = "app"', "name = 5", "name: "),
        ('name = "app"', 'nmae = "app"', "nmae: no such key; did you mean 'name'?"),
        ('name = "app"', 'name = "app"\nqqqq = 1', "qqqq: no such key"),
        ('"bb", "aa"', '"bb", "A B"', "packages[1]: "),
        ('["bb", "aa", "bb"]', "[]", "packages: "),
        ('["bb", "aa", "bb"]', '"bb"', "packages: "),
        ("app.service", "app.socket", "unit: "),
        ("app.service", "a/b.service", "unit: "),
        ("port = 80", 'port = "80"', "ready.port: "),
        ("port = 80", "port = 0", "ready.port: "),
        ("port = 80", "port = 65536", "ready.port: "),
        ("port = 80", "port = true", "ready.port: "),
        ("port = 80", "port = 80.5", "ready.port: "),
        ("port = 80", "prot = 80", "ready.prot: no such key; did you mean 'port'?"),
        ("port = 80", "port = 80\ntimeout_s = nan", "ready.timeout_s: "),
        ("port = 80", "port = 80\ntimeout_s = 1979-05-27", "ready.timeout_s: "),
        ("port = 80", 'port = 80\npath = "no-slash"', "ready.path: "),
        ("port = 80", 'port = 80\npath = "/a b"', "ready.path: "),
        ("port = 80", "port = 80\nstatus = 99", "ready.status: "),
        ("port = 80\n", "", 'ready: kind = "tcp" needs a port'),
        ('kind = "tcp"\nport = 80', 'kind = "http"', 'ready: kind = "http" needs a port'),
        ('kind = "tcp"', 'kind = "exec"', 'ready: kind = "exec" needs a command'),
        ('kind = "tcp"', 'kind = "exec"\ncommand = ""', 'ready: kind = "exec" needs a command'),
        ('kind = "tcp"', 'kind = "udp"', "ready.kind: "),
        ("port = 80", 'port = 80\naddress = "lo"', "ready.address: "),
        (
            'kind = "tcp"\nport = 80',
            'kind = "exec"\ncommand = "x"\naddress = "loopback"',
            'ready: kind = "exec" has no',
        ),
        ('kind = "tcp"\n', 'kind = "mysql"\n', 'ready: kind = "mysql" needs an account'),
        ('kind = "tcp"\nport = 80', 'kind = "mysql"\naccount = "a"', 'ready: kind = "mysql" needs a port'),
        ('kind = "tcp"\n', 'kind = "mysql"\naccount = "a b"\n', "ready.account: "),
        ('kind = "tcp"\n', f'kind = "mysql"\naccount = "{33 * "a"}"\n', "ready.account: "),
        ('kind = "tcp"\n', 'kind = "mysql"\naccount = ""\n', "ready.account: "),
        ("[ready]", '[files]\ninclude = ["/a", "etc/x"]\n[ready]', "files.include[1]: "),
        ("[ready]", "[memory]\nmachine_mib = 1\n[ready]", "memory.machine_mib: "),
        (
            "[ready]",
            "[memory]\nbudget = 1\n[ready]",
            "memory.budget: no such key; did you mean 'budget_mib'?",
        ),
        ("[ready]", "[disk]\nsize_mib = 10\n[ready]", "disk.size_mib: "),
        ("[ready]", '[start]\npre = "no"\n[ready]', "start.pre: "),
        ("[ready]", '[start]\nearly = "perhaps"\n[ready]', "start.early: "),
    ],
)
def test_one_fault(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    assert [each for each in problems(GOOD.replace(old, new, 1)) if each.startswith(problem)]


def test_all_faults_at_once() -> None:
    text = (
        GOOD.replace("port = 80", 'port = "x"').replace('"app"', '"A"', 1) + "[disk]\nsize_mib = 1\nx = 2\n"
    )
    keys = sorted(problem.split(":")[0] for problem in problems(text))
    assert keys == ["disk.size_mib", "disk.x", "name", "ready.port"]


def test_an_empty_profile_names_all_that_is_required() -> None:
    assert sorted(problems("")) == sorted(
        f"{key}: missing" for key in ("schema", "name", "packages", "unit", "ready")
    )


@pytest.mark.parametrize("text", ["schema = ", "schema = 1\nschema = 1\n", "[ready", "a b"])
def test_bad_toml(text: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith("not TOML: ")


@pytest.mark.parametrize(
    "ready",
    [
        *('kind = "tcp"\nport = 1', 'kind = "http"\nport = 65535', 'kind = "exec"\ncommand = "true"'),
        'kind = "mysql"\nport = 3306\naccount = "a-b_c.d"',
    ],
)
def test_complete_requests(ready: str) -> None:
    profile = parse_profile(GOOD.replace('kind = "tcp"\nport = 80', ready), "x")
    assert profile.ready.kind in ready


# ---------------------------------------------------------------- [bench]


def test_what_the_bench_adds() -> None:
    ready = Readiness(
        kind=ReadyKind.MYSQL, port=3306, path="/", status=200, command="", timeout_s=600, account="asker"
    )
    files = (("/etc/a.d/a-1_@.cnf", ""), ("/etc/b.cnf", "bb\n"))
    assert parse_bench(GOOD + BENCH, "x") == BenchLayer(ready, files, ("adduser x", "true"))
    assert parse_bench(GOOD, "x") is None


def test_what_the_bench_adds_is_in_no_profile_and_so_in_no_build() -> None:
    assert parse_profile(GOOD + BENCH, "x") == parse_profile(GOOD, "x")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[bench.ready]", "[bench.rdy]", "bench.rdy: no such key; did you mean 'ready'?"),
        ("[bench.ready]", "[bench.rdy]", "bench.ready: missing"),
        ("port = 3306\n", "", 'bench.ready: kind = "mysql" needs a port'),
        ('"true"', '""', "bench.commands[1]: "),
        ('"bb\\n"', "5", "bench.files./etc/b.cnf: "),
        *(
            ("/etc/b.cnf", path, f"bench.files.{path}")
            for path in ("etc/b", "/", "/etc/", "/etc/../b", "/etc//b", "/etc/./b", "/.b", "/a b", "/a\\n")
        ),
    ],
)
def test_a_fault_in_what_the_bench_adds(old: str, new: str, problem: str) -> None:
    assert old in BENCH
    found = problems(GOOD + BENCH.replace(old, new, 1))
    assert [each for each in found if each.startswith(problem)], found


def test_mysql_is_asked_from_outside_in_the_bench_alone() -> None:
    profile, layer = load_profile("mysql"), load_bench("mysql")
    assert layer is not None
    assert (profile.ready.kind, layer.ready.kind, layer.ready.port) == ("exec", "mysql", 3306)
    assert not layer.ready.loopback
    ((path, text),) = layer.files
    assert path.startswith("/etc/mysql/mariadb.conf.d/") and "bind-address = 0.0.0.0\n" in text
    (command,) = layer.commands
    assert f"CREATE USER {layer.ready.account}@'%';" in command
    assert [name for name in known_profiles() if load_bench(name) is not None] == ["mysql"]


# ---------------------------------------------------------------- load_profile


@pytest.mark.parametrize("given", ["directory", "file"])
def test_a_path(tmp_path: Path, given: str) -> None:
    (tmp_path / "profile.toml").write_text(GOOD)
    assert load_profile(str(tmp_path / "profile.toml" if given == "file" else tmp_path)).name == "app"


def test_an_unknown_name() -> None:
    with pytest.raises(BadInputError, match="there is no profile 'ngnix'") as caught:
        load_profile("ngnix")
    assert caught.value.hint == "did you mean 'nginx'?"
    with pytest.raises(BadInputError) as caught:
        load_profile("zzzzzz")
    assert caught.value.hint is not None
    assert "nginx" in caught.value.hint


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="there is no profile"):
        load_profile(str(tmp_path / "none"))


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ProfileError, match="not UTF-8 at byte 5"):
        load_profile(str(tmp_path))


def test_a_directory_of_the_same_name_does_not_hide_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nginx").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_profile("nginx").unit == "nginx.service"


def test_a_key_begins_no_line() -> None:
    text = GOOD + '"a\\n  run `x`" = 1\n"\\u001b[31m" = 1\n'
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "p")
    assert [each for each in caught.value.problems if not each.isprintable()] == []


def test_a_refused_list_member_is_one_fault() -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(
            'schema = 1\nname = "x"\npackages = ["A!"]\nunit = "x.service"\n[ready]\nkind = "tcp"\nport = 1',
            "p",
        )
    assert len(caught.value.problems) == 1


PREFETCH = '[prefetch]\ndata = ["/var/lib/app/**"]\nfirst_requests = "ask"\n'


def test_data_is_prefetched_only_when_the_profile_says_so() -> None:
    assert parse_profile(GOOD, "x").data_prefetch == DataPrefetch()
    assert parse_profile(GOOD + PREFETCH, "x").data_prefetch == DataPrefetch(("/var/lib/app/**",), "ask")
    assert parse_profile(GOOD + "[prefetch]\n", "x").data_prefetch == DataPrefetch()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('data = ["/var/lib/app/**"]', "", "prefetch: `data` and `first_requests` need each other"),
        ('"ask"', '" "', "prefetch: `data` and `first_requests` need each other"),
        ('"/var', '"var', "prefetch.data"),
        ('"ask"', '"ask\\nagain"', "prefetch.first_requests"),
        ('data = ["/var/lib/app/**"]', "data = true", "prefetch.data"),
        (
            'kind = "tcp"\nport = 80',
            'kind = "exec"\ncommand = "true"',
            'prefetch: kind = "exec" does not tell',
        ),
    ],
)
def test_a_prefetch_of_data_that_is_none(old: str, new: str, problem: str) -> None:
    text = GOOD + PREFETCH
    assert text.count(old) == 1
    (found,) = problems(text.replace(old, new))
    assert found.startswith(problem)
