"""Define the pydantic models of manifest.json and start-set.json: the types, ranges and patterns of all values that an
artefact records about itself.

An artefact's directory (OUT) may come from an untrusted party. The values in OUT become arguments of QEMU and of the
launch agent, text on a console, names of files, and sizes to read. So QuickStart uses a value only if the models in
this module have accepted the value (docs/users/artefact.md).

A newer version of QuickStart may have written keys that this version does not know. QuickStart ignores such unknown
keys in most tables. It refuses unknown keys in the tables that it converts to its own dataclasses, such as the table of
the readiness request. Keys that older versions did not write have defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from quickstart.errors import ArtefactError, BadInputError
from quickstart.host.beneath import read_bounded
from quickstart.model import MIB, Readiness, RootBudget
from quickstart.model.machine import KERNEL_BYTES
from quickstart.model.superblock import Superblock
from quickstart.model.words import FileSystem, ReadyKind
from quickstart.parse import jsondoc
from quickstart.parse.faults import Table, faults
from quickstart.profile import MOST_SECRETS, MOST_UNITS, Account, Name, Unit

SCHEMA = 1
MANIFEST = "manifest.json"
START_SET = "start-set.json"
# A damaged OUT is not replaced automatically, because its root disk may hold what a machine wrote.
REBUILD = "build it again with --force, which throws its root disk away"
# Our manifests have 2 KiB. Our start-set.json has some 400 bytes for each file of the start set.
_MANIFEST_BYTES = 1 * MIB
_START_SET_BYTES = 16 * MIB
# The limit for run.sh. Ours has 2 KiB.
SCRIPT_BYTES = 1 << 16
# As many as an initramfs may have members (newc_reader.Limits). The largest start set that we have met has some
# thousand.
_MOST_FILES = 100_000
_GIB = 1 << 30
# The kernel's of x86 (COMMAND_LINE_SIZE in arch/x86/include/asm/setup.h).
_COMMAND_LINE_BYTES = 2048
_PATH_BYTES = 4096
_MOST_CHARACTERS = 300


def _path(path: str) -> str:
    # Any bytes are a name, as surrogates: no pattern of pydantic's takes them.
    if not path.startswith("/") or "\0" in path or len(path) > _PATH_BYTES:
        raise ValueError(f"not an absolute path of at most {_PATH_BYTES} characters")
    return path


def _text(text: str) -> str:
    if len(text) > 2 * _PATH_BYTES:
        raise ValueError(f"more than {2 * _PATH_BYTES} characters")
    return text


_Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,128}$")]
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Version = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+_~-]{1,128}$")]
_Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=_PATH_BYTES)]
# run.sh has it between quotes: no ", $, ` or \\.
_CommandLine = Annotated[
    str, StringConstraints(pattern=r"^[ !#%-\[\]-_a-~]*$", max_length=_COMMAND_LINE_BYTES)
]
_Path = Annotated[str, AfterValidator(_path)]
# Every star of a glob costs time for every packed file.
_Glob = Annotated[_Path, Field(max_length=512)]
_Text = Annotated[str, AfterValidator(_text)]
# newc has 32 bits for a file's size, and no profile's memory budget, which limits the initramfs, is larger.
_FileBytes = Annotated[int, Field(ge=1, le=4 * _GIB)]
# Twice what a profile may ask for, because a disk may be made larger. 2**46 bytes are 64 TiB.
_DiskBytes = Annotated[int, Field(ge=1, le=1 << 46)]
_Count = Annotated[int, Field(ge=0, le=1 << 40)]


class _Open(Table):
    """A JSON object to which later versions of QuickStart may add keys. Unknown keys in the object are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Ready(Table):
    kind: Literal["http", "tcp", "mysql", "exec"]
    port: Annotated[int, Field(ge=0, le=65535)]
    path: Annotated[str, StringConstraints(pattern=r"^/[!-~]*$", max_length=2048)]
    status: Annotated[int, Field(ge=100, le=599)]
    command: _Line
    timeout_s: Annotated[int, Field(ge=1, le=7200)]
    loopback: bool = False
    account: Literal[""] | Account = ""

    @model_validator(mode="after")
    def _complete(self) -> _Ready:
        if self.kind != "exec" and not self.port:
            raise ValueError(f'kind "{self.kind}" needs a port')
        if self.kind == "mysql" and not self.account:
            raise ValueError('kind "mysql" needs an account')
        if self.kind == "exec" and not self.command:
            raise ValueError('kind "exec" needs a command')
        return self


class _Superblock(Table):
    uuid: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$")]
    mount_count: Annotated[int, Field(ge=0, le=0xFFFF)]
    write_time_s: _Count
    clean: bool
    needs_recovery: bool
    has_errors: bool
    created_s: _Count = 0
    file_system: Literal["ext4", "xfs", "btrfs"] = "ext4"
    state: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""


