"""Find the instances that do the work of a wrapper. A wrapper is a unit that does nothing itself. For example,
postgresql.service is the wrapper of postgresql@15-main.service.

systemd can reload services but not targets. So a package whose work is done by instances of a template often has a
wrapper, which can be reloaded, in addition to the template (systemd.unit(5)). The instances are started by a link,
a dependency or a generator of the package. Generators run only at boot, so this module applies the rules of known
generators to the image.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import QuickStartError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import UNIT_PATHS, assignments, directives, unit_texts
from quickstart.parse.printable import command

_TYPE = ".service"
# systemd.unit(5): what the wrapper itself starts, and how an instance says that it belongs to the wrapper.
_STARTS = ("Wants", "Requires", "BindsTo", "Upholds")
_PULLING = ("wants", "requires", "upholds")
_BELONGS = ("PartOf", "ReloadPropagatedFrom")
_NOTHING = frozenset({"/bin/true", "/usr/bin/true", "true"})
_GENERATORS = PurePosixPath("/usr/lib/systemd/system-generators")
_OWN_GENERATORS = (
    PurePosixPath("/etc/systemd/system-generators"),
    PurePosixPath("/usr/local/lib/systemd/system-generators"),
)
# The names of units that a profile may have. Other names would have to be escaped (systemd-escape(1)).
_PLAIN = re.compile(r"[A-Za-z0-9:_.-]+")
_NAME_CHARACTERS = 255
# Each candidate is looked up in all directories of units, which have some thousand links each. More candidates are an
# error anyway.
_MAX_CANDIDATES = 16
# A file of each cluster is read, which says whether the cluster starts at all.
_MAX_CLUSTERS = 256
# The limit for a configuration by which a generator decides. Debian's longest has 30 KiB with its comments.
_MAX_TEXT_BYTES = 64 << 10
_MAIN_CF = PurePosixPath("/etc/postfix/main.cf")
_START_CONF = "start.conf"
_TORRC = PurePosixPath("/etc/tor/torrc")
_OPENVPN_DEFAULTS = PurePosixPath("/etc/default/openvpn")


def own_instance(root: ImageRoot, unit: str) -> str:
    """The only instance that does the work of the wrapper ``unit``. A wrapper is a unit that does nothing itself. The
    result is empty when there is no such instance, or when ``unit`` is not a wrapper.

    Raises UnsupportedUnitError when several instances do the work, when there are more instances than the
    limit allows, and when a profile could not contain the instance's name.
    """
    found = working_instances(root, unit)
    if len(found) > 1:
        raise UnsupportedUnitError(
            f"{unit} starts nothing itself, and {len(found)} instances do its work: {', '.join(found)}",
            hint=f"name the one that starts early{_example(found[0])}",
        )
    if found and not (_PLAIN.fullmatch(_instance(found[0])) and len(found[0]) <= _NAME_CHARACTERS):
        raise UnsupportedUnitError(
            f"{unit} starts nothing itself, and the name of its instance {found[0]!r} is no plain word",
            hint="rename what the instance is called after",
        )
    return found[0] if found else ""


def _example(name: str) -> str:
    """The part of an error's hint that names an instance as an example. The result is empty for a name that is not safe
    to paste into a profile.
    """
    pasted = command(name)
    return f", for example {pasted}" if pasted else ""


def working_instances(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The instances that a boot would start for the wrapper ``unit``, sorted by name. A wrapper is a unit that does
    nothing itself. The result is empty when ``unit`` is not a wrapper.

    Raises UnsupportedUnitError when there are more instances than the limit allows.
    """
    if not _is_wrapper(root, unit):
        return ()
    rule = _rule(root, unit)
    # If the generator is known, it says which instances start. Otherwise, an instance's own file shows that the
    # instance exists.
    started: Iterable[str] = rule(root) if rule else _belonging(root, unit, _with_file(root, unit))
    certain = _few(unit, (*_few(unit, started), *_few(unit, _started(root, unit))))
    found = {*certain, *_belonging(root, unit, _enabled(root, unit))}
    return tuple(sorted(each for each in found if _is_startable(root, each)))


def wrapper_of(root: ImageRoot, unit: str) -> str:
    """The wrapper without which a boot would not start the instance ``unit``. A wrapper is a unit that does nothing
    itself, because instances do its work. The result is empty when ``unit`` has no wrapper.
    """
    stem, at, _ = _stem(unit).partition("@")
    if not at:
        return ""
    try:
        return f"{stem}{_TYPE}" if _is_wrapper(root, f"{stem}{_TYPE}") else ""
    except UnsupportedUnitError:
        return ""


def generating_files(unit: str) -> Iterator[PurePosixPath]:
    """The files by which a generator decides whether to start the instance ``unit``. The result does not have the
    application's own configuration files.
    """
    stem, _, instance = _stem(unit).partition("@")
    version, dash, cluster = instance.partition("-")
    if stem == "postgresql" and dash:
        yield PurePosixPath("/etc/postgresql") / version / cluster / _START_CONF
    elif stem == "openvpn" and instance:
        yield _OPENVPN_DEFAULTS


