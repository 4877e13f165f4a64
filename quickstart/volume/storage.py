"""Read storage models from TOML into StorageModel, and validate all their keys (docs/users/storage.md)."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from quickstart.errors import BadInputError, StorageModelError
from quickstart.host.assets import assets
from quickstart.parse.bounded import MAX_TOML_BYTES, parse_toml, read_whole
from quickstart.parse.faults import Table, faults
from quickstart.profile import Name

_HOUR_NS = 3600 * 10**9
_HINT = "docs/users/storage.md lists every key"


@dataclass(frozen=True, kw_only=True)
class StorageModel:
    """A storage model, which describes the delays of a volume. ``bandwidth_bytes_s`` is None when the link
    has no limit. ``sources`` are pairs of a key of the model and a text that says where the key's value comes
    from.

    ``seek_ns`` is the longest time that a disk's head needs to move from the end of one request to the beginning of the
    next request. ``seek_ns`` is 0 for storage without a head. With ``nfs_rate``, measurements by the host's clock use a
    real NFS server behind a link of this rate, instead of the model. The rate is in the notation of tc(8).
    """

    name: str
    description: str
    read_latency_ns: int
    write_latency_ns: int
    bandwidth_bytes_s: int | None
    queue_depth: int
    granule_bytes: int
    first_touch_ns: int
    sources: tuple[tuple[str, str], ...]
    nfs_rate: str | None = None
    seek_ns: int = 0


Latency = Annotated[int, Field(ge=0, le=_HOUR_NS)]
Source = Annotated[str, StringConstraints(min_length=1)]


class _Sources(Table):
    read_latency_ns: Source
    write_latency_ns: Source
    bandwidth_bytes_s: Source
    queue_depth: Source
    granule_bytes: Source
    first_touch_ns: Source
    seek_ns: Source | None = None


class _Document(Table):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    description: str = ""
    read_latency_ns: Latency
    write_latency_ns: Latency
    bandwidth_bytes_s: Annotated[int, Field(ge=1, le=10**15)] | None = None
    queue_depth: Annotated[int, Field(ge=1, le=65536)]
    # Each granule takes 8 bytes of the emulator's memory.
    granule_bytes: Annotated[int, Field(ge=4096, le=2**40)]
    first_touch_ns: Latency
    nfs_rate: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}[kmg]bit$")] | None = None
    seek_ns: Latency = 0
    sources: _Sources

    @model_validator(mode="after")
    def _a_seek_has_a_source(self) -> _Document:
        if self.seek_ns and self.sources.seek_ns is None:
            raise ValueError("seek_ns has no source")
        return self


def parse_model(text: str, source: str) -> StorageModel:
    """The storage model in ``text`` (TOML). Raises StorageModelError with every fault in the text. The message of the
    error names ``source`` as the origin of the text.
    """
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise StorageModelError(source, [f"not TOML: {error}"]) from error
    try:
        # Pydantic's strict mode for JSON does not accept "80" for 80. Profiles are parsed in the same way.
        document = _Document.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise StorageModelError(source, faults(error, _Document), hint=_HINT) from error
    return StorageModel(
        name=document.name,
        description=document.description,
        read_latency_ns=document.read_latency_ns,
        write_latency_ns=document.write_latency_ns,
        bandwidth_bytes_s=document.bandwidth_bytes_s,
        queue_depth=document.queue_depth,
        granule_bytes=document.granule_bytes,
        first_touch_ns=document.first_touch_ns,
        sources=tuple(document.sources.model_dump(exclude_none=True).items()),
        nfs_rate=document.nfs_rate,
        seek_ns=document.seek_ns,
    )


def known_models() -> tuple[str, ...]:
    """The names of the models that come with QuickStart."""
    return tuple(sorted(file.stem for file in (assets("bench") / "storage").glob("*.toml")))


def load_model(name: str) -> StorageModel:
    """The storage model with the name ``name`` that comes with QuickStart. If there is no such model, the result is the
    model in the file at the path ``name``.

    Raises BadInputError when there is no such file either, and StorageModelError when the model is invalid.
    """
    file = Path(name)
    if name in known_models():
        file = assets("bench") / "storage" / f"{name}.toml"
    elif not file.is_file():
        near = difflib.get_close_matches(name, known_models(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known_models())}; or give a file"
        raise BadInputError(f"there is no storage model {name!r}", hint=hint)
    try:
        return parse_model(read_whole(file, MAX_TOML_BYTES).decode(), str(file))
    except OSError as error:
        raise BadInputError(f"storage model {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StorageModelError(str(file), [f"not UTF-8 at byte {error.start}"]) from error
