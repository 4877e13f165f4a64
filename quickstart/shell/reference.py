"""A shell in a reference image of the store, on an overlay, so that the store keeps what it has."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door
from quickstart.host.namespaces import own_namespaces
from quickstart.host.workspace import workspace
from quickstart.store.store import Store


def find_tree(store: Store, image_hash: str) -> Path:
    """The root of the store's reference image with this hash, which ``store`` holds from now on.

    Raises BadInputError when the store has it no more, or only damaged, and for a root that was given (a directory, a tar, a
    disk): its programs are anybody's, and none of them runs on this host.
    """
    unusable: BadInputError | None = None
    for path, inputs in store.marks("reference"):
        if _image_hash(path) != image_hash:
            continue
        # Of our own making has no such key (reference.debootstrap).
        if "kind" in inputs:
            unusable = unusable or BadInputError(
                f"the reference image {image_hash[:12]}… is a root that was given ({inputs['kind']}): "
                "its programs do not run on this host",
                hint="quickstart shell --at guest --snapshot OUT",
            )
            continue
        try:
            # One that was removed since is none.
            if entry := store.use("reference", inputs):
                return entry / "root"
        except BadInputError as error:
            unusable = error
    raise unusable or BadInputError(
        f"{store.root} has no reference image {image_hash[:12]}…, from which this was built",
        hint="--profile NAME takes that of a profile; a build makes it again",
    )


def _image_hash(entry: Path) -> str | None:
    """What the entry says of its image; None when it cannot be read."""
    try:
        return str(json.loads((entry / "image.json").read_bytes())["image_hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_shell(tree: Path, terminal: bool) -> int:
    """A root shell in ``tree`` on our own stdin, stdout and stderr, in mount and PID namespaces of its own; its status.

    Raises NeedsRootError, and HostLacksError when overlayfs cannot be mounted here.
    """
    door.need_root("a shell in a reference image (mount, chroot)")
    door.need_tools("unshare", "chroot", "busybox")
    bash = (tree / "bin/bash").exists()
    command = ["/bin/bash" if bash else "/bin/sh", *(["-i"] if terminal else [])]
    ours = resources.files("quickstart.shell").joinpath("in-overlay.sh")
    theirs = resources.files("quickstart.reference").joinpath("in-chroot.sh")
    with workspace("quickstart-shell-") as work:
        with resources.as_file(ours) as in_overlay, resources.as_file(theirs) as in_chroot:
            argv: tuple[str | Path, ...] = (
                *own_namespaces(),
                "sh",
                in_overlay,
                tree,
                work,
                in_chroot,
                *command,
            )
            status = door.foreground(argv, env={"TERM": os.environ.get("TERM", "dumb")})
        if (failed := work / "failed").exists():
            raise HostLacksError(
                f"an overlay on {tree} cannot be mounted: {failed.read_text().strip()}",
                hint="the kernel needs overlayfs and a file system under the store that may be its lower layer; "
                "a container may have to be privileged",
            )
        return status