def generating_conditions(unit: str) -> tuple[tuple[str, ...], ...]:
    """A condition for the starter, which starts the unit early. The condition requires the file without which the
    generator would not start the instance ``unit``. The content of this file may change, because it is a configuration
    file of the application. The result is empty when the name of ``unit`` does not say which file that is.
    """
    stem, _, instance = _stem(unit).partition("@")
    version, dash, cluster = instance.partition("-")
    paths = {
        "postgresql": f"/etc/postgresql/{version}/{cluster}/postgresql.conf" if dash else "",
        "openvpn": f"/etc/openvpn/{instance}.conf",
        "tor": str(_TORRC) if instance == "default" else f"/etc/tor/instances/{instance}/torrc",
    }
    path = paths.get(stem, "") if instance and _PLAIN.fullmatch(instance) else ""
    return (("unit-condition", "Condition", "PathExists", "no", "no", path),) if path else ()


def _few(unit: str, names: Iterable[str]) -> tuple[str, ...]:
    """``names`` without duplicates. Raises UnsupportedUnitError when there are more names than the limit allows."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) > _MAX_CANDIDATES:
            raise UnsupportedUnitError(
                f"{unit} starts nothing itself, and more than {_MAX_CANDIDATES} instances may do its work",
                hint="name the one that starts early",
            )
    return tuple(found)


def _belonging(root: ImageRoot, unit: str, names: Iterable[str]) -> tuple[str, ...]:
    """The instances in ``names`` whose own files say that they belong to ``unit`` (PartOf=,
    ReloadPropagatedFrom=).
    """
    return tuple(name for name in _few(unit, names) if _belongs(root, name, unit))


def _is_wrapper(root: ImageRoot, unit: str) -> bool:
    """Whether ``unit`` runs nothing but true(1)."""
    if "@" in unit or not unit.endswith(_TYPE):
        return False
    found = directives(assignments(unit_texts(root, unit), "[Service]"))
    commands = found.get("ExecStart", ())
    prefixes = "-@:+!"
    others = {"ExecCondition", "ExecStartPre", "ExecStartPost"} & set(found)
    return (
        found.get("Type", ("",))[-1] == "oneshot"
        and not others
        and bool(commands)
        and all(command.lstrip(prefixes).strip() in _NOTHING for command in commands)
    )


def _started(root: ImageRoot, unit: str) -> Iterator[str]:
    """The instances that the wrapper ``unit`` pulls in. The wrapper pulls an instance in when the wrapper's
    dependencies name the instance, or when the wrapper has a link to the instance. `systemctl add-wants` makes such
    links.
    """
    found = directives(assignments(unit_texts(root, unit), "[Unit]"))
    words = [word for name in _STARTS for value in found.get(name, ()) for word in value.split()]
    links = [
        path.name
        for place in UNIT_PATHS
        for kind in _PULLING
        for path in root.glob(PurePosixPath(place) / f"{unit}.{kind}/*{_TYPE}")
    ]
    yield from (name for name in (*words, *links) if _is_instance(name, unit))


def _enabled(root: ImageRoot, unit: str) -> Iterator[str]:
    """The instances that are enabled for any target."""
    for place in UNIT_PATHS:
        for kind in _PULLING:
            for path in root.glob(PurePosixPath(place) / f"*.{kind}/{_stem(unit)}@*{_TYPE}"):
                if _is_instance(path.name, unit):
                    yield path.name


def _with_file(root: ImageRoot, unit: str) -> Iterator[str]:
    """The instances that have a unit file of their own."""
    for place in UNIT_PATHS:
        for path in root.glob(PurePosixPath(place) / f"{_stem(unit)}@*{_TYPE}"):
            if _is_instance(path.name, unit):
                yield path.name


def _stem(unit: str) -> str:
    return unit.removesuffix(_TYPE)


def _instance(name: str) -> str:
    return _stem(name).partition("@")[2]


def _is_instance(name: str, unit: str) -> bool:
    return name.startswith(f"{_stem(unit)}@") and name.endswith(_TYPE) and bool(_instance(name))


def _belongs(root: ImageRoot, name: str, unit: str) -> bool:
    try:
        found = directives(assignments(unit_texts(root, name), "[Unit]"))
    except UnsupportedUnitError:
        return False
    return any(unit in value.split() for key in _BELONGS for value in found.get(key, ()))


def _is_startable(root: ImageRoot, name: str) -> bool:
    """Whether the instance has a unit file, its own or its template's, and is not masked."""
    try:
        unit_texts(root, name)
    except UnsupportedUnitError:
        return False
    return True


# ---------------------------------------------------------------- what Debian's generators link


