"""The storage model's arithmetic: compared with results by hand where possible, otherwise properties of every model."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.volume.nbd import Command, pieces
from quickstart.volume.storage import StorageModel, load_model
from tests.queueing import Asked, closed_loop_ns, expected_ns

KIB = 1024
# 1 byte takes 1 ns; a granule 1 000 000 ns.
PLAIN = StorageModel(
    name="plain",
    description="",
    read_latency_ns=1000,
    write_latency_ns=500,
    bandwidth_bytes_s=10**9,
    queue_depth=4,
    granule_bytes=8192,
    first_touch_ns=1_000_000,
    sources=(),
)
COSTS = (Command.READ, Command.WRITE, Command.WRITE_ZEROES)


def read(offset: int, length_bytes: int = 100) -> Asked:
    return Asked(Command.READ, offset, length_bytes)


def warm(model: StorageModel) -> StorageModel:
    return dataclasses.replace(model, first_touch_ns=0)


def test_one_read_costs_touch_latency_and_transfer() -> None:
    assert expected_ns(PLAIN, [(7, read(0))]) == (7 + 1_000_000 + 1000 + 100,)
    assert expected_ns(PLAIN, [(7, Asked(Command.WRITE, 0, 100))]) == (7 + 1_000_000 + 500 + 100,)
    assert expected_ns(PLAIN, [(7, Asked(Command.WRITE_ZEROES, 0, 100))]) == (7 + 1_000_000 + 500,)


def test_a_granule_is_cold_only_once_whoever_touches_it() -> None:
    first, second = expected_ns(PLAIN, [(0, Asked(Command.WRITE, 0, 1)), (2_000_000, read(8191, 1))])
    assert (first, second) == (1_000_501, 2_001_001)


def test_the_touches_of_one_request_add_up_and_those_of_several_overlap() -> None:
    assert expected_ns(PLAIN, [(0, read(8191, 2))]) == (2_001_002,)
    assert expected_ns(PLAIN, [(0, read(0)), (0, read(8192))]) == (1_001_100, 1_001_200)


def test_what_another_request_is_pulling_is_waited_for() -> None:
    assert expected_ns(PLAIN, [(0, read(0)), (400_000, read(4096))]) == (1_001_100, 1_001_200)
    # The second pulls its own meanwhile.
    assert expected_ns(PLAIN, [(0, read(0)), (400_000, read(8191, 2))])[1] == 1_401_002


def test_the_link_is_crossed_one_after_another_in_order_of_readiness() -> None:
    model = warm(PLAIN)
    assert expected_ns(model, [(0, read(0, 5000)), (0, read(0, 200))]) == (6000, 6200)
    late_read, early_write = expected_ns(model, [(0, read(0, 5000)), (1, Asked(Command.WRITE, 0, 200))])
    assert (early_write, late_read) == (701, 6000)


def test_requests_beyond_the_queue_depth_wait_for_a_place_in_order() -> None:
    model = dataclasses.replace(warm(PLAIN), queue_depth=2)
    assert expected_ns(model, [(0, read(0))] * 5) == (1100, 1200, 2200, 2300, 3300)


def test_a_head_passes_over_what_lies_ahead_and_seeks_what_is_far_or_behind() -> None:
    disk = dataclasses.replace(warm(PLAIN), seek_ns=2000, queue_depth=1)
    # Where it is, 100 bytes ahead, as far ahead as a seek takes, further, at its end, behind, and on from there.
    places = [0, 200, 2300, 10_000, 10_100, 0, 100]
    moves_ns = [0, 100, 2000, 2000, 0, 2000, 0]
    due_ns = expected_ns(disk, [(0, read(place)) for place in places])
    took_ns = [b - a for a, b in itertools.pairwise((0, *due_ns))]
    assert took_ns == [move_ns + 1000 + 100 for move_ns in moves_ns]
    endless = dataclasses.replace(disk, bandwidth_bytes_s=None)
    assert closed_loop_ns(endless, [read(0), read(101), read(201)], 1) == 2000 + 3 * 1000


def test_a_write_moves_the_head_as_a_read_does() -> None:
    disk = dataclasses.replace(warm(PLAIN), seek_ns=2000, queue_depth=1)
    asked = [Asked(command, 0, 100) for command in COSTS]
    assert closed_loop_ns(disk, asked, 1) == 2 * 2000 + 1000 + 2 * 500 + 2 * 100


def test_without_limits_an_answer_is_due_at_once() -> None:
    assert expected_ns(load_model("local"), [(n, read(0, 4096)) for n in range(300)]) == tuple(range(300))


def test_arrivals_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="arrival 1 is earlier"):
        expected_ns(PLAIN, [(5, read(0)), (4, read(0))])


def test_64_reads_of_the_ebs_models_take_what_one_computes_by_hand() -> None:
    each = [read(n * 512 * KIB, 4096) for n in range(64)]
    transfer_ns = 31_250
    assert closed_loop_ns(load_model("ebs-warm"), each, 1) == 64 * (800_000 + transfer_ns)
    assert closed_loop_ns(load_model("ebs-cold"), each, 1) == 64 * (20_800_000 + transfer_ns)
    # Four rounds of sixteen: the first round's transfers spread the others by one transfer each.
    assert (
        closed_loop_ns(load_model("ebs-cold"), each, 16) == 4 * (20_800_000 + transfer_ns) + 15 * transfer_ns
    )


def test_pieces_cover_the_extents_in_order() -> None:
    assert list(pieces([(10, 5), (100, 4), (7, 0)], 2)) == [(10, 2), (12, 2), (14, 1), (100, 2), (102, 2)]


models = st.builds(
    StorageModel,
    name=st.just("any"),
    description=st.just(""),
    read_latency_ns=st.integers(0, 10**6),
    write_latency_ns=st.integers(0, 10**6),
    bandwidth_bytes_s=st.none() | st.integers(10**6, 10**10),
    queue_depth=st.integers(1, 8),
    granule_bytes=st.sampled_from([4096, 6000, 65536]),
    first_touch_ns=st.sampled_from([0, 1, 10**5, 10**7]),
    sources=st.just(()),
    seek_ns=st.sampled_from([0, 10**5]),
)
requests = st.lists(
    st.builds(Asked, st.sampled_from(COSTS), st.integers(0, 200_000), st.integers(1, 70_000)), max_size=30
)
gaps = st.lists(st.integers(0, 10**6), min_size=30, max_size=30)


def arrivals(asked: list[Asked], between: list[int]) -> list[tuple[int, Asked]]:
    at_ns, found = 0, []
    for one, gap in zip(asked, between, strict=False):
        at_ns += gap
        found.append((at_ns, one))
    return found


def service_ns(model: StorageModel, asked: Asked) -> int:
    latency_ns = model.read_latency_ns if asked.command == Command.READ else model.write_latency_ns
    if model.bandwidth_bytes_s is None or asked.command == Command.WRITE_ZEROES:
        return latency_ns
    return latency_ns + -(-asked.length_bytes * 10**9 // model.bandwidth_bytes_s)


@given(models, requests)
def test_at_depth_1_everything_adds_up(model: StorageModel, asked: list[Asked]) -> None:
    touched: set[int] = set()
    for each in asked:
        last = (each.offset + each.length_bytes - 1) // model.granule_bytes
        touched |= set(range(each.offset // model.granule_bytes, last + 1))
    wanted = sum(service_ns(model, each) for each in asked) + len(touched) * model.first_touch_ns
    without_head = dataclasses.replace(model, seek_ns=0)
    assert closed_loop_ns(without_head, asked, 1) == wanted
    assert wanted <= closed_loop_ns(model, asked, 1) <= wanted + len(asked) * model.seek_ns


@given(models, requests, gaps)
def test_no_answer_is_earlier_than_its_request_alone_would_be(
    model: StorageModel, asked: list[Asked], between: list[int]
) -> None:
    asked_at = arrivals(asked, between)
    for (at_ns, each), due_ns in zip(asked_at, expected_ns(model, asked_at), strict=True):
        assert due_ns >= at_ns + service_ns(model, each)


@given(models, requests, gaps)
def test_the_link_never_carries_more_than_its_bandwidth(
    model: StorageModel, asked: list[Asked], between: list[int]
) -> None:
    asked_at = arrivals(asked, between)
    bare = dataclasses.replace(model, read_latency_ns=0, write_latency_ns=0)
    answers = zip(asked_at, expected_ns(model, asked_at), strict=True)
    crossing = sorted((due_ns, service_ns(bare, each)) for (_, each), due_ns in answers)
    payloads = [each for each in crossing if each[1]]
    for (before_ns, _), (due_ns, transfer_ns) in itertools.pairwise(payloads):
        assert due_ns - before_ns >= transfer_ns


@given(models, requests, st.integers(2, 40))
def test_more_in_flight_is_never_slower_than_one_at_a_time(
    model: StorageModel, asked: list[Asked], depth: int
) -> None:
    assert closed_loop_ns(model, asked, depth) <= closed_loop_ns(model, asked, 1)


@given(models, requests, gaps, st.integers(1, 10**6))
def test_a_higher_latency_answers_nothing_earlier_at_depth_1(
    model: StorageModel, asked: list[Asked], between: list[int], more_ns: int
) -> None:
    narrow = dataclasses.replace(model, queue_depth=1)
    slow = dataclasses.replace(
        narrow,
        read_latency_ns=model.read_latency_ns + more_ns,
        write_latency_ns=model.write_latency_ns + more_ns,
    )
    asked_at = arrivals(asked, between)
    fast_ns, slow_ns = expected_ns(narrow, asked_at), expected_ns(slow, asked_at)
    assert all(a + more_ns <= b for a, b in zip(fast_ns, slow_ns, strict=True))


@given(models, requests, gaps)
def test_later_arrivals_by_the_same_time_give_later_answers_by_the_same_time(
    model: StorageModel, asked: list[Asked], between: list[int]
) -> None:
    asked_at = arrivals(asked, between)
    moved = [(at_ns + 12345, each) for at_ns, each in asked_at]
    assert expected_ns(model, moved) == tuple(due_ns + 12345 for due_ns in expected_ns(model, asked_at))
