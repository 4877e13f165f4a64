"""On a host without the archive's keyring, no image is made of what nobody has signed (as root: it covers /usr/share/keyrings)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.errors import CommandError, HostLacksError
from quickstart.host.namespaces import own_namespaces
from quickstart.reference.debootstrap import FIRST_STAGE, _debootstrap_failed

WITHOUT = (*own_namespaces(), "sh", "-c", 'mount -t tmpfs none /usr/share/keyrings && exec "$@"', "sh")
PACKAGE = "apt-get install debian-archive-keyring"


# Of a user namespace, debootstrap says before that it can make no device node.
@pytest.mark.host_root
def test_debootstrap_refuses_and_the_package_is_named(tmp_path: Path) -> None:
    # Nothing answers there, and nothing is asked: the refusal comes first.
    argv = ("debootstrap", *FIRST_STAGE, "bookworm", str(tmp_path / "root"), "http://127.0.0.1:1/debian")
    done = subprocess.run([*WITHOUT, *argv], capture_output=True, timeout=60, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 1, said
    assert "Keyring-based check was requested; aborting" in said
    error = _debootstrap_failed("bookworm", CommandError(argv, 1, said))
    assert isinstance(error, HostLacksError), said
    assert error.hint == PACKAGE


def test_doctor_says_so_too(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("quickstart")
    env = {**os.environ, "QUICKSTART_CACHE": str(tmp_path / "store")}
    done = subprocess.run(
        [*WITHOUT, str(command), "doctor", "--json"], capture_output=True, timeout=120, env=env, check=False
    )
    needs = {each["need"]: each for each in json.loads(done.stdout)["result"]["needs"]}
    keyring = needs["debian-archive-keyring.gpg"]
    assert (done.returncode, keyring["state"], keyring["mend"]) == (3, "missing", PACKAGE)