def _rule(root: ImageRoot, unit: str) -> Callable[[ImageRoot], Iterator[str]] | None:
    """The rule by which a generator chooses the instances for the wrapper ``unit``. The result is None when the image
    does not have the generator, or when the administrator has replaced or masked the generator.
    """
    name, rule = _RULES.get(unit, ("", None))
    if rule is None or root.resolve(_GENERATORS / name).canonical is None:
        return None
    replaced = any(
        root.link_target(place / name) is not None or root.resolve(place / name).canonical is not None
        for place in _OWN_GENERATORS
    )
    return None if replaced else rule


def _postgresql(root: ImageRoot) -> Iterator[str]:
    """The instances of PostgreSQL. There is one instance for each cluster whose start.conf has `auto` (the default) and
    whose server is installed.
    """
    files = root.glob(PurePosixPath("/etc/postgresql/*/*/postgresql.conf"))
    if len(files) > _MAX_CLUSTERS:
        raise UnsupportedUnitError(
            f"/etc/postgresql has {len(files)} clusters, more than the {_MAX_CLUSTERS} that are looked at",
            hint="name the instance that starts early",
        )
    for file in files:
        cluster = file.parent
        version = cluster.parent.name
        lines = (line.partition("#")[0].strip() for line in _text(root, cluster / _START_CONF).splitlines())
        start = [line for line in lines if line] or ["auto"]
        server = PurePosixPath("/usr/lib/postgresql") / version / "bin/postgres"
        if start == ["auto"] and root.resolve(server).canonical is not None:
            yield f"postgresql@{version}-{cluster.name}.service"


def _tor(root: ImageRoot) -> Iterator[str]:
    if root.resolve(_TORRC).canonical is not None:
        yield "tor@default.service"
    for file in root.glob(PurePosixPath("/etc/tor/instances/*/torrc")):
        name = file.parent.name
        if re.fullmatch(r"[A-Za-z0-9]+", name) and name != "default":
            yield f"tor@{name}.service"


def _postfix(root: ImageRoot) -> Iterator[str]:
    """The default instance of Postfix, and one instance for each further configuration directory. An instance whose
    configuration gives no name is named after its directory, as `postmulti -e init` does.
    """
    yield "postfix@-.service"
    directories = _parameter(_text(root, _MAIN_CF), "multi_instance_directories").replace(",", " ").split()
    # There is one more name than allowed, so that the caller refuses too many names.
    for directory in list(dict.fromkeys(directories))[: _MAX_CANDIDATES + 1]:
        path = PurePosixPath(directory)
        name = _parameter(_text(root, path / "main.cf"), "multi_instance_name") if path.is_absolute() else ""
        yield f"postfix@{name or path.name}.service"


def _parameter(text: str, name: str) -> str:
    """The value of a parameter in main.cf (postconf(5)). The function returns the value of the last assignment. A line
    that begins with a blank continues the line before it.
    """
    plain = "\n".join(
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    )
    found = re.findall(rf"^{name}[ \t]*=(.*)$", re.sub(r"\n[ \t]+", " ", plain), re.MULTILINE)
    return found[-1].strip() if found else ""


def _openvpn(root: ImageRoot) -> Iterator[str]:
    """The instances of OpenVPN. There is one instance for each configuration in /etc/openvpn. When AUTOSTART= names
    configurations, only these configurations have an instance. The file with AUTOSTART= is a shell script. A value that
    only a shell can expand gives no instance.
    """
    settings = _text(root, _OPENVPN_DEFAULTS)
    given = re.findall(r"^[ \t]*AUTOSTART=(.*)$", settings, re.MULTILINE)
    try:
        wanted = " ".join(shlex.split(given[-1], comments=True)) if given else ""
    except ValueError:
        return
    if set(wanted) & set("$`"):
        return
    have = [file.stem for file in root.glob(PurePosixPath("/etc/openvpn/*.conf"))]
    if wanted != "none":
        every, names = wanted in ("", "all"), frozenset(wanted.split())
        yield from (f"openvpn@{name}.service" for name in have if every or name in names)


def _text(root: ImageRoot, path: PurePosixPath) -> str:
    """The text of the file at ``path``. The result is empty when the file does not exist, cannot be read, or is too
    large for a configuration file.
    """
    try:
        canonical = root.resolve(path).canonical
        if canonical is None:
            return ""
        return root.read_bytes(canonical, _MAX_TEXT_BYTES).decode("utf-8", "surrogateescape")
    except QuickStartError:
        return ""


_RULES: Mapping[str, tuple[str, Callable[[ImageRoot], Iterator[str]]]] = {
    "openvpn.service": ("openvpn-generator", _openvpn),
    "postfix.service": ("postfix-instance-generator", _postfix),
    "postgresql.service": ("postgresql-generator", _postgresql),
    "tor.service": ("tor-generator", _tor),
}
