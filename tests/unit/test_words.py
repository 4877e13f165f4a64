"""The enums have the spelling of the documents, and a reason is read as it was written."""

from __future__ import annotations

import enum
import json
from pathlib import PurePosixPath

import pytest

from quickstart.model.reasons import Reason, ReasonSource, interpreted_program
from quickstart.model.words import DiskFormat, Early, KernelOptions, Payload, ReadyKind
from quickstart.newprofile.toml import profile_text
from quickstart.profile import load_profile, parse_profile

WORDS: dict[type[enum.StrEnum], list[str]] = {
    ReadyKind: ["http", "tcp", "mysql", "exec"],
    Early: ["seen", "ask", "always", "never"],
    Payload: ["cpio", "gzip", "lz4", "zstd", "squashfs"],
    KernelOptions: ["stock", "boot", "ours"],
    DiskFormat: ["raw", "qcow2"],
}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_a_member_is_written_as_its_word(kind: type[enum.StrEnum]) -> None:
    members = list(kind)
    assert json.loads(json.dumps(members)) == WORDS[kind] == [f"{each}" for each in members]


def test_a_profile_has_members_not_bare_words() -> None:
    profile = load_profile("mysql")
    found = (profile.ready.kind, profile.early, profile.payload, profile.kernel_options)
    assert [type(each) for each in found] == [ReadyKind, Early, Payload, KernelOptions]
    again = parse_profile(profile_text(profile, {}), "p")
    assert again.ready == profile.ready


def test_an_interpreter_is_read_as_it_was_written() -> None:
    program = PurePosixPath("/usr/bin/a b: of c")
    text = Reason.interpreter_of(program).text
    assert text == "elf: PT_INTERP of /usr/bin/a b: of c"
    assert interpreted_program(text) == program


@pytest.mark.parametrize(
    "text",
    [
        "",
        "elf: PT_INTERP of ",
        "elf: PT_INTERP of usr/bin/a",
        "trace: elf: PT_INTERP of /usr/bin/a",
        Reason(ReasonSource.ELF, "DT_NEEDED libc.so.6 of /usr/bin/a").text,
    ],
)
def test_other_texts_name_no_interpreted_program(text: str) -> None:
    assert interpreted_program(text) is None
