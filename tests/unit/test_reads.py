"""The boot on trial of `profile new`: what is known of its reads, and what becomes of it where little is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quickstart.errors import TraceFullError, UntraceableError
from quickstart.host.progress import Quiet
from quickstart.model import Artefact, RootBudget, RootIo
from quickstart.model.words import Early
from quickstart.newprofile import reads
from quickstart.newprofile.reads import Reads, root_budget
from quickstart.store.context import Context
from quickstart.verify import boot, shown
from quickstart.verify.boot import Counted

COUNTED = RootIo(223, 9_000_000, 4, 16_384)
UNTRACEABLE = Counted(COUNTED, "", UntraceableError("the guest's kernel says nothing of its requests"), 9)
FULL = Counted(COUNTED, "", TraceFullError("the guest's trace was full 90.2 s after its start"), 9)


class Notes(Quiet):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def look(
    monkeypatch: pytest.MonkeyPatch, *found: object, early: Early | None = None
) -> tuple[Any, list[str], list[str]]:
    """What a trial gives whose boots end as ``found``: the result, the words that were appended, the notes. With
    ``early``, cloud-init is in the image.
    """
    left, appended, notes = list(found), [], Notes()

    def booted(artefact: Artefact, options: boot.Options, context: Context) -> object:
        appended.append(options.append)
        return left.pop(0)

    monkeypatch.setattr(boot, "accounted_or_counted", booted)
    context = Context(cast(Any, None), notes)
    artefact = SimpleNamespace(memory_mib=1024, cloud_init=early is not None, early=early)
    return reads._boot(cast(Artefact, artefact), False, context), appended, notes.said


def test_a_trace_that_is_full_too_early_gets_a_larger_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = object()
    seen, appended, notes = look(monkeypatch, FULL, verified)
    assert seen is verified
    assert appended == ["", "trace_buf_size=170M"]
    assert "was full 90.2 s after its start; once more" in notes[0]


@pytest.mark.parametrize(
    ("early", "word"),
    [(Early.SEEN, "cloud-init=disabled"), (Early.ASK, "cloud-init=disabled"), (Early.ALWAYS, "")],
)
def test_cloud_init_does_nothing_in_the_trial(
    monkeypatch: pytest.MonkeyPatch, early: Early, word: str
) -> None:
    """The first boot of such an image would be a stock boot."""
    assert look(monkeypatch, object(), early=early)[1] == [word]


@pytest.mark.parametrize("boots", [(UNTRACEABLE,), (FULL, FULL)])
def test_a_kernel_that_cannot_tell_who_reads_is_no_reason_to_give_up(
    boots: tuple[Counted, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, _, notes = look(monkeypatch, *boots)
    facts = cast(dict[str, Any], reads._facts(seen))
    found = Reads(**{**facts, "files": ()})
    assert (found.requests, found.bytes) == (223, 9_000_000)
    assert found.unattributed == boots[-1].error.message
    assert "who reads what before ready is unknown" in notes[-1]
    budget = root_budget(found, beside_the_boot=False)
    assert budget.requests > 223 and budget.read_bytes > 9_000_000


@pytest.mark.parametrize(
    ("budget", "clean"),
    [
        (RootBudget(223, 9_000_000), True),
        (RootBudget(222, 9_000_000), False),
        (RootBudget(223, 8_999_999), False),
    ],
)
def test_reads_that_are_only_counted_have_a_budget_too(budget: RootBudget, clean: bool) -> None:
    said = shown.counted_document(UNTRACEABLE, budget)
    assert said["clean"] is clean
    assert (said["requests"], said["bytes"]) == (223, 9_000_000)
    assert said["unattributed"] == "the guest's kernel says nothing of its requests"


def test_a_stock_boot_is_never_clean() -> None:
    late = Counted(COUNTED, "fallback 1: no root", UNTRACEABLE.error, 9)
    assert shown.counted_document(late, RootBudget(1000, 10**9))["clean"] is False
    assert "did not happen: fallback 1: no root" in "\n".join(shown.counted_lines(late, RootBudget()))


def test_the_lines_say_what_is_not_known() -> None:
    text = "\n".join(shown.counted_lines(UNTRACEABLE, RootBudget(300, 10_000_000)))
    assert "223 reads, 9.00 MB of the root volume before ready (budget 300, 10.00 MB)" in text
    assert "who asked for what is unknown" in text and "CONFIG_BLK_DEV_IO_TRACE" in text
