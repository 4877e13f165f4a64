"""Find out what the image's modprobe.d(5) says about the kernel modules in part A of the initramfs.

In a stock boot (the distribution's own boot), libkmod loads these modules. The modules are loaded in the
distribution's initramfs, or later by udev. The distribution's initramfs has a copy of modprobe.d, which
initramfs-tools has made. In a boot with our initramfs, init's modloader loads these modules.

libkmod and the modloader give a module its options from modprobe.d. Lines of three more kinds have an effect in
libkmod, but not in the modloader. Because of a line with `softdep`, libkmod loads other modules first. Because of a
line with `install`, libkmod executes a command in place of loading the module. Because of a line with `blacklist`,
libkmod does not load the module for a device.

Apart from reading the image, the functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import hidden_at
from quickstart.parse.printable import brief

# The directories in the order of libkmod (libkmod.c, default_config_paths). If several directories have a file of the
# same name, the file in the first directory counts.
_PLACES = tuple(
    map(
        PurePosixPath,
        ("/etc/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"),
    )
)
_CONTINUED = "\\\n"
_LINE = re.compile(r"[ \t]*(options|install|blacklist|softdep)[ \t]++([^ \t]+)[ \t]*+(.*)")
# For the modloader's table, whose lines end where these do not (initramfs/modloader/options.c).
_OPTIONS = re.compile(r"[ -~\t]*")
_MOST_CHARACTERS = 1024


def module_options(root: ImageRoot, unit: str, modules: Collection[str]) -> tuple[tuple[str, str], ...]:
    """The options that modprobe.d gives to ``modules``, the modules in part A of the initramfs. Each option is in the
    result as (module, options), in the order in which libkmod puts them together.

    Raises UnsupportedUnitError for a line of modprobe.d that is about one of ``modules``, but does not give options to
    this module. Also raises UnsupportedUnitError for options that are too long or not plain text. Also raises
    UnsupportedUnitError for any line about one of ``modules`` in a file that not all users may read. The content of
    such a file must not enter part A, because everybody who may read the artefact can read part A.
    """
    found: list[tuple[str, str]] = []
    lengths = Counter[str]()
    for file in _files(root):
        for line in root.read_text(file).replace(_CONTINUED, " ").split("\n"):
            match = _LINE.fullmatch(line)
            # libkmod takes a hyphen for an underscore.
            name = match[2].replace("-", "_") if match else ""
            if not match or name not in modules:
                continue
            if hidden_at(root, file) is not None:
                raise UnsupportedUnitError(
                    f"{unit} cannot be started early: {file}, which has a line for the module {name}, is not for all to"
                    " read, and what it says would go into the archive",
                    hint="let all users read this file of the image (`chmod a+r`, and a+x on its directories)",
                )
            lengths[name] += len(match[3]) + 1
            if match[1] != "options" or lengths[name] > _MOST_CHARACTERS or not _OPTIONS.fullmatch(match[3]):
                raise UnsupportedUnitError(
                    f"{unit} cannot be started early: {file} has `{brief(line.strip())}`, and init, which loads"
                    " this module before systemd, does not do that",
                    hint="remove this line from that file in the image",
                )
            found.append((name, match[3].rstrip()))
    return tuple(found)


def _files(root: ImageRoot) -> Iterator[PurePosixPath]:
    named: dict[str, PurePosixPath] = {}
    for place in _PLACES:
        directory = root.resolve(place).canonical
        # A link to /dev/null hides a file of this name as well.
        for name in root.names(directory) if directory is not None and root.host(directory).is_dir() else ():
            if directory is not None and name.endswith(".conf"):
                named.setdefault(name, directory / name)
    # Each file is read once, because many names may be links to one large file.
    files = dict.fromkeys(root.resolve(path).canonical for _, path in sorted(named.items()))
    yield from (file for file in files if file is not None and root.host(file).is_file())
