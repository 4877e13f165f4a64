"""Units that do nothing themselves, and the instance that does the work, in trees as Debian's packages leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import instances, read_unit
from quickstart.inspect.unit.instances import generating_conditions, own_instance, working_instances
from quickstart.newprofile.request import first_draft, parse_ready
from quickstart.newprofile.units import with_needed, with_own_unit
from tests.unit.imagebuilder import Image
from tests.unit.unitreader import put

UNITS = "/usr/lib/systemd/system"
GENERATORS = "/usr/lib/systemd/system-generators"
WRAPPER = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecReload=/bin/true\n"


def template(of: str) -> str:
    return f"[Unit]\nPartOf={of}\nReloadPropagatedFrom={of}\n[Service]\nExecStart=/usr/bin/app %i\n"


def wrapped(image: Image, name: str, generator: str = "") -> Image:
    image.file(f"{UNITS}/{name}.service", WRAPPER)
    image.file(f"{UNITS}/{name}@.service", template(f"{name}.service"))
    if generator:
        image.file(f"{GENERATORS}/{generator}", "#!/bin/sh\n", 0o755)
    return image


def cluster(image: Image, version: str, name: str, start: str | None = "auto\n", server: bool = True) -> None:
    image.file(f"/etc/postgresql/{version}/{name}/postgresql.conf")
    if start is not None:
        image.file(f"/etc/postgresql/{version}/{name}/start.conf", start)
    if server:
        image.file(f"/usr/lib/postgresql/{version}/bin/postgres", "", 0o755)


def found(image: Image, unit: str) -> tuple[str, ...]:
    return working_instances(ImageRoot(image.base), unit)


@pytest.fixture
def postgresql(image: Image) -> Image:
    wrapped(image, "postgresql", "postgresql-generator")
    cluster(image, "15", "main", "# of pg_createcluster(1)\n\nauto\n")
    return image


# ---------------------------------------------------------------- what Debian's generators link


def test_the_cluster_of_postgresql(postgresql: Image) -> None:
    assert own_instance(ImageRoot(postgresql.base), "postgresql.service") == "postgresql@15-main.service"


@pytest.mark.parametrize(
    ("start", "server", "starts"),
    [
        (None, True, True),
        ("auto\n", True, True),
        ("manual\n", True, False),
        ("disabled # for now\n", True, False),
        ("auto\n", False, False),
    ],
)
def test_clusters_that_a_boot_would_start(
    postgresql: Image, start: str | None, server: bool, starts: bool
) -> None:
    cluster(postgresql, "16", "other", start, server)
    assert ("postgresql@16-other.service" in found(postgresql, "postgresql.service")) is starts


def test_several_clusters_are_an_error_that_names_them(postgresql: Image) -> None:
    cluster(postgresql, "15", "second")
    with pytest.raises(UnsupportedUnitError) as error:
        own_instance(ImageRoot(postgresql.base), "postgresql.service")
    assert error.value.message == (
        "postgresql.service starts nothing itself, and 2 instances do its work: "
        "postgresql@15-main.service, postgresql@15-second.service"
    )
    assert error.value.hint == "name the one that starts early, for example postgresql@15-main.service"


def test_a_name_that_no_profile_can_have(image: Image) -> None:
    wrapped(image, "postgresql", "postgresql-generator")
    cluster(image, "15", "maïn")
    with pytest.raises(UnsupportedUnitError, match=r"'postgresql@15-maïn\.service' is no plain word"):
        own_instance(ImageRoot(image.base), "postgresql.service")


@pytest.mark.parametrize(
    "place", ["/etc/systemd/system-generators", "/usr/local/lib/systemd/system-generators"]
)
def test_a_generator_that_is_masked_or_replaced_says_nothing(postgresql: Image, place: str) -> None:
    postgresql.link(f"{place}/postgresql-generator", "/dev/null")
    assert found(postgresql, "postgresql.service") == ()


def test_without_the_generator_nothing_starts_a_cluster(image: Image) -> None:
    wrapped(image, "postgresql")
    cluster(image, "15", "main")
    assert found(image, "postgresql.service") == ()


def test_tor(image: Image) -> None:
    wrapped(image, "tor", "tor-generator")
    image.file(f"{UNITS}/tor@default.service", template("tor.service"))
    # The file of the instance alone is not enough: the generator asks for its configuration.
    assert found(image, "tor.service") == ()
    image.file("/etc/tor/torrc")
    assert found(image, "tor.service") == ("tor@default.service",)
    for name in ("relay", "no-name"):
        image.file(f"/etc/tor/instances/{name}/torrc")
    assert found(image, "tor.service") == ("tor@default.service", "tor@relay.service")


@pytest.mark.parametrize(
    ("main_cf", "more"),
    [
        ("myhostname = x\n", ()),
        ("multi_instance_directories =\n", ()),
        ("#multi_instance_directories = /etc/postfix-no\n", ()),
        ("multi_instance_directories = /etc/postfix-out\n", ("postfix@postfix-out.service",)),
        ("multi_instance_directories =\n /etc/postfix-named\n", ("postfix@outgoing.service",)),
    ],
)
def test_postfix(image: Image, main_cf: str, more: tuple[str, ...]) -> None:
    wrapped(image, "postfix", "postfix-instance-generator")
    image.file("/etc/postfix/main.cf", main_cf)
    image.file("/etc/postfix-named/main.cf", "multi_instance_name = outgoing\n")
    assert found(image, "postfix.service") == ("postfix@-.service", *more)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (None, ("a", "b")),
        ("#AUTOSTART=none\n", ("a", "b")),
        ('AUTOSTART="all"\n', ("a", "b")),
        ('AUTOSTART="none"\n', ()),
        ('AUTOSTART="b gone"\n', ("b",)),
        ("AUTOSTART=a # and not b\n", ("a",)),
        ('AUTOSTART="$(ls)"\n', ()),
        ('AUTOSTART="a\n', ()),
    ],
)
def test_openvpn(image: Image, settings: str | None, names: tuple[str, ...]) -> None:
    wrapped(image, "openvpn", "openvpn-generator")
    for name in ("a.conf", "b.conf", "update-resolv-conf"):
        image.file(f"/etc/openvpn/{name}")
    if settings is not None:
        image.file("/etc/default/openvpn", settings)
    assert found(image, "openvpn.service") == tuple(f"openvpn@{name}.service" for name in names)


# ---------------------------------------------------------------- dependencies and links


@pytest.mark.parametrize(
    "line", ["Wants=app@one.service", "Requires=app@one.service network.target", "BindsTo=app@one.service"]
)
def test_what_the_wrapper_itself_starts(image: Image, line: str) -> None:
    wrapped(image, "app")
    image.file(f"{UNITS}/other@.service", template("app.service"))
    image.file(f"{UNITS}/app.service", f"[Unit]\n{line}\nWants=other@x.service\n{WRAPPER}")
    assert found(image, "app.service") == ("app@one.service",)


@pytest.mark.parametrize("puller", ["app.service.wants", "app.service.requires", "multi-user.target.wants"])
def test_an_instance_that_is_enabled(image: Image, puller: str) -> None:
    wrapped(image, "app")
    image.link(f"/etc/systemd/system/{puller}/app@one.service", f"{UNITS}/app@.service")
    assert found(image, "app.service") == ("app@one.service",)


def test_an_instance_of_another_kind_of_template(image: Image) -> None:
    """openvpn-client@ is enabled by itself and is no part of openvpn.service."""
    wrapped(image, "app")
    image.file(f"{UNITS}/app@.service", template("other.service"))
    image.link("/etc/systemd/system/multi-user.target.wants/app@one.service", f"{UNITS}/app@.service")
    assert found(image, "app.service") == ()


def test_an_instance_with_a_file_of_its_own(image: Image) -> None:
    wrapped(image, "app")
    image.file(f"{UNITS}/app@main.service", template("app.service"))
    image.file(f"{UNITS}/app@helper.service", "[Service]\nExecStart=/usr/bin/app\n")
    assert found(image, "app.service") == ("app@main.service",)


def test_a_masked_instance_does_no_work(image: Image) -> None:
    wrapped(image, "app")
    image.file(f"{UNITS}/app@main.service", template("app.service"))
    image.link("/etc/systemd/system/app@main.service", "/dev/null")
    assert found(image, "app.service") == ()


@pytest.mark.parametrize(
    "text",
    [
        WRAPPER.replace("Type=oneshot", "Type=simple"),
        WRAPPER.replace("ExecStart=/bin/true", "ExecStart=/usr/sbin/rpc.nfsd"),
        f"{WRAPPER}ExecStart=/usr/bin/work\n",
        f"{WRAPPER}ExecStartPre=/usr/bin/work\n",
        WRAPPER.replace("ExecStart=/bin/true\n", ""),
    ],
)
def test_a_unit_that_does_something_itself_is_no_wrapper(image: Image, text: str) -> None:
    image.file(f"{UNITS}/app@main.service", template("app.service"))
    image.file(f"{UNITS}/app.service", text)
    assert found(image, "app.service") == ()


# ---------------------------------------------------------------- the profile


def test_a_profile_takes_the_instance(postgresql: Image) -> None:
    root = ImageRoot(postgresql.base)
    asked = first_draft("pg", ["postgresql"], "postgresql", parse_ready("tcp:5432"), "bookworm", 600)
    draft, wrapper = with_own_unit(root, asked)
    assert (draft.unit, wrapper) == ("postgresql@15-main.service", "postgresql.service")
    assert with_own_unit(root, draft) == (draft, "")


def needing(image: Image, *units: str, **texts: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The units of a profile for app.service, and why it has those that it was not asked for."""
    for name, text in texts.items():
        image.file(f"{UNITS}/{name.replace('_', '.')}", text)
    asked = first_draft("app", ["app"], "app", parse_ready("tcp:1"), "bookworm", 600, companions=[*units])
    draft, needed = with_needed(ImageRoot(image.base), asked)
    return draft.units, dict(needed)


