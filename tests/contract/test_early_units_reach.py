"""What reaches before the application by way of others: other names, targets, drop-ins, sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.enabled import enabled_text
from tests.contract.test_early_units import GOAL, NOTHING, OWN, PACKAGES, early, link, put, root

__all__ = ["root"]
SOCKETS = f"{OWN}/sockets.target.wants"


def rules(root: Path) -> None:
    """A packet filter that nothing enables."""
    put(root, f"{PACKAGES}/rules.service", "[Unit]\nBefore=network.target\n")


def build(root: Path) -> None:
    (root / "known").write_bytes(enabled_text(ImageRoot(root), "app.service"))


def enable(root: Path, name: str, text: str) -> str:
    put(root, f"{PACKAGES}/{name}", text)
    link(root, f"{GOAL}/{name}")
    return f"{GOAL}/{name}"


@pytest.mark.parametrize(
    "text",
    [
        "BindTo=rules.service",
        "RequiresOverridable=rules.service",
        "Conflicts=app.service",
        'Conflicts="app.service"',
        "RequiresMountsFor=/srv/app",
        "RequiresMountsFor=/var /srv",
        "RequiresMountsFor=srv",
        "WantsMountsFor=/srv-x/app",
        "OfTomorrow=rules.service",
        "[Service]\nSockets=rules.service",
        "[Service]\nNice=1\n[Unit]\nBefore=network.target",
        "[Other]\nBefore=network.target",
        "[Service] \\\nx\nBefore=network.target",
    ],
)
def test_every_key_that_is_not_harmless_counts(root: Path, text: str) -> None:
    rules(root)
    put(root, f"{PACKAGES}/srv-app.mount", "[Mount]\nWhat=/dev/vdb\n")
    path = enable(root, "daemon.service", f"[Unit]\n{text}\n")
    assert early(root) == (path,)


@pytest.mark.parametrize(
    "text",
    [
        "Documentation=man:a(8)\nConditionPathExists=!/etc/a\nAssertUser=root\nStartLimitIntervalSec=1\nX-Own=rules.service",
        "OnFailure=rules.service\nPartOf=rules.service\nConflicts=shutdown.target\nRefuseManualStart=yes\nCollectMode=inactive",
        "PropagatesReloadTo=rules.service\nStopPropagatedFrom=rules.service\nJoinsNamespaceOf=rules.service",
        "RequiresMountsFor=/var/lib/a-b /etc",
        "[Service]\nBefore=network.target\n[Install]\nWantedBy=network.target\n[X-Own]\nBefore=network.target",
        # Of a boot that does not wait for the network.
        "Wants=started.target\nRequires=basic.target dbus.socket",
    ],
)
def test_what_is_harmless(root: Path, text: str) -> None:
    rules(root)
    put(root, f"{PACKAGES}/srv-app.mount", "[Mount]\nWhat=/dev/vdb\n")
    put(root, f"{PACKAGES}/basic.target", "[Unit]\nDefaultDependencies=no\n")
    put(root, f"{PACKAGES}/started.target", "[Unit]\nAfter=network.target\n")
    enable(root, "daemon.service", f"[Unit]\n{text}\n")
    assert early(root) == NOTHING


@pytest.mark.parametrize("text", ["Before=multi-user.target", "Description=a"])
def test_an_end_that_the_application_waits_for_is_none(root: Path, text: str) -> None:
    put(root, f"{PACKAGES}/app.service", "[Unit]\nAfter=multi-user.target\n")
    build(root)
    path = enable(root, "wall.service", f"[Unit]\n{text}\n")
    assert early(root) == (path,)


@pytest.mark.parametrize("online", [True, False])
def test_one_before_the_network_is_online(root: Path, online: bool) -> None:
    """It counts when the application waits for that."""
    if not online:
        put(root, f"{PACKAGES}/app.service", "[Unit]\nAfter=network.target\n")
    build(root)
    path = enable(root, "wait.service", "[Unit]\nBefore=network-online.target\n")
    assert early(root) == ((path,) if online else NOTHING)


@pytest.mark.parametrize(
    "drop_in",
    [
        "network.target.d",
        "target.d",
        "service.d",
        "wait.service.d",
        "wa-.service.d",
        "store@.service.d",
        "store@a.service.d",
    ],
)
def test_a_drop_in_of_what_comes_before(root: Path, drop_in: str) -> None:
    after = "network-online.target wa-it.service store@a.service"
    put(root, f"{PACKAGES}/app.service", f"[Unit]\nAfter={after}\n")
    # A target waits for it without a word.
    put(root, f"{PACKAGES}/wait.service", "[Unit]\nDescription=a\n")
    link(root, f"{PACKAGES}/network-online.target.wants/wait.service")
    build(root)
    put(root, f"{OWN}/{drop_in}/a.conf", "[Service]\nExecStartPre=/sbin/nft\n")
    put(root, f"{OWN}/other.service.d/a.conf", "[Service]\nExecStartPre=/sbin/nft\n")
    assert early(root) == (f"{OWN}/{drop_in}/a.conf",)


def test_a_linked_directory_of_drop_ins(root: Path) -> None:
    link(root, f"{OWN}/early.service.d", "/opt/early")
    assert early(root) == (f"{OWN}/early.service.d",)
    build(root)
    assert early(root) == NOTHING


@pytest.mark.parametrize("enabled", ["shop.service", "real.service"])
def test_a_chain_of_names(root: Path, enabled: str) -> None:
    """The application comes after store.service, which is one of them."""
    put(root, f"{PACKAGES}/real.service", "[Unit]\nDescription=a\n")
    link(root, f"{GOAL}/{enabled}")
    link(root, f"{PACKAGES}/shop.service", "real.service")
    assert early(root) == NOTHING
    link(root, f"{PACKAGES}/store.service", "shop.service")
    assert early(root) == (f"{GOAL}/{enabled}",)


@pytest.mark.parametrize(
    ("name", "other"), [("shop.service", "real.service"), ("shop@.service", "real@.service")]
)
def test_drop_ins_of_another_name(root: Path, name: str, other: str) -> None:
    put(root, f"{PACKAGES}/{other}", "[Unit]\nDescription=a\n")
    link(root, f"{PACKAGES}/{name}", other)
    put(root, f"{PACKAGES}/{other}.d/a.conf", "[Unit]\nBefore=network.target\n")
    link(root, f"{GOAL}/{name.replace('@', '@x')}", f"/{PACKAGES}/{name}")
    assert early(root) == (f"{GOAL}/{name.replace('@', '@x')}", f"{PACKAGES}/{other}.d/a.conf")


@pytest.mark.parametrize(
    "drop_in",
    [
        "a-b@x.service.d/x.conf",
        "a-b@.service.d/x.conf",
        "a-@x.service.d/x.conf",
        "a-@.service.d/x.conf",
        "service.d/*.conf",
    ],
)
def test_drop_ins_of_an_instance(root: Path, drop_in: str) -> None:
    put(root, f"{PACKAGES}/a-b@.service", "[Unit]\nDescription=a\n")
    put(root, f"{PACKAGES}/{drop_in}", "[Unit]\nBefore=network.target\n")
    link(root, f"{GOAL}/a-b@x.service", f"/{PACKAGES}/a-b@.service")
    # The drop-in is new itself.
    assert early(root) == (f"{GOAL}/a-b@x.service", f"{PACKAGES}/{drop_in}")


@pytest.mark.parametrize("puller", ["filter.target", "rescue.target", ".filter.target"])
@pytest.mark.parametrize("kind", ["wants", "requires", "upholds"])
def test_what_was_enabled_for_a_target_that_no_boot_reached(root: Path, puller: str, kind: str) -> None:
    rules(root)
    put(root, f"{PACKAGES}/{puller}", "[Unit]\nDescription=a\n")
    link(root, f"{OWN}/{puller}.{kind}/rules.service")
    build(root)
    assert early(root) == NOTHING
    path = enable(root, "daemon.service", f"[Unit]\nWants={puller}\n")
    assert early(root) == (path,)
    # And the same unit by its own name.
    put(root, f"{PACKAGES}/daemon.service", "[Unit]\nRequires=rules.service\n")
    assert early(root) == (path,)


def test_a_masked_entry_pulls_nothing_in(root: Path) -> None:
    rules(root)
    for directory in ("graphical.target.wants", "daemon.service.wants"):
        link(root, f"{PACKAGES}/{directory}/rules.service")
        link(root, f"{OWN}/{directory}/rules.service", "/dev/null")
    build(root)
    path = enable(root, "daemon.service", "[Unit]\nDescription=a\n")
    assert early(root) == NOTHING
    (root / f"{OWN}/daemon.service.wants/rules.service").unlink()
    assert early(root) == (path, f"{PACKAGES}/daemon.service.wants/rules.service")
    (root / f"{OWN}/graphical.target.wants/rules.service").unlink()
    assert f"{PACKAGES}/graphical.target.wants/rules.service" in early(root)
    put(root, f"{OWN}/graphical.target.wants/rules.service", "")
    assert f"{PACKAGES}/graphical.target.wants/rules.service" not in early(root)


@pytest.mark.parametrize("path", [f"{OWN}/target.wants/wall.service", f"{SOCKETS}/wall.service"])
def test_what_every_target_or_that_of_sockets_waits_for(root: Path, path: str) -> None:
    put(root, f"{PACKAGES}/wall.service", "[Unit]\nDescription=a\n")
    link(root, path)
    assert early(root) == (path,)


@pytest.mark.parametrize(
    "text",
    [
        "[Unit]\nRequires=rules.service",
        "[Unit]\nBefore=network.target",
        "[Unit]\nDefaultDependencies=no",
        "[Socket]\nExecStartPre=/sbin/nft",
        "[Socket]\nExecStartPost = /sbin/nft",
        # It would hand its sockets to the application.
        "[Socket]\nListenStream=/run/d\nService=app.service",
        "[Socket]\nListenStream=/run/d\nService=%p.service",
    ],
)
def test_a_socket_that_does_more_than_wait(root: Path, text: str) -> None:
    rules(root)
    put(
        root,
        f"{PACKAGES}/daemon.socket",
        "[Unit]\nBefore=sockets.target daemon.service\n[Socket]\nListenStream=/run/d\n",
    )
    link(root, f"{SOCKETS}/daemon.socket")
    assert early(root) == NOTHING
    put(root, f"{PACKAGES}/daemon.socket", f"{text}\n")
    assert early(root) == (f"{SOCKETS}/daemon.socket",)


def test_a_socket_of_another_service(root: Path) -> None:
    put(root, f"{PACKAGES}/daemon.socket", "[Socket]\nListenStream=/run/d\nService=other.service\n")
    link(root, f"{SOCKETS}/daemon.socket")
    assert early(root) == NOTHING


def test_a_socket_that_the_application_waits_for(root: Path) -> None:
    put(root, f"{PACKAGES}/app.service", "[Unit]\nAfter=store.socket\n")
    build(root)
    put(root, f"{PACKAGES}/store.socket", "[Socket]\nListenStream=/run/s\n")
    link(root, f"{SOCKETS}/store.socket")
    assert early(root) == (f"{SOCKETS}/store.socket",)


@pytest.mark.parametrize("place", ["sockets.target.wants", "multi-user.target.wants", "daemon.service.wants"])
@pytest.mark.parametrize("name", ["app", "other-name"])
def test_a_socket_that_is_the_application_s_by_its_name(root: Path, name: str, place: str) -> None:
    """systemd.socket(5), Service=: without it, it is the service of the socket's own name, an alias too."""
    link(root, f"{PACKAGES}/other-name.service", "app.service")
    build(root)
    put(root, f"{PACKAGES}/{name}.socket", "[Socket]\nListenStream=/run/d\n")
    link(root, f"{OWN}/{place}/{name}.socket")
    assert early(root) == (f"{OWN}/{place}/{name}.socket",)


def test_what_the_application_s_socket_waits_for(root: Path) -> None:
    put(root, f"{PACKAGES}/app.socket", "[Unit]\nAfter=wall.service\n[Socket]\nListenStream=80\n")
    link(root, f"{SOCKETS}/app.socket")
    build(root)
    put(root, f"{PACKAGES}/wall.service", "[Unit]\nDescription=wall\n")
    link(root, f"{OWN}/multi-user.target.wants/wall.service")
    assert early(root) == (f"{OWN}/multi-user.target.wants/wall.service",)


def test_a_rival_that_the_application_excludes(root: Path) -> None:
    """systemd chooses one of two units that conflict, and it may choose the other one."""
    put(root, f"{PACKAGES}/app.service", "[Unit]\nConflicts=rival.service shutdown.target\n")
    build(root)
    put(root, f"{PACKAGES}/rival.service", "[Unit]\nBefore=shutdown.target\n")
    link(root, f"{OWN}/multi-user.target.wants/rival.service")
    assert early(root) == (f"{OWN}/multi-user.target.wants/rival.service",)
