"""`verify --until-clean`: files that are missing in the start set are added round by round, and listed in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.artefact.manifest import read_manifest
from quickstart.cli.verify import same_options
from quickstart.engines.boot import TraceOptions
from quickstart.errors import BadInputError
from quickstart.image.blockmap import Kind, Owner
from quickstart.inspect.globs import matches
from quickstart.model import Profile, RootIo
from quickstart.profile import load_profile
from quickstart.verify.boot import Verified
from quickstart.verify.ledger import Entry, Ledger, Packed
from quickstart.verify.untilclean import (
    ROUNDS,
    Round,
    include_list,
    read_includes,
    read_own_includes,
    until_clean,
    with_includes,
    write_includes,
)
from tests.unit.outs import write_manifest

P = PurePosixPath
LIBRARY, MODULE, PAGE = P("/usr/lib/libx.so"), P("/usr/lib/mod[1].so"), P("/var/www/index.html")


def verified(*read: PurePosixPath, packed: Sequence[PurePosixPath] = ()) -> Verified:
    """A ledger in which these files were read from the root volume."""
    entries = tuple(
        Entry(
            time_ns=1,
            writes=False,
            ahead=False,
            offset_bytes=0,
            length_bytes=4096,
            owners=(Owner(kind=Kind.FILE, first_block=0, blocks=1, path=path),),
            askers=(),
        )
        for path in read
    )
    ledger = Ledger(ready_ns=2, reads=entries, writes=(), failed=(), listed=(), untouched=(), lost=0)
    return Verified(
        ledger,
        RootIo(0, 0, 0, 0),
        Packed(files=dict.fromkeys(packed, 1), links={}, excluded={}, interpreters={}),
        "",
    )


class Application:
    """Reads ``needs``; the second of them only where the first is packed, as a library that brings another."""

    def __init__(self, *needs: PurePosixPath) -> None:
        self.needs = needs
        self.profile: Profile | None = None
        self.kept: list[tuple[PurePosixPath, ...]] = []

    def build(self, profile: Profile) -> None:
        self.profile = profile

    def verify(self) -> Verified:
        assert self.profile is not None
        packed = [
            each for each in self.needs if any(matches(each, rule) for rule in self.profile.files.include)
        ]
        left = [each for each in self.needs if each not in packed]
        return verified(*left[:1], packed=packed)

    def run(self, *included: PurePosixPath) -> tuple[Round, ...]:
        return until_clean(
            load_profile("nginx"),
            included,
            self.build,
            self.verify,
            lambda files: self.kept.append(tuple(files)),
        )


def test_nothing_lacking_is_one_round() -> None:
    application = Application()
    (only,) = application.run()
    assert only.added == ()
    assert application.kept == []


def test_each_round_builds_with_what_the_one_before_found() -> None:
    application = Application(LIBRARY, MODULE)
    rounds = application.run()
    assert [each.added for each in rounds] == [(), (LIBRARY,), (MODULE,)]
    assert application.kept == [(LIBRARY,), (LIBRARY, MODULE)]


def test_what_an_earlier_call_found_stays() -> None:
    application = Application(LIBRARY, MODULE)
    rounds = application.run(LIBRARY)
    assert [each.added for each in rounds] == [(), (MODULE,)]
    assert application.kept == [(LIBRARY, MODULE)]


def test_data_of_the_profile_is_never_asked_for() -> None:
    assert len(Application(PAGE).run()) == 1


def test_it_ends_where_packing_does_not_help() -> None:
    class Stubborn(Application):
        def verify(self) -> Verified:
            return verified(LIBRARY)

    assert [each.added for each in Stubborn().run()] == [(), (LIBRARY,)]


def test_it_ends_after_so_many_rounds() -> None:
    assert len(Application(*(P(f"/usr/lib/{number}") for number in range(9))).run()) == ROUNDS


def test_an_include_names_the_one_file() -> None:
    profile = with_includes(load_profile("nginx"), (MODULE,))
    assert any(matches(MODULE, rule) for rule in profile.files.include)
    assert not any(matches(P("/usr/lib/mod1.so"), rule) for rule in profile.files.include)
    assert with_includes(profile, (MODULE,)) == profile


def test_the_list_comes_back_as_it_was_written(tmp_path: Path) -> None:
    listed = include_list(tmp_path / "nginx")
    assert listed == tmp_path / "nginx.include"
    files = (MODULE, P("/usr/a b#c"), P("/usr/\udcff"))
    write_includes(listed, files)
    assert read_includes(listed) == files
    assert [each.name for each in tmp_path.iterdir()] == ["nginx.include"]


def test_a_bad_list_is_named(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    with pytest.raises(BadInputError, match="cannot be read"):
        read_includes(listed)
    listed.write_text("# a word\n\n/usr/x\nusr/y\n")
    with pytest.raises(BadInputError, match="list:4: usr/y is no absolute path"):
        read_includes(listed)
    with pytest.raises(BadInputError, match="line's end"):
        write_includes(listed, [P("/a\nb")])


def test_the_list_of_an_earlier_call_counts(tmp_path: Path) -> None:
    listed = include_list(tmp_path / "nginx")
    assert read_own_includes(listed) == ()
    write_includes(listed, [MODULE])
    assert read_own_includes(listed) == (MODULE,)


def test_another_user_s_list_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /tmp, where OUT may lie, and where anybody may make a file of the list's name."""
    listed = include_list(tmp_path / "nginx")
    write_includes(listed, [MODULE])
    monkeypatch.setattr(os, "geteuid", lambda: listed.stat().st_uid + 1)
    with pytest.raises(BadInputError, match="belongs to another user"):
        read_own_includes(listed)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_list_that_is_not_a_file_is_refused(kind: str, tmp_path: Path) -> None:
    """A pipe would be read for ever; a link may lead to a list of anybody's."""
    listed, other = include_list(tmp_path / "nginx"), tmp_path / "other"
    write_includes(other, [MODULE])
    if kind == "link":
        listed.symlink_to(other)
    else:
        os.mkfifo(listed)
    with pytest.raises(BadInputError, match="not a regular file"):
        read_own_includes(listed)


def test_what_is_in_the_way_of_the_list_is_not_written_to(tmp_path: Path) -> None:
    listed, other = include_list(tmp_path / "nginx"), tmp_path / "other"
    other.write_text("as it was")
    (tmp_path / ".nginx.include.partial").symlink_to(other)
    write_includes(listed, [MODULE])
    assert other.read_text() == "as it was"
    assert read_own_includes(listed) == (MODULE,)
    assert not listed.is_symlink()


@pytest.mark.parametrize(
    ("field", "value", "other"),
    [
        ("kernel_options", "stock", "boot"),
        ("payload", "zstd", "cpio"),
        ("delivery", "fast", "overlay"),
        ("hand_off", "release", "keep"),
    ],
)
def test_each_build_has_the_options_of_out(tmp_path: Path, field: str, value: str, other: str) -> None:
    for given in (value, other):
        write_manifest(tmp_path, **{field: given})
        options = same_options(artefacts.load(tmp_path), read_manifest(tmp_path), TraceOptions())
        kept = getattr(options, field)
        assert kept is not None
        assert kept.value == given


def test_a_list_without_an_end_is_not_read(tmp_path: Path) -> None:
    """It may have come with somebody else's OUT: a hole of terabytes takes no room there."""
    listed = tmp_path / "out.include"
    with listed.open("wb") as file:
        file.truncate(1 << 40)
    for reader in (read_includes, read_own_includes):
        with pytest.raises(BadInputError, match="at most 16777216 are read"):
            reader(listed)