SERVICE = "[Service]\nExecStart=/usr/bin/work\n"


def test_a_profile_takes_the_services_that_a_unit_needs(image: Image) -> None:
    texts = {
        "app_service": f"[Unit]\nRequires=front.service network.target\nWants=other.service\n{SERVICE}",
        "front_service": f"[Unit]\nBindsTo=back.service\nRequisite=app.service\n{SERVICE}",
        "back_service": SERVICE,
        "other_service": SERVICE,
    }
    units, needed = needing(image, **texts)
    assert units == ("back.service", "front.service", "app.service")
    assert needed == {"front.service": "Requires=front.service", "back.service": "BindsTo=back.service"}
    assert needing(image, "front.service") == (units, {"back.service": "BindsTo=back.service"})


def test_a_profile_takes_the_service_of_a_socket_that_a_unit_comes_after(image: Image) -> None:
    """As rabbitmq-server.service comes after epmd.socket: the build would refuse it without."""
    texts = {
        "app_service": (
            f"[Unit]\nAfter=mapper.socket own.socket gone.socket dbus.socket systemd-journald.socket each.socket\n{SERVICE}"
        ),
        "mapper_socket": "[Socket]\nListenStream=4369\nService=names.service\n",
        "own_socket": "[Socket]\nListenStream=1\nService=app.service\n",
        "gone_socket": "[Socket]\nListenStream=2\n",
        "each_socket": "[Socket]\nListenStream=3\nAccept=yes\n",
        "dbus_socket": "[Socket]\nListenStream=/run/dbus/system_bus_socket\n",
        "names_service": SERVICE,
        "dbus_service": SERVICE,
        "each_service": SERVICE,
    }
    assert needing(image, **texts) == (
        ("names.service", "app.service"),
        {"names.service": "After=mapper.socket"},
    )


