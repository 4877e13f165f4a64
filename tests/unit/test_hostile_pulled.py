"""Units that pull each other in, in more ways than any image has: each way is gone once."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import order, pulled
from quickstart.inspect.unit.files import drop_in_places, names_with_directories
from quickstart.inspect.unit.mounted import refuse_mounts
from quickstart.inspect.unit.neighbours import handing_sockets
from quickstart.inspect.unit.order import comes_before, owned_texts, pulled_by_links
from quickstart.inspect.unit.pulled import is_started, pulled_by, pullers, started_of
from tests.unit.hostile import bounded
from tests.unit.test_hostile_units import enable
from tests.unit.unitreader import put

PACKAGES = "/usr/lib/systemd/system"


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    put(tmp_path, f"{PACKAGES}/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    enable(tmp_path, "default.target", "app.service")
    return ImageRoot(tmp_path)


def test_the_directories_of_a_name() -> None:
    assert names_with_directories("a-b-c@x-y.service") == (
        *("a-b-c@x-y.service", "a-b-c@.service", "a-b-.service", "a-.service"),
        *("a-b-@x-y.service", "a-b-@.service", "a-@x-y.service", "a-@.service", "service"),
    )
    assert names_with_directories("--x.mount") == ("--x.mount", "--.mount", "-.mount", "mount")
    most = "a" * 247 + ".service"
    assert names_with_directories(most) == (most, "service")
    assert names_with_directories(f"a{most}") == ()


@pytest.mark.parametrize(
    "name", ["a-" * 3000 + "b.service", "a-" * 450 + "b@i.service", "-" * 120 + "b@i.service"]
)
def test_wants_of_names_with_many_dashes(root: ImageRoot, name: str) -> None:
    assert len(names_with_directories(name)) < 400
    assert len(drop_in_places(root, name)) < 400
    put(root.base, f"{PACKAGES}/app.service", f"[Unit]\nWants={name}\n[Service]\nExecStart=/usr/bin/app\n")
    comes_before(root, "app.service")
    assert is_started(root, name)


def test_a_group_of_many_members_that_pull_each_other_in(root: ImageRoot) -> None:
    names = [f"a-{number}.service" for number in range(5000)]
    enable(root.base, "a-.service", *names)
    with bounded(mib=128):
        known = pulled_by(root)
        # Each has the group and what stands for its members; as pairs they would be 25 million.
        assert sum(map(len, known.by.values())) < 5 * len(names)
        assert len(pullers(root, names[0], known=known)) == len(names) + 1
        assert started_of(root, names, known) == set()


def test_many_groups(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(name: str) -> tuple[str, ...]:
        asked.append(name)
        return names_with_directories(name)

    monkeypatch.setattr(pulled, "names_with_directories", counted)
    for number in range(500):
        enable(root.base, f"g{number}-.service", "app.service")
    assert len(pulled_by(root).by["app.service"]) > 500
    # Each name once, and not once for each group.
    assert len(asked) < 600


def test_more_links_than_any_image_has(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MAX_LINKS", 50)
    enable(root.base, "a.target", *(f"x{number}.service" for number in range(49)))
    assert len(pulled_by_links(root)["a.target"]) == 49
    enable(root.base, "b.target", "y.service")
    with pytest.raises(
        UnsupportedUnitError, match="enables more than 50 units, the last directory read is /usr"
    ):
        pulled_by_links(root)


def test_links_of_the_host_pull_in_nothing(root: ImageRoot, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("host")
    (outside / "x.service").touch()
    (root.base / f"{PACKAGES[1:]}/out.target.wants").symlink_to(outside)
    assert "out.target" not in pulled_by_links(root)


def counted_texts(monkeypatch: pytest.MonkeyPatch) -> list[ImageRoot]:
    """Grows by one for each time that all units of an image are read."""
    times: list[ImageRoot] = []

    def counted(root: ImageRoot) -> object:
        times.append(root)
        return owned_texts(root)

    monkeypatch.setattr(pulled, "owned_texts", counted)
    return times


def test_many_sockets_that_nobody_enables(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        put(root.base, f"{PACKAGES}/s{number}.socket", "[Socket]\nService=app.service\n")
    times = counted_texts(monkeypatch)
    assert handing_sockets(root, "app.service") == ()
    assert len(times) == 1


def test_mounts_that_a_ring_pulls_in(root: ImageRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """No boot starts the ring, so that nothing ends the way of a mount before it has been round."""
    count = 200
    mounts = " ".join(f"m{number}.mount" for number in range(count))
    for number in range(count):
        put(root.base, f"{PACKAGES}/m{number}.mount", "")
        more = mounts if number == 0 else ""
        put(
            root.base,
            f"{PACKAGES}/r{number}.service",
            f"[Unit]\nWants=r{(number + 1) % count}.service {more}\n",
        )
    asked: list[str] = []
    usual = pulled._names

    def counted(of: ImageRoot, unit: str, known: pulled.PulledBy) -> tuple[str, ...]:
        asked.append(unit)
        return usual(of, unit, known)

    times = counted_texts(monkeypatch)
    monkeypatch.setattr(pulled, "_names", counted)
    refuse_mounts(root, "app.service")
    assert len(times) == 1
    assert len(asked) < 3 * count
    enable(root.base, "multi-user.target", "r7.service")
    with pytest.raises(UnsupportedUnitError, match=r"m0\.mount mounts /m0"):
        refuse_mounts(root, "app.service")
