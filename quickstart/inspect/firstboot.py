"""Find what the first boot of a fresh machine does (docs/users/cloud-init.md)."""

from __future__ import annotations

from pathlib import PurePosixPath

from quickstart.inspect.cloudinit import early_start, has_cloud_init, unasked
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model.words import Early

_MACHINE_ID = PurePosixPath("/etc/machine-id")
# What a first boot of an image with cloud-init does.
FIRST_BOOT = {
    Early.SEEN: 'a first boot is a stock boot, because cloud-init sets the machine up (early = "seen")',
    Early.ASK: 'a first boot starts early if the machine brings no user data for cloud-init (early = "ask")',
    Early.ALWAYS: 'a first boot starts early, before cloud-init sets the machine up (early = "always")',
    Early.NEVER: 'every boot is a stock boot (early = "never")',
}


def is_unborn(root: ImageRoot) -> bool:
    """Whether systemd would treat a boot from the root file system ``root`` as the machine's first boot. The result is
    true if /etc/machine-id is missing or says `uninitialized`. The result is false if the file is empty
    (machine-id(5)).
    """
    file = root.resolve(_MACHINE_ID).canonical
    return file is None or root.read_text(file).strip() == "uninitialized"


def first_boot(root: ImageRoot, wanted: Early, packed: Early | None = None) -> str:
    """A line that says what the first boot of a fresh machine does. The result is empty for an image without cloud-init
    whose first boot does the same as any other boot. ``wanted`` is the profile's choice of the machines on which the
    application starts early. ``packed`` is what packing has made of this choice, because of what the application reads
    (early_for in pack/given.py).
    """
    if not has_cloud_init(root):
        return ""
    if packed is not None and packed is not wanted:
        return f"{FIRST_BOOT[packed]}; the application reads /etc/hosts, /etc/hostname or SSH host keys, which cloud-init may write"
    early = early_start(root, wanted)
    reason = unasked(root) if wanted is Early.ASK else ""
    return f"{FIRST_BOOT[early]}; init cannot ask: {reason}" if reason else FIRST_BOOT[early]