class _Disk(_Open):
    name: Literal["root.raw", "root.qcow2", "disk.raw"]
    format: Literal["raw", "qcow2"]
    size_bytes: _DiskBytes
    # Of a disk with a partition table: where the root volume begins.
    root_at_bytes: Annotated[int, Field(ge=0, le=1 << 46, multiple_of=512)] = 0

    @model_validator(mode="after")
    def _agree(self) -> _Disk:
        if not self.name.endswith(f".{self.format}"):
            raise ValueError(f"{self.name} is no name of a disk of format {self.format}")
        if (self.name == "disk.raw") != (self.root_at_bytes > 0):
            raise ValueError(f"the root volume of {self.name} begins at byte {self.root_at_bytes}")
        if self.root_at_bytes >= self.size_bytes:
            raise ValueError(f"the root volume of {self.name} begins behind its {self.size_bytes} bytes")
        return self


class FileFacts(_Open):
    """The size and the SHA-256 of a file of OUT at the time of the build."""

    size_bytes: _FileBytes
    sha256: _Sha256


class _KernelFacts(FileFacts):
    size_bytes: Annotated[int, Field(ge=1, le=KERNEL_BYTES)]


class _ScriptFacts(FileFacts):
    size_bytes: Annotated[int, Field(ge=1, le=SCRIPT_BYTES)]


class _Files(Table):
    kernel: _KernelFacts = Field(alias="vmlinuz")
    stock_initrd: FileFacts = Field(alias="initrd.img")
    initramfs: FileFacts = Field(alias="initramfs.img")
    # The first artefacts did not say it.
    run_script: _ScriptFacts | None = Field(alias="run.sh", default=None)


class _Reference(_Open):
    kind: Literal["debootstrap", "directory", "tar", "disk", "image"]
    hash: _Hash


class _Budget(Table):
    requests: _Count = RootBudget.requests
    read_bytes: _Count = RootBudget.read_bytes


