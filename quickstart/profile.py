"""Turn the TOML text of a profile into a `Profile`. All keys are validated before any work begins
(docs/users/profile.md).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from quickstart.errors import BadInputError, ProfileError
from quickstart.host.assets import assets
from quickstart.host.beneath import read_judged
from quickstart.model import FileRules, Profile, Readiness, RootBudget
from quickstart.model.residency import DataPrefetch
from quickstart.model.words import Early, KernelOptions, Payload, ReadyKind
from quickstart.parse.bounded import MAX_TOML_BYTES, parse_toml, read_whole
from quickstart.parse.faults import Table, faults

SCHEMA = 1

# Data, state and logs of any Debian service (Filesystem Hierarchy Standard 3.0, chapters 3 and 5): never packed.
DATA = ("/var/**", "/srv/**", "/home/**", "/root/**", "/tmp/**", "/media/**", "/mnt/**")  # noqa: S108 - globs

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
# Debian Policy 5.6.1 (package names); suites follow the same alphabet.
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
_UNIT = r"[A-Za-z0-9:_.@\\-]+\.service"
_UNIT_CHARACTERS = 255
# Every unit is read, traced and compared at each boot.
MOST_UNITS = 8
# Every glob is compared with every private file of a stranger's artefact.
MOST_SECRETS = 100
Unit = Annotated[str, StringConstraints(pattern=rf"^{_UNIT}$", max_length=_UNIT_CHARACTERS)]
Glob = Annotated[str, StringConstraints(pattern=r"^/")]
# A plain path, which never leads above the root, and which a shell and a chroot read in the same way.
FilePath = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9@_+-][A-Za-z0-9@._+-]*)+$")]
# A shell line for the guest.
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=4096)]
# MySQL allows 32 characters; the agent takes them as they are.
Account = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,32}$")]
# What sha256sum(1) prints.
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MOST_USER_DATA = 8
Port = Annotated[int, Field(ge=1, le=65535)]


@dataclass(frozen=True)
class BenchLayer:
    """The profile's table [bench], which is called the bench layer (docs/users/configurations.md). The bench layer has
    the files and commands that `quickstart bench` adds to the reference image, and the readiness request that the
    bench sends. No artefact contains the bench layer.

    ``files`` has pairs (path in the guest, complete text). ``commands`` are shell lines that root runs in the image
    after the files are written. A `Profile` does not contain this layer, so no stage of a build can use it.
    """

    ready: Readiness
    files: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


def is_unit_name(name: str) -> bool:
    """Whether ``name`` is allowed as the name of a unit in a profile. The function is pure."""
    return len(name) <= _UNIT_CHARACTERS and re.fullmatch(_UNIT, name, re.ASCII) is not None


class _Start(Table):
    pre: bool = True
    early: Literal["seen", "ask", "always", "never"] = "ask"
    user_data: Annotated[tuple[Sha256, ...], Field(max_length=MOST_USER_DATA)] = ()

    @model_validator(mode="after")
    def _asked(self) -> _Start:
        if self.user_data and self.early != "ask":
            raise ValueError('`user_data` is for early = "ask"')
        return self


class _Ready(Table):
    kind: Literal["http", "tcp", "mysql", "exec"]
    port: Port | None = None
    address: Literal["external", "loopback"] = "external"
    path: Annotated[str, StringConstraints(pattern=r"^/[!-~]*$", max_length=2048)] = "/"
    status: Annotated[int, Field(ge=100, le=599)] = 200
    account: Account | None = None
    command: Line | None = None
    timeout_s: Annotated[int, Field(ge=1, le=7200)] = 600

    @model_validator(mode="after")
    def _complete(self) -> _Ready:
        if self.kind != "exec" and self.port is None:
            raise ValueError(f'kind = "{self.kind}" needs a port')
        if self.kind == "mysql" and self.account is None:
            raise ValueError('kind = "mysql" needs an account')
        if self.kind == "exec" and not self.command:
            raise ValueError('kind = "exec" needs a command')
        if self.kind == "exec" and self.address != "external":
            raise ValueError('kind = "exec" has no address')
        return self


class _Files(Table):
    include: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    data: tuple[Glob, ...] = ()
    # As the manifest has them.
    secrets: Annotated[
        tuple[Annotated[Glob, Field(max_length=512)], ...], Field(max_length=MOST_SECRETS)
    ] = ()


class _Prefetch(Table):
    data: tuple[Glob, ...] = ()
    first_requests: Line = ""

    @model_validator(mode="after")
    def _both(self) -> _Prefetch:
        if bool(self.data) != bool(self.first_requests.strip()):
            raise ValueError("`data` and `first_requests` need each other")
        return self


class _Memory(Table):
    machine_mib: Annotated[int, Field(ge=256, le=65536)] = 1024
    budget_mib: Annotated[int, Field(ge=1, le=4096)] = 64


class _Disk(Table):
    size_mib: Annotated[int, Field(ge=256, le=1048576)] = 2048


class _Budget(Table):
    root_requests: Annotated[int, Field(ge=0, le=10**6)] = RootBudget.requests
    root_bytes: Annotated[int, Field(ge=0, le=10**12)] = RootBudget.read_bytes


class _Bench(Table):
    ready: _Ready
    files: dict[FilePath, str] = Field(default_factory=dict)
    commands: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()


class _Document(Table):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    description: str = ""
    suite: Name = "bookworm"
    packages: Annotated[tuple[Package, ...], Field(min_length=1)]
    # A stack. The last of them answers when the application is ready.
    units: Annotated[tuple[Unit, ...], Field(min_length=1, max_length=MOST_UNITS)] | None = None
    unit: Annotated[Unit | None, Field(validate_default=True)] = None
    # payload.Payload
    payload: Literal["cpio", "gzip", "lz4", "zstd", "squashfs"] = "cpio"
    # kerneloptions.BUILDABLE
    kernel_options: Literal["boot", "stock"] = "boot"
    start: _Start = _Start()
    ready: _Ready
    files: _Files = _Files()
    prefetch: _Prefetch = _Prefetch()
    memory: _Memory = _Memory()
    disk: _Disk = _Disk()
    budget: _Budget = _Budget()
    bench: _Bench | None = None

    @field_validator("units")
    @classmethod
    def _each_once(cls, units: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if units is not None and len(set(units)) < len(units):
            raise ValueError("names a unit twice")
        return units

    @field_validator("prefetch")
    @classmethod
    def _after_ready(cls, prefetch: _Prefetch, info: ValidationInfo) -> _Prefetch:
        ready = info.data.get("ready")
        if prefetch.data and isinstance(ready, _Ready) and ready.kind == "exec":
            raise ValueError('kind = "exec" does not tell init when to prefetch data; give [ready] a port')
        return prefetch

    @field_validator("unit")
    @classmethod
    def _one_of_both(cls, unit: str | None, info: ValidationInfo) -> str | None:
        # Where `units` is not valid itself, that alone is said.
        if "units" in info.data and unit is None and info.data["units"] is None:
            raise PydanticCustomError("missing", "Field required")
        if unit is not None and info.data.get("units") is not None:
            raise ValueError("`units` names all units already")
        return unit

    @property
    def stack(self) -> tuple[str, ...]:
        """All units of the profile. The units come from the profile's key ``units`` or its key ``unit``."""
        return self.units or (self.unit or "",)


