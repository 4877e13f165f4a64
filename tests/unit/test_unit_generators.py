"""Generators that may change a unit at each boot: each is refused, unless a package has it or it is masked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hookscripts import refused, script
from tests.unit.test_unit_sockets import link, put


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("/etc/systemd/system-generators/harden", True),
        ("/usr/local/lib/systemd/system-generators/harden", True),
        ("/usr/lib/systemd/system-generators/harden", True),
        ("/etc/systemd/system-environment-generators/50-x", True),
        ("/usr/lib/systemd/system-environment-generators/50-x", True),
        ("/usr/lib/systemd/user-generators/x", False),
    ],
)
def test_a_generator(tmp_path: Path, path: str, *, is_refused: bool) -> None:
    put(tmp_path, path, "#!/bin/sh\n")
    # systemd runs what is executable.
    assert refused(tmp_path) == ""
    (tmp_path / path[1:]).chmod(0o755)
    assert refused(tmp_path) == (
        f"app.service cannot be started early: the generator {path} may change it at each boot"
        if is_refused
        else ""
    )


def test_a_package_s_generator_and_a_mask(tmp_path: Path) -> None:
    script(tmp_path, "/usr/lib/systemd/system-generators/tool", "#!/bin/sh\n", is_packaged=True)
    link(tmp_path, "/etc/systemd/system-generators/tool", "/dev/null")
    assert refused(tmp_path) == ""


def test_a_mask_of_a_generator_of_the_environment(tmp_path: Path) -> None:
    name = "/usr/lib/systemd/system-environment-generators/snapd-env-generator"
    script(tmp_path, name, "#!/bin/sh\n", is_packaged=True)
    assert f"the generator {name}" in refused(tmp_path)
    link(tmp_path, "/etc/systemd/system-environment-generators/snapd-env-generator", "/dev/null")
    assert refused(tmp_path) == ""