class Manifest(_Open):
    """The content of manifest.json (docs/users/artefact.md). ``hand_off``, ``delivery``, ``payload`` and
    ``kernel_options`` have the string values of the enums HandOff, Delivery, Payload and KernelOptions.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")]
    quickstart: _Version
    build_key: _Hash
    profile: Name
    unit: Literal[""] | Unit = ""
    # The companions of a stack. An OUT from a version without stacks has none.
    companions: Annotated[tuple[Unit, ...], Field(strict=False, max_length=MOST_UNITS - 1)] = ()
    ready: _Ready
    cmdline: _CommandLine
    # An OUT from a version without kernel options has one command line for both entries.
    stock_cmdline: _CommandLine | None = None
    kernel_options: Literal["boot", "stock"] = "stock"
    memory_mib: Annotated[int, Field(ge=256, le=65536)]
    # The lowest bit of the first byte is a group's address.
    mac: Annotated[str, StringConstraints(pattern=r"^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$")]
    disk: _Disk
    superblock: _Superblock
    files: _Files
    initramfs_bytes: _FileBytes
    initramfs_part_a_bytes: _Count = 0
    initramfs_part_b_bytes: _Count = 0
    initramfs_unpacked_bytes: _FileBytes | None = None
    start_set_files: _Count
    start_set_bytes: _Count
    cloud_init: bool = False
    early: Literal["seen", "ask", "always", "never"] = "always"
    uuid: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$")] = ""
    reference: _Reference | None = None
    kernel_version: Literal[""] | _Version = ""
    image_hash: Literal[""] | _Hash = ""
    trace_hashes: Annotated[tuple[_Hash, ...], Field(strict=False, max_length=1000, fail_fast=True)] = ()
    interface: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_.:-]{0,15}$")] = ""
    target: Literal["qemu", "disk"] = "qemu"
    hand_off: Literal["no", "keep", "release"] = "keep"
    delivery: Literal["fast", "overlay"] = "fast"
    payload: Literal["cpio", "gzip", "lz4", "zstd", "squashfs"] = "cpio"
    busybox_sha256: Literal[""] | _Sha256 = ""
    secrets: Annotated[tuple[_Glob, ...], Field(strict=False, max_length=MOST_SECRETS, fail_fast=True)] = ()
    budget: _Budget = _Budget()

    @model_validator(mode="after")
    def _agree(self) -> Manifest:
        if (self.target == "disk") != (self.disk.name == "disk.raw"):
            raise ValueError(f"target is {self.target}, but the disk is {self.disk.name}")
        if self.files.initramfs.size_bytes != self.initramfs_bytes:
            raise ValueError(
                f"initramfs_bytes is {self.initramfs_bytes}, but files says {self.files.initramfs.size_bytes}"
            )
        return self

    @property
    def unpacked_bytes(self) -> int:
        """The total unpacked size of the cpio archives in the initramfs, including padding. The first versions of
        QuickStart did not record this size, and did not compress the initramfs. For artefacts of the first versions,
        the value is the size of the initramfs file.
        """
        return self.initramfs_unpacked_bytes or self.initramfs_bytes

    @property
    def stock_line(self) -> str:
        """The kernel command line for a stock boot (the distribution's own boot)."""
        return self.cmdline if self.stock_cmdline is None else self.stock_cmdline

    @property
    def facts(self) -> Mapping[str, FileFacts]:
        """The size and SHA-256 of each file in ``files``, by the file's name in OUT."""
        found = {
            "vmlinuz": self.files.kernel,
            "initrd.img": self.files.stock_initrd,
            "initramfs.img": self.files.initramfs,
        }
        return {**found, "run.sh": self.files.run_script} if self.files.run_script else found

    @property
    def readiness(self) -> Readiness:
        return Readiness(**{**self.ready.model_dump(), "kind": ReadyKind(self.ready.kind)})

    @property
    def built_superblock(self) -> Superblock:
        facts = self.superblock.model_dump()
        return Superblock(**{**facts, "file_system": FileSystem(facts["file_system"])})

    @property
    def root_budget(self) -> RootBudget:
        return RootBudget(**self.budget.model_dump())


class StartFileFacts(_Open):
    """A file of the start set in start-set.json. ``seen_in`` is the number of traces in which the file was used.
    The first versions of QuickStart did not write ``seen_in`` and ``package``, so these two fields have a default.

    When a file has several names (hard links), each name except the first has ``hard_link_to``, which is the first
    name.
    """

    path: _Path
    kind: Literal["file", "symlink", "directory", "left"]
    size_bytes: Annotated[int, Field(ge=0, le=1 << 62)]
    target: Annotated[str, AfterValidator(_text)] = ""
    seen_in: _Count = 0
    package: _Text = ""
    hard_link_to: _Path | None = None
    # `why` shows every reason. An ordinary file has some ten.
    reasons: Annotated[tuple[_Text, ...], Field(strict=False, max_length=10_000, fail_fast=True)]


class Excluded(_Open):
    """A traced file that is not packed, and the rule that excludes it."""

    path: _Path
    rule: _Text


class StartSetFacts(_Open):
    """The part of start-set.json that QuickStart reads."""

    files: Annotated[tuple[StartFileFacts, ...], Field(strict=False, max_length=_MOST_FILES, fail_fast=True)]
    excluded: Annotated[tuple[Excluded, ...], Field(strict=False, max_length=_MOST_FILES, fail_fast=True)]


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the artefact in ``directory``.

    Raises BadInputError when the manifest is missing or is not a regular file. Raises ArtefactError when the
    manifest is invalid.
    """
    path = directory / MANIFEST
    try:
        data = read_bounded(path, _MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInputError(
            f"{directory} is not an artefact: it has no {MANIFEST}",
            hint="quickstart build --profile nginx makes one",
        ) from error
    try:
        return validated(jsondoc.parse(data), path)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def validated(document: object, path: Path) -> Manifest:
    """The manifest in the JSON value ``document``. ``path`` is the path of manifest.json, which error messages name.
    Raises ArtefactError when the document is invalid.
    """
    schema = document.get("schema", SCHEMA) if isinstance(document, dict) else SCHEMA
    # 1 and True are equal.
    if type(schema) is not int or schema != SCHEMA:
        raise ArtefactError(f"{path} has schema {schema!r:.50}, this quickstart knows {SCHEMA}")
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise _damaged(path, _first(faults(error, Manifest))) from error


def is_ours(directory: Path) -> bool | None:
    """Whether ``directory`` has a manifest.json with the keys of QuickStart's manifest. The file's name is not enough,
    because other programs also write files with the name manifest.json.

    The result is None when manifest.json is a regular file, but is too large or is not valid JSON.
    """
    try:
        document = jsondoc.parse(read_bounded(directory / MANIFEST, _MANIFEST_BYTES))
    except OSError:
        return False
    except BadInputError:
        return None if _is_plain(directory / MANIFEST) else False
    except (ValueError, RecursionError):
        return None
    return isinstance(document, dict) and {"schema", "quickstart", "build_key"} <= document.keys()


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def read_start_set(directory: Path) -> StartSetFacts:
    """The contents of start-set.json in ``directory``.

    Raises BadInputError when the file is missing or is not regular. Raises ArtefactError when its contents
    are invalid.
    """
    path = directory / START_SET
    try:
        return StartSetFacts.model_validate(jsondoc.parse(read_bounded(path, _START_SET_BYTES)))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInputError(
            f"{directory} has no {START_SET}", hint="`quickstart build` or `quickstart trace -o` makes one"
        ) from error
    except ValidationError as error:
        raise _unreadable(path, _first(faults(error, StartSetFacts))) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def _first(problems: list[str]) -> str:
    """One line with the first of ``problems`` and the number of further problems."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"


def _damaged(path: Path, what: str) -> ArtefactError:
    return ArtefactError(f"{path} is damaged: {what[:_MOST_CHARACTERS]}", hint=REBUILD)


def _unreadable(path: Path, what: str) -> ArtefactError:
    return ArtefactError(f"{path} cannot be read: {what[:_MOST_CHARACTERS]}", hint=REBUILD)
