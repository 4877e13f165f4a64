"""Read a user's fstab(5), and find whether a machine that has only the root volume can boot with it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from quickstart.errors import BadInputError

_ON_A_DISK = ("UUID=", "LABEL=", "PARTUUID=", "PARTLABEL=", "ID=", "/dev/")
# The longest label, by mke2fs(8), -L.
_LABEL_BYTES = 16
_MAX_CHARACTERS = 1 << 20
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class RootLine:
    """The UUID and the label of the root volume. A line of fstab names the volume either by UUID or by label. For a
    volume that is named by its UUID, ``label`` is empty, and for a volume that is named by its label, ``uuid`` is
    empty.
    """

    uuid: str
    label: str


def root_volume(fstab: str) -> RootLine | None:
    """The UUID or label of the root volume in the text ``fstab``, or None when the text has no line for /.

    Raises BadInputError, with the line, in these three cases.

    - The line for / names the volume neither by UUID nor by label.
    - The file system of / is not ext4.
    - A line mounts another disk without `noauto` or `nofail`.
    """
    if len(fstab) > _MAX_CHARACTERS:
        raise BadInputError(
            f"/etc/fstab has more than {_MAX_CHARACTERS} characters", hint="it is read up to that"
        )
    rows = [words for line in fstab.splitlines() if (words := line.split()) and not words[0].startswith("#")]
    roots = [words for words in rows if words[1:2] == ["/"]]
    root_names = {words[0] for words in roots}
    for words in rows:
        options = (words[3] if len(words) > 3 else "").split(",")
        elsewhere = words[0].startswith(_ON_A_DISK) and words[0] not in root_names
        if elsewhere and not {"noauto", "nofail"} & set(options):
            raise BadInputError(
                f"/etc/fstab wants a disk that the machine does not have: {_shown(words)}",
                hint="remove the line, or add noauto to its options",
            )
    return _root_line(roots[0]) if roots else None


def _shown(words: list[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _root_line(words: list[str]) -> RootLine:
    text = _shown(words)
    if len(words) < 4 or words[2] != "ext4":
        raise BadInputError(
            f"/etc/fstab's root is not ext4 with options: {text}", hint="UUID=… / ext4 defaults 0 1"
        )
    kind, _, value = words[0].partition("=")
    value = value.strip('"')
    if kind == "LABEL" and 0 < len(value.encode(errors="surrogateescape")) <= _LABEL_BYTES:
        return RootLine("", value)
    try:
        if kind == "UUID":
            return RootLine(str(uuid.UUID(value)), "")
    except ValueError:
        pass
    raise BadInputError(
        f"/etc/fstab finds the root volume neither by a UUID nor by a label: {text}",
        hint="write UUID=… or LABEL=… there, or remove the line: the volume's UUID is then added",
    )
