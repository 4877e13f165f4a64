"""Functions of init's scripts, which a test runs by themselves."""

from __future__ import annotations

import re
from pathlib import Path

INIT = Path(__file__).parents[2] / "quickstart/initramfs/init"


def function(script: str, name: str) -> str:
    found = re.search(rf"^{name}\(\) \{{.*?^\}}", (INIT / script).read_text(), re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]