def parse_profile(text: str, source: str) -> Profile:
    """The profile in ``text`` (TOML). Raises ProfileError with every fault in the text."""
    return profile_of(_raw(text, source), source)


def parse_bench(text: str, source: str) -> BenchLayer | None:
    """The bench layer (the table [bench], which only the bench uses) of the profile in ``text``. The result is None
    when the profile has no bench layer. Raises ProfileError with every fault in the text, including faults outside the
    bench layer.
    """
    bench = _document(_raw(text, source), source).bench
    if bench is None:
        return None
    return BenchLayer(_readiness(bench.ready), tuple(sorted(bench.files.items())), bench.commands)


def profile_of(raw: Mapping[str, object], source: str) -> Profile:
    """The profile of a TOML document that is already parsed. Raises ProfileError with every fault in the document."""
    return _profile(_document(raw, source))


def _raw(text: str, source: str) -> Mapping[str, object]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ProfileError(source, [f"not TOML: {error}"]) from error


def _document(raw: Mapping[str, object], source: str) -> _Document:
    try:
        # The values pass through JSON, because its strict mode accepts an array for a tuple, but not "80" for 80.
        return _Document.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise ProfileError(
            source, faults(error, _Document), hint="docs/users/profile.md lists every key"
        ) from error


def load_profile(name: str) -> Profile:
    """The profile called ``name`` that comes with QuickStart. If there is no such profile, the result is the profile
    at the path ``name``, which leads to a directory or a profile.toml.

    Raises BadInputError when neither of these two profiles exists, and ProfileError when the profile is invalid.
    """
    return parse_profile(*_read(name))


