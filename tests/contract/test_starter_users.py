"""The groups of a unit's user are those that the C library finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.starterbox import SLEEP, STATUS, field, start

# Units have cgroups.
pytestmark = pytest.mark.host_root

GROUPS = """root:x:0:
own:x:112:
before:x:113:other, box
  blank:x:114: 	box,other
behind:x:115:box ,other
#comment:x:116:box
short:x:117
none::118:
twice:x:119:a,box:b
return:x:120:box\r
"""


def test_members_of_groups_are_those_of_the_c_library(starter: Path, tmp_path: Path) -> None:
    """systemd asks initgroups(3), for which the files may have blanks, and lines that lack fields."""
    found = start(
        starter,
        tmp_path,
        ("user", "box"),
        ("groups", "short"),
        ("become-user",),
        SLEEP,
        before=f"""printf ' box:x:778:112\n' >/run/passwd; cat >/run/group <<'END'\n{GROUPS}END
for name in passwd group; do mount --bind /run/$name /etc/$name; done""",
        status=STATUS,
        library="python3 -c 'import os; print(*sorted(os.getgrouplist(\"box\", 112)))'",
    )
    assert found.answers["library"] == "112 113 114 116"
    assert field(found, "Groups").split() == ["112", "113", "114", "116", "117"]
    assert field(found, "Uid").split()[0] == "778"
