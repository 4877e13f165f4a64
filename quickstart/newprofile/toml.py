"""Write a profile as TOML with comments. This module has no side effects. The same profile and notes always give the
same bytes. docs/users/profile.md describes every key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from quickstart.model import Profile
from quickstart.model.words import Early, ReadyKind
from quickstart.profile import DATA, SCHEMA


def profile_text(profile: Profile, notes: Mapping[str, Sequence[str]]) -> str:
    """``profile`` as a text that parse_profile reads.

    ``notes`` maps the names of keys and tables, such as ``start.pre``, to comments. A comment is written above its key
    or table. The comment with the empty name is written at the beginning of the text.
    """
    tables: list[tuple[str, list[tuple[str, str]]]] = [
        ("", _whole(profile)),
        ("start", _start(profile)),
        ("ready", _ready(profile)),
        ("files", _files(profile)),
        ("memory", [("machine_mib", str(profile.memory_mib)), ("budget_mib", str(profile.budget_mib))]),
        ("disk", [("size_mib", str(profile.disk_mib))]),
        ("budget", _budget(profile)),
    ]
    lines = list(_comments(notes.get("", ())))
    for table, rows in tables:
        if not rows:
            continue
        if table:
            lines += ["", *_comments(notes.get(table, ())), f"[{table}]"]
        for key, value in rows:
            lines += _comments(notes.get(f"{table}.{key}".lstrip("."), ()))
            lines.append(f"{key} = {value}")
    return "".join(f"{line}\n" for line in lines)


def _whole(profile: Profile) -> list[tuple[str, str]]:
    return [
        ("schema", str(SCHEMA)),
        ("name", _value(profile.name)),
        ("description", _value(profile.description)),
        ("suite", _value(profile.suite)),
        ("packages", _value(profile.packages)),
        ("units", _value(profile.units)) if profile.companions else ("unit", _value(profile.unit)),
        *([("payload", _value(profile.payload))] if profile.payload != Profile.payload else []),
    ]


def _start(profile: Profile) -> list[tuple[str, str]]:
    never = [("early", _value(profile.early))] if profile.early == Early.NEVER else []
    return [("pre", _value(profile.run_start_pre)), *never]


def _budget(profile: Profile) -> list[tuple[str, str]]:
    budget = profile.root_budget
    return [("root_requests", str(budget.requests)), ("root_bytes", f"{budget.read_bytes:_}")]


def _ready(profile: Profile) -> list[tuple[str, str]]:
    ready = profile.ready
    rows = [("kind", _value(ready.kind))]
    if ready.kind != ReadyKind.EXEC:
        rows += [("port", str(ready.port))]
        rows += [("address", _value("loopback"))] if ready.loopback else []
    if ready.kind == ReadyKind.HTTP:
        rows += [("path", _value(ready.path)), ("status", str(ready.status))]
    if ready.kind == ReadyKind.MYSQL:
        rows += [("account", _value(ready.account))]
    if ready.kind == ReadyKind.EXEC:
        rows += [("command", _value(ready.command))]
    return [*rows, ("timeout_s", str(ready.timeout_s))]


def _files(profile: Profile) -> list[tuple[str, str]]:
    rules = profile.files
    # Rules for files that are data in every profile are not repeated.
    own = rules.data[len(DATA) :] if rules.data[: len(DATA)] == DATA else rules.data
    rows = (
        ("include", rules.include),
        ("exclude", rules.exclude),
        ("data", own),
        ("secrets", rules.secrets),
    )
    return [(key, _value(globs)) for key, globs in rows if globs]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A basic string has JSON's escapes (TOML 1.0, "String"), but no bare DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Iterable):
        return f"[{', '.join(_value(each) for each in value)}]"
    raise TypeError(value)


def _comments(lines: Iterable[str]) -> list[str]:
    # If a comment had a line break, the rest of its text would be read as TOML.
    return [f"# {one_line(line)}".rstrip() for line in lines]


def one_line(text: str) -> str:
    """``text`` with a ``?`` in the place of each character that is not printable, such as a newline. Texts from an
    image or a guest may have any characters.
    """
    return "".join(char if char.isprintable() else "?" for char in text)
