"""Units with Type=dbus, and the system's message bus that starts early before them (docs/internals/bus.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.guestconfig import config_text, unit_config_text
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_stack
from quickstart.newprofile.request import first_draft, parse_ready
from quickstart.newprofile.units import with_needed
from tests.unit.layouts import CONFIG
from tests.unit.test_unit_sockets import UNITS, link, put

# As Debian 12 and 13 have them.
DAEMON = (
    "/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile --systemd-activation --syslog-only"
)
BUS = f"""[Unit]
Requires=dbus.socket
[Service]
Type=notify
NotifyAccess=main
ExecStart={DAEMON}
OOMScoreAdjust=-900
"""
SOCKET = "[Socket]\nListenStream=/run/dbus/system_bus_socket\n"
SERVICE = "[Service]\nType=dbus\nBusName=org.example.App\nExecStart=/usr/bin/app\n"
BROKER = "[Service]\nType=notify\nSockets=dbus.socket\nExecStart=/usr/bin/dbus-broker-launch --scope system\n"


def image(root: Path, app: str = SERVICE, bus: str = BUS, socket: str = SOCKET) -> ImageRoot:
    for name in ("app", "dbus-daemon", "dbus-broker-launch"):
        put(root, f"/usr/bin/{name}", "")
    put(root, "/etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    put(root, "/etc/group", "root:x:0:\n")
    for name, text in (("app.service", app), ("dbus.service", bus), ("dbus.socket", socket)):
        put(root, f"{UNITS}/{name}", text)
    link(root, f"{UNITS}/sockets.target.wants/dbus.socket", "../dbus.socket")
    link(root, f"{UNITS}/multi-user.target.wants/dbus.service", "../dbus.service")
    link(root, f"{UNITS}/multi-user.target.wants/app.service", "../app.service")
    link(root, f"{UNITS}/default.target", "multi-user.target")
    put(root, f"{UNITS}/multi-user.target", "[Unit]\nRequires=basic.target\n")
    return ImageRoot(root)


def refusal(root: ImageRoot, *units: str) -> UnsupportedUnitError:
    with pytest.raises(UnsupportedUnitError) as refused:
        read_stack(root, units)
    return refused.value


def test_a_unit_of_the_bus_starts_behind_the_bus(tmp_path: Path) -> None:
    root = image(tmp_path)
    put(tmp_path, f"{UNITS}/other.service", "[Service]\nExecStart=/usr/bin/app\n")
    link(tmp_path, f"{UNITS}/multi-user.target.wants/other.service", "../other.service")
    stack = read_stack(root, ("other.service", "dbus.service", "app.service"))
    assert [(each.unit, each.type, each.on_bus) for each in stack.all_units] == [
        ("dbus.service", "notify", False),
        ("other.service", "simple", True),
        ("app.service", "dbus", True),
    ]
    assert ("bus-name", "org.example.App") in stack.settings
    assert not any(record[0] == "bus-name" for record in stack.companions[0].settings)


def test_init_knows_the_bus_and_who_is_on_it(tmp_path: Path) -> None:
    stack = read_stack(image(tmp_path), ("dbus.service", "app.service"))
    assert "\nON_BUS=yes\n" in config_text(replace(CONFIG, unit=stack))
    companion = unit_config_text(stack.companions[0])
    assert companion.endswith("\nBUS=yes\nON_BUS=''\n")
    # As before for all others.
    alone = read_stack(image(tmp_path / "alone"), ("dbus.service",))
    assert "BUS" not in config_text(replace(CONFIG, unit=alone))


def test_without_the_bus_such_a_unit_is_refused(tmp_path: Path) -> None:
    error = refusal(image(tmp_path), "app.service")
    assert error.message == (
        "app.service cannot be started early: it needs dbus.service, which comes with systemd (Type=dbus)"
    )
    assert error.hint == "name both in `units` of the profile, so that both start early"


def test_a_new_profile_has_the_bus(tmp_path: Path) -> None:
    root = image(tmp_path)
    draft = first_draft("app", ["app"], "app", parse_ready("tcp:1"), "bookworm", 600)
    found, why = with_needed(root, draft)
    assert (found.units, why) == (("dbus.service", "app.service"), {"dbus.service": "Type=dbus"})


def test_a_name_makes_it_a_unit_of_the_bus(tmp_path: Path) -> None:
    """systemd.service(5): Type=dbus is the default with BusName=."""
    root = image(tmp_path, SERVICE.replace("Type=dbus\n", ""))
    assert read_stack(root, ("dbus.service", "app.service")).type == "dbus"
    other = image(tmp_path / "other", SERVICE.replace("dbus", "exec"))
    assert refusal(other, "dbus.service", "app.service").message.endswith("it has BusName")


@pytest.mark.parametrize(
    "name", ["", "org", "1.example", "org..x", "org.example/x", "org.é", f"a.{'b' * 254}", ":1.2"]
)
def test_it_needs_a_name_that_the_bus_takes(tmp_path: Path, name: str) -> None:
    root = image(tmp_path, SERVICE.replace("org.example.App", name))
    assert "is no name on the bus" in refusal(root, "dbus.service", "app.service").message


@pytest.mark.parametrize(
    ("bus", "socket"),
    [
        (BUS.replace("/usr/bin/dbus-daemon", "/usr/bin/app"), SOCKET),
        (BUS.replace(" --systemd-activation", ""), SOCKET),
        (BUS.replace("Type=notify", "Type=simple"), SOCKET),
        (BUS, SOCKET.replace("/run/dbus/system_bus_socket", "/run/other")),
        (BUS, SOCKET + "ListenStream=/run/other\n"),
    ],
)
def test_another_bus_is_refused(tmp_path: Path, bus: str, socket: str) -> None:
    error = refusal(image(tmp_path, bus=bus, socket=socket), "dbus.service", "app.service")
    assert (
        "dbus.service cannot be started early: it is the message bus, and is not started as" in error.message
    )


def test_a_bus_of_another_name_is_refused(tmp_path: Path) -> None:
    root = image(tmp_path, socket=f"{SOCKET}Service=other.service\n")
    put(tmp_path, f"{UNITS}/other.service", BUS)
    assert (
        "other.service cannot be started early: it is the message bus"
        in refusal(root, "other.service").message
    )
    # And then nobody listens for this one.
    assert "it is the message bus" in refusal(root, "dbus.service", "app.service").message


@pytest.mark.parametrize("unit", ["dbus-broker.service", "dbus.service"])
def test_dbus_broker_is_refused_by_name(tmp_path: Path, unit: str) -> None:
    root = image(tmp_path)
    put(tmp_path, f"{UNITS}/dbus-broker.service", BROKER)
    link(tmp_path, "/etc/systemd/system/dbus.service", f"{UNITS}/dbus-broker.service")
    error = refusal(root, unit, "app.service")
    assert f"{unit} cannot be started early: it is dbus-broker" in error.message
    assert error.hint == "remove the package dbus-broker from the image, so that dbus.service is dbus-daemon"


def test_the_bus_is_not_the_one_that_answers(tmp_path: Path) -> None:
    error = refusal(image(tmp_path), "app.service", "dbus.service")
    assert error.hint == "put dbus.service before app.service in `units`"