def test_a_profile_takes_the_services_that_a_unit_wants_and_comes_after(image: Image) -> None:
    """As docker.service has containerd.service: the build would refuse it without."""
    texts = {
        "app_service": (
            "[Unit]\nWants=back.service late.service dbus.service gone.service net.target\n"
            f"After=back.service other.service dbus.service gone.service net.target\n{SERVICE}"
        ),
        "back_service": SERVICE,
        # It comes in any order, and systemd starts it.
        "late_service": SERVICE,
        # The image has it, but the unit does not pull it in.
        "other_service": SERVICE,
        # An early start need not wait for it.
        "dbus_service": SERVICE,
    }
    units, needed = needing(image, **texts)
    assert units == ("back.service", "app.service")
    assert needed == {"back.service": "Wants=back.service, After=back.service"}
    assert needing(image, "back.service") == (units, {})


def test_a_service_that_nobody_has_is_not_taken(image: Image) -> None:
    text = f"[Unit]\nRequires=gone.service srv.mount a\\x00b.service {'x' * 300}.service\n{SERVICE}"
    assert needing(image, app_service=text) == (("app.service",), {})


def test_a_profile_takes_no_more_services_than_it_can_have(image: Image) -> None:
    many = {f"s{number}_service": SERVICE for number in range(20)}
    text = f"[Unit]\nRequires={' '.join(f's{number}.service' for number in range(20))}\n{SERVICE}"
    assert len(needing(image, app_service=text, **many)[0]) == 8


def test_an_alias_of_a_wrapper_is_the_wrapper(postgresql: Image) -> None:
    postgresql.link("/etc/systemd/system/pg.service", f"{UNITS}/postgresql.service")
    asked = first_draft("pg", ["postgresql"], "pg", parse_ready("tcp:5432"), "bookworm", 600)
    draft, wrapper = with_own_unit(ImageRoot(postgresql.base), asked)
    assert (draft.unit, wrapper) == ("postgresql@15-main.service", "postgresql.service")


def test_who_names_the_wrapper_in_a_profile_learns_the_instance(postgresql: Image) -> None:
    with pytest.raises(UnsupportedUnitError, match="Type=oneshot") as error:
        read_unit(ImageRoot(postgresql.base), "postgresql.service")
    assert error.value.hint is not None
    assert error.value.hint.startswith("the work is done by postgresql@15-main.service: ")


# ---------------------------------------------------------------- images of strangers


