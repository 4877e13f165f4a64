"""When a volume answers: a second implementation of the model, as discrete events in integer nanoseconds (docs/users/storage.md).

``quickstart/volume/emulator/model.c`` computes exactly the same; tests/contract/test_volume.py compares the
two.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from quickstart.volume.nbd import Command
from quickstart.volume.storage import StorageModel

_SECOND_NS = 10**9


@dataclass(frozen=True)
class Asked:
    """One request that costs time: ``command`` is READ, WRITE or WRITE_ZEROES, ``length_bytes`` at least 1."""

    command: Command
    offset: int
    length_bytes: int


@dataclass(frozen=True)
class _Served:
    """A request with a place: ``ready_ns`` is the end of its service, ``number`` its place in the order of arrival."""

    ready_ns: int
    number: int
    transfer_ns: int

    def __lt__(self, other: _Served) -> bool:
        return (self.ready_ns, self.number) < (other.ready_ns, other.number)


class _Volume:
    """Requests go through it in this order: waiting, in service, on the link."""

    def __init__(self, model: StorageModel) -> None:
        self._model = model
        self._waiting: deque[tuple[int, Asked, int]] = deque()
        self._serving: list[_Served] = []
        self._link: deque[tuple[int, int]] = deque()
        self._link_free_ns = 0
        self._pulled_ns: dict[int, int] = {}
        self._head = 0

    def arrive(self, number: int, asked: Asked, at_ns: int) -> None:
        """Take a request in; whatever was due by ``at_ns`` has been taken out before."""
        self._waiting.append((number, asked, at_ns))
        self._fill_places(at_ns)

    def answer(self, until_ns: int | None = None) -> tuple[int, int] | None:
        """Take out the next answer, (number, due_ns), if it is due by ``until_ns``."""
        while self._serving or self._link:
            service_first = not self._link or (self._serving and self._serving[0].ready_ns < self._link[0][0])
            next_ns = self._serving[0].ready_ns if service_first else self._link[0][0]
            if until_ns is not None and next_ns > until_ns:
                return None
            if not service_first:
                due_ns, number = self._link.popleft()
                self._fill_places(due_ns)
                return number, due_ns
            served = heapq.heappop(self._serving)
            self._link_free_ns = max(served.ready_ns, self._link_free_ns) + served.transfer_ns
            self._link.append((self._link_free_ns, served.number))
        return None

    def _fill_places(self, at_ns: int) -> None:
        while self._waiting and len(self._serving) + len(self._link) < self._model.queue_depth:
            number, asked, arrival_ns = self._waiting.popleft()
            start_ns = max(at_ns, arrival_ns)
            ready_ns = self._pull(asked, start_ns) + self._seek_ns(asked) + self._latency_ns(asked)
            heapq.heappush(self._serving, _Served(ready_ns, number, self._transfer_ns(asked)))

    def _seek_ns(self, asked: Asked) -> int:
        """How long the head takes to a request that starts now; after it the head is at its end."""
        ahead, rate = asked.offset - self._head, self._model.bandwidth_bytes_s
        self._head = asked.offset + asked.length_bytes
        if ahead == 0:
            return 0
        if ahead < 0 or rate is None:
            return self._model.seek_ns
        return min(self._model.seek_ns, (ahead * _SECOND_NS + rate - 1) // rate)

    def _latency_ns(self, asked: Asked) -> int:
        read = asked.command == Command.READ
        return self._model.read_latency_ns if read else self._model.write_latency_ns

    def _transfer_ns(self, asked: Asked) -> int:
        rate = self._model.bandwidth_bytes_s
        if rate is None or asked.command == Command.WRITE_ZEROES:
            return 0
        return (asked.length_bytes * _SECOND_NS + rate - 1) // rate

    def _pull(self, asked: Asked, at_ns: int) -> int:
        """When all granules of a request that starts now are there: its cold ones come one after another."""
        own_ns = others_ns = at_ns
        size = self._model.granule_bytes
        for granule in range(asked.offset // size, (asked.offset + asked.length_bytes - 1) // size + 1):
            if granule in self._pulled_ns:
                others_ns = max(others_ns, self._pulled_ns[granule])
            else:
                own_ns += self._model.first_touch_ns
                self._pulled_ns[granule] = own_ns
        return max(own_ns, others_ns)


def expected_ns(model: StorageModel, arrivals: Sequence[tuple[int, Asked]]) -> tuple[int, ...]:
    """When each of ``arrivals`` (instant, request; in order) is answered by a volume that is cold before the first.

    Raises ValueError for arrivals that are out of order.
    """
    volume = _Volume(model)
    due_ns = [0] * len(arrivals)
    last_ns = 0
    for number, (at_ns, asked) in enumerate(arrivals):
        if at_ns < last_ns:
            raise ValueError(f"arrival {number} is earlier than the one before it")
        last_ns = at_ns
        for answered, when_ns in _answers(volume, at_ns):
            due_ns[answered] = when_ns
        volume.arrive(number, asked, at_ns)
    for answered, when_ns in _answers(volume, None):
        due_ns[answered] = when_ns
    return tuple(due_ns)


def _answers(volume: _Volume, until_ns: int | None) -> Iterator[tuple[int, int]]:
    while (answer := volume.answer(until_ns)) is not None:
        yield answer


def closed_loop_ns(model: StorageModel, requests: Iterable[Asked], depth: int) -> int:
    """How long ``requests`` take a client that always has ``depth`` of them in flight and needs no time itself."""
    volume = _Volume(model)
    queue = enumerate(requests)
    for number, asked in islice(queue, depth):
        volume.arrive(number, asked, 0)
    end_ns = 0
    for _, end_ns in _answers(volume, None):
        for number, asked in islice(queue, 1):
            volume.arrive(number, asked, end_ns)
    return end_ns
