"""The user and the privileges of our jailed programs, when root, a user, or root of a user namespace starts them."""

from __future__ import annotations

import dataclasses

import pytest

from quickstart.host.door import identity_words
from quickstart.host.identity import Identity, Standing, identity_of
from quickstart.host.owners import Extent

ALL = (1 << 41) - 1
NOTHING = ("--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs")
HOST: tuple[Extent, ...] = ((0, 0, 4294967295),)
# As newuidmap(1) makes it: root inside is the user outside, all else is subordinate.
MAPPED: tuple[Extent, ...] = ((0, 1000, 1), (1, 100000, 65535))
ROOT = Standing(euid=0, capabilities=ALL, uid_map=HOST, gid_map=HOST, setgroups=True)
NAMESPACE = Standing(euid=0, capabilities=ALL, uid_map=MAPPED, gid_map=MAPPED, setgroups=True)
SINGLE = Standing(euid=0, capabilities=ALL, uid_map=((0, 1000, 1),), gid_map=((0, 1000, 1),), setgroups=False)
USER = Standing(euid=1000, capabilities=0, uid_map=HOST, gid_map=HOST, setgroups=True)


def test_root_hands_over_to_a_user_that_nobody_else_is() -> None:
    found = [identity_of(ROOT, number) for number in range(64 * 4194304 - 64, 64 * 4194304)]
    assert all(each.uid == each.gid and each.groups == () and each.drop for each in found)
    uids = {each.uid for each in found}
    assert len(uids) == 64
    # Above what systemd gives to containers, and within 31 bits.
    assert all(uid is not None and 0x7000_0000 <= uid < 1 << 31 for uid in uids)


def test_root_of_a_namespace_takes_a_mapped_one() -> None:
    found = {identity_of(NAMESPACE, number).uid for number in range(1000, 1064)}
    assert len(found) == 64
    assert all(uid is not None and 40_000 <= uid < 61_184 for uid in found)


@pytest.mark.parametrize("count", [2, 100, 40_002])
def test_a_small_map_has_one_too(count: int) -> None:
    few: tuple[Extent, ...] = ((0, 1000, 1), (1, 100000, count))
    for number in (0, 1, 77, 10**6):
        found = identity_of(dataclasses.replace(NAMESPACE, uid_map=few, gid_map=few), number)
        assert found.uid is not None and 1 <= found.uid <= count


def test_a_namespace_without_another_user_takes_the_rights_away() -> None:
    assert identity_of(SINGLE, 5) == Identity(drop=True)
    assert identity_words(identity_of(SINGLE, 5)) == ("--bounding-set", "-all", *NOTHING)


def test_a_user_stays_who_he_is() -> None:
    assert identity_words(identity_of(USER, 5)) == NOTHING
    # As does root without the capabilities that it takes, as in some containers.
    assert identity_of(dataclasses.replace(ROOT, capabilities=1 << 0 | 1 << 6), 5) == Identity()


def test_the_group_of_a_device() -> None:
    assert identity_of(ROOT, 5, 108).groups == (108,)
    assert identity_of(NAMESPACE, 5, 108).groups == (108,)
    # One that is not mapped can only be kept, from who we were outside.
    assert identity_of(NAMESPACE, 5, 70_000).groups is None
    assert identity_of(NAMESPACE, 5, 65534).groups is None
    words = identity_words(Identity(7, 8, (108,), drop=False))
    assert words == ("--reuid", "7", "--regid", "8", "--groups", "108", *NOTHING)
    assert "--keep-groups" in identity_words(Identity(7, 8, None, drop=False))
    assert "--clear-groups" in identity_words(Identity(7, 8, (), drop=False))
