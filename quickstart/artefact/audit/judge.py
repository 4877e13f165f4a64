"""Check an artefact for secrets, wrong modes, files that no build makes, and parts that contradict each other.
All functions of this module are pure.

Every user who may read the file initramfs.img can read the content of all packed files, even of packed files whose
own modes forbid that. So the modes of packed files matter only in the running guest.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator

from quickstart.artefact import inside
from quickstart.artefact.audit.findings import ERROR, NOTE, Finding, Findings, counted
from quickstart.artefact.audit.given import CONTENTS, LAUNCH, TRACER, Given, OutFile
from quickstart.artefact.audit.names import Links, Secrets, is_too_long, nearest_above
from quickstart.artefact.manifest import MANIFEST, Manifest
from quickstart.artefact.sums import RUN_SCRIPT
from quickstart.errors import ArtefactError
from quickstart.host.beneath import kind_of
from quickstart.image.kerneloptions import added, stock_line, with_options
from quickstart.initramfs.digests import read_list
from quickstart.initramfs.layout import IMAGE, MARKER, OURS, PRIVATE, PRIVATE_NAMES
from quickstart.inspect.globs import matches
from quickstart.inspect.secrets import SECRET_GLOBS
from quickstart.model.words import KernelOptions
from quickstart.parse.printable import command

_SECRET_NAMES = (
    *SECRET_GLOBS,
    *(
        "/**/id_rsa",
        "/**/id_ecdsa",
        "/**/id_ed25519",
        "/**/id_dsa",
        "/**/.pgpass",
        "/**/.netrc",
        "/**/.my.cnf",
    ),
    *("/**/.htpasswd", "/etc/mysql/debian.cnf"),
)
_LAUNCH_NAMES = frozenset({"launch", "conf"})
_TRACER_NAMES = frozenset({"strace", "strace-init", "ldd-all", "maps-all"})
_DIGESTS = f"{OURS}/digests"
_PART_A = (
    "init",
    f"{OURS}/busybox",
    f"{OURS}/config",
    f"{OURS}/unit",
    f"{OURS}/bin/starter",
    f"{OURS}/bin/checker",
    _DIGESTS,
    f"{OURS}/modules",
)
# Init reads its configuration as a shell script, so the configuration may have only our own settings.
_MOST_CONFIG_BYTES = 64 << 10
_REBUILD = "build it again with --force"
_NAME_IT = "exclude the file in the profile, or name it in files.secrets"


def judge(given: Given) -> Findings:
    """The findings about an artefact, errors first. Findings of the same severity have this order:

    1. findings about the files of the artefact's directory (OUT)
    2. findings about the initramfs as a whole
    3. findings about the members of the initramfs, in the order of the members
    """
    return counted(_all(given))


def _all(given: Given) -> Iterator[Finding]:
    yield from _out(given, given.manifest.secrets)
    yield from _command_lines(given.manifest)
    for judged in (_names, _parts, _digests, _agreement, _members):
        yield from judged(given)


def _members(given: Given) -> Iterator[Finding]:
    secrets = Secrets(given.manifest.secrets)
    closed = {
        member.name
        for member in given.members
        if stat.S_ISDIR(member.mode) and not member.mode & stat.S_IXOTH
    }
    below = nearest_above((each.name for each in given.members), closed)
    links = Links({each.name: each.target for each in given.members if stat.S_ISLNK(each.mode)})
    for member in given.members:
        yield from _secret(member, secrets)
        yield from _mode(member, secrets, below.get(member.name))
        yield from _stranger(member)
        yield from _link(member, links)
    if secrets.gave_up:
        what = "names secrets by so many patterns that not every private file was compared with them"
        yield Finding(ERROR, MANIFEST, what, "name them by fewer patterns in files.secrets")


# ---------------------------------------------------------------- OUT


def _out(given: Given, secrets: tuple[str, ...]) -> Iterator[Finding]:
    disk = given.manifest.disk.name
    expected = {disk, *given.manifest.facts, "manifest.json", "start-set.json", RUN_SCRIPT}
    private = {disk} | ({"initramfs.img"} if secrets else set())
    if given.mode & stat.S_IWOTH:
        yield Finding(ERROR, ".", f"mode {given.mode:04o}: everybody may write", "chmod o-w")
    for file in given.files:
        yield from _out_file(file, given.manifest, file.name in expected, file.name in private)
    if not given.script_is_ours:
        what = "is not what quickstart writes for this manifest: it may do anything"
        yield Finding(
            ERROR, RUN_SCRIPT, what, "read it before you start it, or start OUT by `quickstart run`"
        )
    for name in sorted(expected - {file.name for file in given.files}):
        yield Finding(ERROR, name, "is missing", _REBUILD)


def _command_lines(manifest: Manifest) -> Iterator[Finding]:
    """A finding for each boot entry whose kernel command line has an option that no build adds. An option of an
    unknown origin may disable protections of the kernel, or name another program as init.
    """
    stock = stock_line(manifest.superblock.uuid)
    ours = with_options(stock, KernelOptions(manifest.kernel_options))
    for entry, line, usual in (("fast", manifest.cmdline, ours), ("stock", manifest.stock_line, stock)):
        if strange := added(line, usual):
            what = f"the {entry} entry's kernel command line has {' '.join(strange)}, which quickstart did not put there"
            yield Finding(NOTE, MANIFEST, what, "ask who gave you OUT what it is for")


def _out_file(file: OutFile, manifest: Manifest, is_expected: bool, is_private: bool) -> Iterator[Finding]:
    bits = stat.S_IMODE(file.mode)
    if not stat.S_ISREG(file.mode):
        what = f"is {kind_of(file.mode)}, not a plain file"
        yield Finding(ERROR, file.name, what, "remove it: an artefact holds plain files only")
        return
    if not is_expected:
        yield Finding(NOTE, file.name, "not a file of an artefact", "remove it before OUT is given away")
    if bits & (stat.S_ISUID | stat.S_ISGID):
        yield Finding(ERROR, file.name, f"mode {bits:04o}: setuid or setgid", _chmod("ug-s", file.name))
    if file.marks:
        said = ", ".join(mark.decode().strip() for mark in file.marks)
        yield Finding(ERROR, file.name, f"the launch agent or a tracer is in it ({said})", _REBUILD)
    if is_private and bits & 0o077:
        yield Finding(ERROR, file.name, f"mode {bits:04o}, and it holds secrets", _chmod("0600", file.name))
    elif bits & stat.S_IWOTH:
        yield Finding(ERROR, file.name, f"mode {bits:04o}: everybody may write", "chmod o-w")
    fact = manifest.facts.get(file.name)
    if fact is not None and fact.sha256 != file.sha256:
        yield Finding(ERROR, file.name, "its SHA-256 is not the manifest's", _REBUILD)


def _chmod(mode: str, name: str) -> str:
    """The command that changes the mode of a file of OUT. Somebody else may have chosen the file's name. So the
    command does not contain the name if the name has characters that a user should not paste into a shell.
    """
    return command("chmod", mode, "--", name) or f"chmod {mode}"


# ---------------------------------------------------------------- the archive as a whole


def _names(given: Given) -> Iterator[Finding]:
    """A finding for each member of the initramfs whose name is too long for any file system. The kernel does not
    unpack a member with such a name.
    """
    for member in given.members:
        if is_too_long(member.name):
            yield Finding(ERROR, f"/{member.name}", "has a name that no file can have", _REBUILD)


def _parts(given: Given) -> Iterator[Finding]:
    by_part = {part: {each.name: each for each in given.members if each.part == part} for part in ("A", "B")}
    for (part, name), count in Counter((each.part, each.name) for each in given.members).items():
        if count > 1:
            yield Finding(ERROR, f"/{name}", f"is in part {part} {count} times", _REBUILD)
    for name in _PART_A:
        if name not in by_part["A"]:
            where = "behind the beginning of part B" if name in by_part["B"] else "missing"
            yield Finding(ERROR, f"/{name}", f"is to be in part A and is {where}", _REBUILD)
    for name in by_part["A"]:
        if name.startswith("fast/") and name != OURS and not name.startswith(f"{OURS}/"):
            yield Finding(ERROR, f"/{name}", "is of the start set, but in part A", _REBUILD)
    for name, member in by_part["B"].items():
        # The kernel overwrites existing files, and part B is unpacked last.
        first = by_part["A"].get(name)
        if first is not None and not (stat.S_ISDIR(first.mode) and stat.S_ISDIR(member.mode)):
            yield Finding(ERROR, f"/{name}", "is in part A, and again in part B", _REBUILD)
        elif name not in _PART_A and name.partition("/")[0] not in ("fast", *_LAUNCH_NAMES):
            yield Finding(ERROR, f"/{name}", "is in part B, but not below /fast", _REBUILD)
    marker = by_part["B"].get(MARKER)
    if marker is None or given.members[-1] is not marker:
        yield Finding(ERROR, f"/{MARKER}", "is to be the last file of part B and is not", _REBUILD)
    config = by_part["A"].get(f"{OURS}/config")
    if config and config.size_bytes > _MOST_CONFIG_BYTES:
        what = f"has {config.size_bytes} bytes; the longest that a build makes has a few KiB"
        yield Finding(ERROR, f"/{OURS}/config", what, _REBUILD)
        config = None
    build = re.search(rb"^BUILD=(\S+)$", config.data, re.M) if config else None
    if marker is not None and build is not None and marker.data.strip() != build[1]:
        yield Finding(ERROR, f"/{MARKER}", "names another build than part A", _REBUILD)
    kinds = set(re.findall(rb"^[ \t]*IMAGE=(.*)$", config.data, re.M)) if config else set()
    # An OUT from before the payload squashfs has no such line.
    fitting = ({b"squashfs"},) if IMAGE in by_part["B"] else ({b"''"}, set())
    if config and kinds not in fitting:
        yield Finding(ERROR, f"/{OURS}/config", "names another kind of part B than there is", _REBUILD)


def _digests(given: Given) -> Iterator[Finding]:
    """A finding for each difference between part B of the initramfs, which has the packed files, and part A's list of
    these files with their digests. A file may differ from its entry in the list, or may be only in part B or only in
    the list. Because of such a difference, init would refuse the fast start at every boot, and start the distribution's
    init instead.
    """
    text = next((each.data for each in given.members if (each.part, each.name) == ("A", _DIGESTS)), None)
    if text is None:
        return
    try:
        wanted = {os.fsdecode(each.name): each for each in read_list(text)}
    except ArtefactError as error:
        yield Finding(ERROR, f"/{_DIGESTS}", error.message, _REBUILD)
        return
    packed = {each.name: each for each in given.members if each.part == "B"}
    for name in sorted(wanted.keys() ^ packed.keys()):
        where = "is packed, but not listed there" if name in packed else "is listed there, but not packed"
        yield Finding(ERROR, f"/{name}", f"/{_DIGESTS}: {where}", _REBUILD)
    for name in sorted(wanted.keys() & packed.keys()):
        member, entry = packed[name], wanted[name]
        first = wanted[os.fsdecode(entry.same_as)] if entry.same_as else entry
        found = (member.mode, member.uid, member.gid, member.size_bytes, os.fsencode(member.target))
        if (*found, member.crc) != (
            entry.mode,
            entry.uid,
            entry.gid,
            entry.size_bytes,
            entry.text,
            first.crc,
        ):
            yield Finding(ERROR, f"/{name}", f"is not what /{_DIGESTS} says", _REBUILD)


def _agreement(given: Given) -> Iterator[Finding]:
    """A finding for each file to which one of these statements applies:

    - start-set.json and part B of the initramfs differ in the file's name, kind or size.
    - start-set.json gives no reason for the file.
    - The file is packed, but start-set.json lists the file as excluded.
    """
    packed = {f"/{each.name.removeprefix('fast/')}": each for each in given.members if _is_start_file(each)}
    listed = {file.path: file for file in given.start_set.files}
    for path, member in packed.items():
        if path not in listed:
            yield Finding(
                ERROR, f"/{member.name}", "is packed, but start-set.json does not list it", _REBUILD
            )
    for path, file in listed.items():
        found = packed.get(path)
        if not file.reasons:
            yield Finding(ERROR, path, "start-set.json gives no reason for it", _REBUILD)
        if found is None:
            yield Finding(ERROR, path, "start-set.json lists it, but it is not packed", _REBUILD)
        elif file.kind == "left":
            if found.target != path:
                yield Finding(
                    ERROR, path, "stays on the volume, but is not a link to the volume's file", _REBUILD
                )
        elif _kind(found) != file.kind:
            yield Finding(ERROR, path, f"is listed as {file.kind} and packed as {_kind(found)}", _REBUILD)
        elif file.kind == "file" and found.size_bytes != file.size_bytes:
            yield Finding(
                ERROR, path, f"has {found.size_bytes} bytes, listed are {file.size_bytes}", _REBUILD
            )
    for each in given.start_set.excluded:
        if each.path in packed:
            yield Finding(ERROR, each.path, f"is packed, though excluded by {each.rule}", _REBUILD)


def _is_start_file(member: inside.Member) -> bool:
    # Our own files: what init needs, and the link by which the packed programs name their loader.
    is_named_so = stat.S_ISLNK(member.mode) and member.name.endswith("/ld.so")
    loader = is_named_so and "/ld-linux" in f"/{member.target}"
    below = member.name.startswith("fast/") and member.name != OURS
    return below and not member.name.startswith(f"{OURS}/") and not loader


def _kind(member: inside.Member) -> str:
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFDIR: "directory"}
    return kinds.get(stat.S_IFMT(member.mode), "something else")


# ---------------------------------------------------------------- one member


def _on_root(member: inside.Member) -> str:
    # The names of members are plain (names.py).
    return f"/{member.name.removeprefix('fast/')}"


def _secret(member: inside.Member, secrets: Secrets) -> Iterator[Finding]:
    if stat.S_ISDIR(member.mode) or stat.S_ISLNK(member.mode):
        return
    path = _on_root(member)
    glob = next((glob for glob in _SECRET_NAMES if matches(path, glob)), None)
    whats = [f"by its name a secret ({glob})"] if glob else []
    whats += [f"it holds {what}" for what in CONTENTS if what in member.found]
    for what in whats:
        if secrets.name(path):
            yield Finding(
                NOTE,
                f"/{member.name}",
                f"{what}; the profile names it",
                "give OUT to nobody who may not know it",
            )
        else:
            yield Finding(ERROR, f"/{member.name}", what, _NAME_IT)


def _mode(member: inside.Member, secrets: Secrets, below: str | None) -> Iterator[Finding]:
    """The findings about a member's owner and mode. Some users may not enter the directory ``below``, which is the
    nearest such directory above the member. ``below`` is None when every user may enter all directories above the
    member.
    """
    bits, name = stat.S_IMODE(member.mode), f"/{member.name}"
    if (member.uid, member.gid) != (0, 0):
        yield Finding(ERROR, name, f"belongs to {member.uid}:{member.gid}, not to root", _REBUILD)
    if stat.S_ISLNK(member.mode):
        return
    if bits & (stat.S_ISUID | stat.S_ISGID):
        yield Finding(ERROR, name, f"mode {bits:04o}: setuid or setgid", "exclude the file in the profile")
    sticky = stat.S_ISDIR(member.mode) and bits & stat.S_ISVTX
    if bits & stat.S_IWOTH and not sticky:
        yield Finding(ERROR, name, f"mode {bits:04o}: everybody may write", "mend its mode in the image")
    ours = member.name.startswith(PRIVATE_NAMES) and bits == PRIVATE
    if stat.S_ISREG(member.mode) and not ours and (not bits & stat.S_IROTH or below is not None):
        named = secrets.name(_on_root(member))
        what = f"mode {bits:04o}{'' if below is None else f' below /{below}'}: on the root volume not everybody may read it"
        yield Finding(
            NOTE if named else ERROR, name, what, "nothing: the profile names it" if named else _NAME_IT
        )


def _stranger(member: inside.Member) -> Iterator[Finding]:
    ordinary = stat.S_ISREG(member.mode) or stat.S_ISDIR(member.mode) or stat.S_ISLNK(member.mode)
    console = member.name == "dev/console" and stat.S_ISCHR(member.mode) and member.device == (5, 1)
    if not ordinary and not console:
        numbers = ":".join(str(number) for number in member.device)
        yield Finding(ERROR, f"/{member.name}", f"is a device ({numbers}), a FIFO or a socket", _REBUILD)
    if member.name.partition("/")[0] in _LAUNCH_NAMES:
        yield Finding(ERROR, f"/{member.name}", "is of a launch (agent, hooks), not of an artefact", _REBUILD)
    elif LAUNCH in member.found:
        yield Finding(ERROR, f"/{member.name}", "is the launch agent, or starts it or a tracer", _REBUILD)
    elif member.name.rpartition("/")[2] in _TRACER_NAMES or TRACER in member.found:
        yield Finding(ERROR, f"/{member.name}", "is a tracer", "exclude it in the profile")


def _link(member: inside.Member, links: Links) -> Iterator[Finding]:
    if not stat.S_ISLNK(member.mode) or not member.name.startswith("fast/"):
        return
    end = links.end(member.name)
    if end is None:
        yield Finding(ERROR, f"/{member.name}", "leads through too many links", _REBUILD)
    elif end != "/fast" and not end.startswith("/fast/"):
        through = "" if end == member.target else f", and so to {end}"
        yield Finding(ERROR, f"/{member.name}", f"leads out of /fast, to {member.target}{through}", _REBUILD)