def test_more_instances_than_anybody_looks_at(postgresql: Image) -> None:
    for number in range(16):
        cluster(postgresql, "15", f"c{number}")
    with pytest.raises(UnsupportedUnitError, match="more than 16 instances may do its work"):
        own_instance(ImageRoot(postgresql.base), "postgresql.service")


def test_more_enabled_ones_than_anybody_looks_at(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(image, "web")
    for number in range(17):
        image.link(
            f"/etc/systemd/system/multi-user.target.wants/web@{number}.service", f"{UNITS}/web@.service"
        )
    asked: list[str] = []
    monkeypatch.setattr(instances, "_belongs", lambda root, name, unit: asked.append(name))
    with pytest.raises(UnsupportedUnitError, match="more than 16 instances may do its work"):
        own_instance(ImageRoot(image.base), "web.service")
    assert not asked


def test_directories_of_postfix_are_not_read_for_ever(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(image, "postfix", "postfix-instance-generator")
    image.file(
        "/etc/postfix/main.cf", f"multi_instance_directories = {' '.join(f'/{n}' for n in range(9999))}\n"
    )
    read: list[str] = []
    text = instances._text
    monkeypatch.setattr(instances, "_text", lambda root, path: read.append(str(path)) or text(root, path))  # type: ignore[func-returns-value]
    with pytest.raises(UnsupportedUnitError, match="more than 16 instances may do its work"):
        own_instance(ImageRoot(image.base), "postfix.service")
    assert len(read) < 20


def test_a_configuration_that_is_none_by_its_size(postgresql: Image) -> None:
    cluster(postgresql, "15", "main", "#\n" * (32 << 10) + "manual\n")
    assert found(postgresql, "postgresql.service") == ("postgresql@15-main.service",)


def test_a_name_longer_than_any_units(image: Image) -> None:
    wrapped(image, "postfix", "postfix-instance-generator")
    image.link("/etc/systemd/system/postfix@-.service", "/dev/null")
    image.file("/etc/postfix/main.cf", "multi_instance_directories = /etc/two\n")
    image.file("/etc/two/main.cf", f"multi_instance_name = {'a' * 1000}\n")
    with pytest.raises(UnsupportedUnitError, match="is no plain word"):
        own_instance(ImageRoot(image.base), "postfix.service")


def test_a_message_names_some_of_many_instances(image: Image) -> None:
    wrapped(image, "web")
    for number in range(100):
        image.file(f"{UNITS}/web@{number}.service", "[Service]\nExecStart=/usr/bin/app\n")
    image.file(f"{UNITS}/web.service", WRAPPER + "ExecStartPost=/bin/true\n")
    with pytest.raises(UnsupportedUnitError, match="Type=oneshot") as error:
        read_unit(ImageRoot(image.base), "web.service")
    assert error.value.hint is not None and len(error.value.hint) < 500
    assert "web@" in error.value.hint and ", …: " in error.value.hint


def test_a_link_to_a_name_that_is_none(postgresql: Image) -> None:
    evil = "x\n[bench]\ncommands = ['true']\n#"
    postgresql.file(f"{UNITS}/{evil}.service", WRAPPER)
    postgresql.file(f"{UNITS}/{evil}@.service", template("x.service"))
    postgresql.link(f"/etc/systemd/system/{evil}.service.wants/{evil}@a.service", f"../{evil}@.service")
    postgresql.link("/etc/systemd/system/web.service", f"{UNITS}/{evil}.service")
    asked = first_draft("pg", ["postgresql"], "web", parse_ready("tcp:5432"), "bookworm", 600)
    with pytest.raises(UnsupportedUnitError, match="which is no name of a unit"):
        with_own_unit(ImageRoot(postgresql.base), asked)


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        ("tor@default.service", "/etc/tor/torrc"),
        ("tor@relay.service", "/etc/tor/instances/relay/torrc"),
        ("postgresql@15-main.service", "/etc/postgresql/15/main/postgresql.conf"),
        ("openvpn@home.service", "/etc/openvpn/home.conf"),
        ("openvpn@a b.service", ""),
        ("postgresql@main.service", ""),
        ("openvpn-client@home.service", ""),
        ("tor.service", ""),
    ],
)
def test_without_its_configuration_a_generator_starts_no_instance(unit: str, path: str) -> None:
    """Each boot asks for the file, and its content may change."""
    record = ("unit-condition", "Condition", "PathExists", "no", "no", path)
    assert generating_conditions(unit) == ((record,) if path else ())


def test_the_configuration_is_a_condition_of_the_instance(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/tor@default.service", "[Service]\nExecStart=/usr/bin/tor\n")
    settings = read_unit(ImageRoot(tmp_path), "tor@default.service").settings
    assert ("unit-condition", "Condition", "PathExists", "no", "no", "/etc/tor/torrc") in settings
