"""The targets for documents: manifests, start sets, results, profiles, matrices and storage models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from quickstart.artefact import directory as artefact
from quickstart.artefact import inside
from quickstart.errors import BadInputError
from quickstart.measure.matrix import parse_matrix
from quickstart.profile import parse_bench, parse_profile
from quickstart.report import document
from quickstart.volume.storage import parse_model
from tests.fuzz.places import as_text, put
from tests.fuzz.target import JSON, Target

_TOML = (
    b"[",
    b"]",
    b"[[",
    b"{",
    b"}",
    b".",
    b" = ",
    b'"""',
    b"'''",
    b"#",
    b"\n",
    b"0x",
    b"inf",
    b"1979-05-27",
)
_OUT: Mapping[str, bytes] = {
    "vmlinuz": b"kernel",
    "initrd.img": b"initrd",
    "initramfs.img": b"initramfs",
    "run.sh": b"#!/bin/sh\n",
    "root.raw": bytes(4096),
}


def _manifest(data: bytes, base: Path) -> None:
    put(base, {**_OUT, "manifest.json": data}, (*_OUT, "manifest.json"))
    artefact.is_artefact(base)
    artefact.load(base)


def _start_set(data: bytes, base: Path) -> None:
    put(base, {"start-set.json": data}, ("start-set.json",))
    for path in ("/usr/sbin/nginx", "/lib/x", "/fast/usr/lib/loop"):
        with suppress(BadInputError):
            inside.why(base, path)


def _results(data: bytes, _: Path) -> None:
    document.text_of(document.parse(as_text(data), "results.json"))


def _profile(data: bytes, _: Path) -> None:
    parse_profile(as_text(data), "profile.toml")
    parse_bench(as_text(data), "profile.toml")


def _matrix(data: bytes, _: Path) -> None:
    parse_matrix(as_text(data), "matrix.toml", ("nginx", "apache", "mysql"))


def _storage(data: bytes, _: Path) -> None:
    parse_model(as_text(data), "model.toml")


TARGETS: Mapping[str, Target] = {
    "manifest": Target(_manifest, JSON),
    "start-set": Target(_start_set, JSON),
    "results": Target(_results, JSON),
    "profile": Target(_profile, _TOML),
    "matrix": Target(_matrix, _TOML),
    "storage": Target(_storage, _TOML),
}
