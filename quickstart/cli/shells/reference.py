"""Run a shell in a reference image of the store. The shell runs on an overlay, so that the store is not changed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door, foreground
from quickstart.host.namespaces import own_namespaces
from quickstart.host.workspace import workspace
from quickstart.inspect.imageroot import ImageRoot
from quickstart.store.store import Store


def find_tree(store: Store, image_hash: str) -> Path:
    """The root directory of the store's reference image whose hash is ``image_hash``. ``store`` keeps a lock on the
    image's entry.

    Raises BadInputError when the image is no longer in the store, or is damaged. Also raises BadInputError for an image
    that was made from a user's own root file system (a directory, a tar archive or a disk), because the programs of
    such an image are untrusted and never run on this host.
    """
    unusable: BadInputError | None = None
    for path, inputs in store.marks("reference"):
        if _image_hash(path) != image_hash:
            continue
        # An image of our own making has no such key (reference.debootstrap).
        if "kind" in inputs:
            unusable = unusable or BadInputError(
                f"the reference image {image_hash[:12]}… is a root that was given ({inputs['kind']}): "
                "its programs do not run on this host",
                hint="quickstart shell --at guest --snapshot OUT",
            )
            continue
        try:
            # An image that was removed since then does not count.
            if entry := store.use("reference", inputs):
                return entry / "root"
        except BadInputError as error:
            unusable = error
    raise unusable or BadInputError(
        f"{store.root} has no reference image {image_hash[:12]}…, from which this was built",
        hint="--profile NAME takes that of a profile; a build makes it again",
    )


def _image_hash(entry: Path) -> str | None:
    """The image hash in the file image.json of the store's entry. The result is None when this file cannot be read."""
    try:
        return str(json.loads((entry / "image.json").read_bytes())["image_hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_shell(tree: Path, confiner: Path) -> int:
    """Run a root shell in ``tree``, with our stdin, stdout and stderr relayed. The program ``confiner`` starts the
    shell and restricts it to ``tree`` (see reference/confine.py). Return the shell's status.

    Raises NeedsRootError when we are not root, and HostLacksError when this host cannot mount overlayfs.
    """
    door.need_root("a shell in a reference image (mount, chroot)")
    door.need_tools("unshare")
    bash = ImageRoot(tree).resolve(PurePosixPath("/bin/bash")).canonical is not None
    ours = resources.files("quickstart.cli.shells").joinpath("in-overlay.sh")
    with workspace("quickstart-shell-") as work, resources.as_file(ours) as script:

        def command(terminal: bool) -> Sequence[str | Path]:
            shell = ("/bin/bash" if bash else "/bin/sh", *(("-i",) if terminal else ()))
            option = "--terminal" if terminal else ""
            return (*own_namespaces(), "sh", script, tree, work, confiner, option, *shell)

        status = foreground.run(command, env={"TERM": os.environ.get("TERM", "dumb")})
        if (failed := work / "failed").exists():
            raise HostLacksError(
                f"an overlay on {tree} cannot be mounted",
                details=failed.read_text().strip().splitlines(),
                hint="the kernel needs overlayfs and a file system under the store that may be its lower layer; "
                "a container may have to be privileged",
            )
        return status