def load_ours(name: str) -> Profile:
    """The profile that comes with QuickStart and is called ``name``. Raises BadInputError when there is no such
    profile, even if a file exists at the path ``name``.

    This function is for a profile name that comes from an artefact. An artefact from an untrusted party may come
    together with a file that has the same name.
    """
    if name not in known_profiles():
        raise BadInputError(
            f"no profile that comes with quickstart is called {name!r:.200}",
            hint="name the directory of the artefact's own one: --profile DIR",
        )
    return load_profile(name)


def load_bench(name: str) -> BenchLayer | None:
    """The bench layer (the table [bench], which only the bench uses) of the profile ``name``, which is a name or a
    path. The result is None when the profile has no bench layer. Raises the same errors as the function
    ``load_profile``.
    """
    return parse_bench(*_read(name))


def load_bench_judged(name: str) -> tuple[BenchLayer | None, str]:
    """Return two values: the result of the function ``load_bench``, and the path of the first directory or file through
    which a user other than root could have changed the profile (see read_judged in host/beneath.py). The second value
    is empty when no other user could have changed the profile.
    """
    file = profile_file(name)
    try:
        data, doubt = read_judged(file, MAX_TOML_BYTES)
        return parse_bench(data.decode(), str(file)), doubt
    except OSError as error:
        raise BadInputError(f"profile {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(str(file), [f"not UTF-8 at byte {error.start}"]) from error


def _read(name: str) -> tuple[str, str]:
    """The text of a profile, and the name of its file."""
    file = profile_file(name)
    try:
        return read_whole(file, MAX_TOML_BYTES).decode(), str(file)
    except OSError as error:
        raise BadInputError(f"profile {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(str(file), [f"not UTF-8 at byte {error.start}"]) from error


def profile_file(name: str) -> Path:
    """The file of the profile ``name``, which is the name of a profile that comes with QuickStart, or a path. Raises
    BadInputError when no such profile comes with QuickStart and nothing exists at this path.
    """
    path = Path(name)
    if name in known_profiles():
        path = assets("profiles") / name
    elif not _exists(path):
        raise BadInputError(f"there is no profile {name!r:.200}", hint=_nearest_profile(name))
    return path / "profile.toml" if path.is_dir() else path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # The name is longer than any file's name, or the directory is not readable for us.
        return False


def spelled(name: str) -> str:
    """``name`` in the form in which `quickstart bench` writes the profile's name. The name of a profile that comes with
    QuickStart is not changed. The name of any other file or directory in the current directory gets ``./`` before it.
    """
    return f"./{name}" if name not in known_profiles() and "/" not in name and Path(name).exists() else name


def known_profiles() -> tuple[str, ...]:
    """The names of the profiles that come with QuickStart."""
    return tuple(sorted(file.parent.name for file in assets("profiles").glob("*/profile.toml")))


def _nearest_profile(name: str) -> str:
    known = known_profiles()
    near = difflib.get_close_matches(name, known, n=1)
    return (
        f"did you mean {near[0]!r}?"
        if near
        else f"known: {', '.join(known)}; or give a directory with a profile.toml"
    )


def _profile(document: _Document) -> Profile:
    return Profile(
        name=document.name,
        description=document.description,
        suite=document.suite,
        packages=tuple(sorted(set(document.packages))),
        unit=document.stack[-1],
        companions=document.stack[:-1],
        run_start_pre=document.start.pre,
        early=Early(document.start.early),
        user_data=document.start.user_data,
        ready=_readiness(document.ready),
        files=FileRules(
            include=document.files.include,
            exclude=document.files.exclude,
            data=(*DATA, *document.files.data),
            secrets=document.files.secrets,
        ),
        memory_mib=document.memory.machine_mib,
        budget_mib=document.memory.budget_mib,
        disk_mib=document.disk.size_mib,
        root_budget=RootBudget(document.budget.root_requests, document.budget.root_bytes),
        payload=Payload(document.payload),
        kernel_options=KernelOptions(document.kernel_options),
        data_prefetch=DataPrefetch(document.prefetch.data, document.prefetch.first_requests),
    )


def _readiness(ready: _Ready) -> Readiness:
    return Readiness(
        kind=ReadyKind(ready.kind),
        port=ready.port or 0,
        path=ready.path,
        status=ready.status,
        command=ready.command or "",
        timeout_s=ready.timeout_s,
        loopback=ready.address == "loopback",
        account=ready.account or "",
    )
