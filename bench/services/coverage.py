"""How many daemon units of Debian's services can be started early: the reader judges those of packages.txt.

sudo .venv/bin/python bench/services/coverage.py [CHECKOUT]

The script writes coverage.json beside this file, and the figures in docs/users/services.md. CHECKOUT is another source tree.

Each paragraph of packages.txt is a reference image. The script makes it as `profile new` does and keeps it in the store, so a run
continues where another was interrupted. The packages have to be installed, because their scripts make users, enable sockets and
mask units. Nothing is booted. A template is judged once, as NAME@.service.

A unit is judged with the services that it needs, which `profile new` takes into the profile.

A unit of Type=oneshot is no daemon and does not count, unless it is a wrapper of instances: then `profile new` takes the
instance, and the instance is judged.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench.services.draw import described
from quickstart import __version__
from quickstart.errors import BadInputError, QuickStartError
from quickstart.host.progress import Quiet
from quickstart.inspect.dpkg import installed, owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import parse_service, unit_file, unit_texts
from quickstart.inspect.unit.instances import own_instance
from quickstart.inspect.unit.stack import read_stack
from quickstart.newprofile.request import first_draft, parse_ready
from quickstart.newprofile.units import with_needed
from quickstart.reference.debootstrap import make_reference
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root, source_digest

SUITE = "bookworm"
LIST, RESULTS, PAGE = "bench/services/packages.txt", "bench/services/coverage.json", "docs/users/services.md"
ACCEPTED = "accepted"
NO_DAEMON = "no daemon: Type=oneshot"
_UNITS = PurePosixPath("/usr/lib/systemd/system")
_SCRIPTS = PurePosixPath("/etc/init.d")
_ANY_UNITS = (PurePosixPath("/etc/systemd/system"), _UNITS)
_TYPE = ".service"
_MARK = "<!-- {} by {} -->"


@dataclass(frozen=True)
class Wanted:
    """A line of the list: the package whose units are judged, and the packages that are installed with it."""

    package: str
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """The verdicts on the units of a package, by unit: ACCEPTED, NO_DAEMON, or the reason of the refusal."""

    version: str
    units: Mapping[str, str]


@dataclass(frozen=True)
class Kind:
    """The reasons that ``pattern`` finds: one row of the page."""

    pattern: str
    why: str
    advice: str = ""


# The first that fits counts.
KINDS = (
    Kind(
        r"\.socket (?:cannot be bound early|hands its sockets over)",
        "a `.socket` unit passes sockets to the service that init cannot bind",
        "disable the socket in a root of your own, if the service can listen by itself",
    ),
    Kind(r"\bBusName\b|\bType=dbus\b|\bdbus-broker\b", "D-Bus: `Type=dbus`, `BusName=`"),
    Kind(
        r"^is the script /etc/init\.d/",
        "an init script without an LSB header",
        "write a unit file, in a root of your own",
    ),
    Kind(r"^Type=idle", "`Type=idle`"),
    Kind(r"\bStandardInput\b", "`StandardInput=socket`"),
    Kind(r"calls systemctl", "a command calls systemctl", "`pre = false`, if the command is an ExecStartPre"),
)


def parse_list(text: str) -> tuple[tuple[Wanted, ...], ...]:
    """The images of the list, each with its lines. Raises BadInputError for a package that is named twice."""
    paragraphs = re.split(r"\n\s*\n", text)
    lines = [
        [line.split() for line in each.splitlines() if line.strip() and not line.startswith("#")]
        for each in paragraphs
    ]
    found = tuple(tuple(Wanted(words[0], tuple(words[1:])) for words in each) for each in lines if each)
    names = [wanted.package for each in found for wanted in each]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInputError(f"{LIST} names twice: {', '.join(twice)}")
    return found


def units_of(root: ImageRoot, packages: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The units of each package: its unit files, and its init scripts that no unit file stands for.

    Links do not count: an alias stands for another unit, and a mask for none.
    """
    files = [path for path in root.glob(_UNITS / f"*{_TYPE}") if root.link_target(path) is None]
    scripts = [
        path
        for path in root.glob(_SCRIPTS / "*")
        if not any(_is_there(root, place / f"{path.name}{_TYPE}") for place in _ANY_UNITS)
    ]
    owned = owners(root, (*files, *scripts))
    found: dict[str, list[str]] = {name: [] for name in packages}
    for path, owner in owned.items():
        if owner.package in found:
            found[owner.package].append(path.name.removesuffix(_TYPE) + _TYPE)
    return {name: tuple(sorted(units)) for name, units in found.items()}


def _is_there(root: ImageRoot, path: PurePosixPath) -> bool:
    return root.link_target(path) is not None or root.resolve(path).canonical is not None


def verdict(root: ImageRoot, unit: str) -> str:
    """ACCEPTED, NO_DAEMON, or the reader's first reason, without the unit's name before it."""
    try:
        instance = own_instance(root, unit)
        if not instance and _is_oneshot(root, unit):
            return NO_DAEMON
        draft = first_draft("coverage", ["any"], instance or unit, parse_ready("tcp:1"), SUITE, 60)
        read_stack(root, with_needed(root, draft)[0].units)
    except QuickStartError as error:
        return re.sub(rf"^{re.escape(unit)}(?: cannot be started early)?:? ", "", error.message)
    return ACCEPTED


def _is_oneshot(root: ImageRoot, unit: str) -> bool:
    if unit_file(root, unit).parent == _SCRIPTS:
        return False
    return parse_service(unit_texts(root, unit)).get("Type", ("",))[-1] == "oneshot"


def kind_of(reason: str) -> Kind:
    """The row of the page that has the reason. A reason that no kind of KINDS fits has its own row."""
    return next((kind for kind in KINDS if re.search(kind.pattern, reason)), Kind("", f"`{reason}`"))


def judge(root: ImageRoot, wanted: Wanted, units: Sequence[str]) -> Judged:
    """The reader's verdicts. Raises BadInputError for a package without units."""
    if not units:
        raise BadInputError(f"{wanted.package} ships no unit", hint=f"name the package that does, in {LIST}")
    return Judged(installed(root)[wanted.package], {unit: verdict(root, unit) for unit in units})


def judge_image(group: Sequence[Wanted], context: Context) -> Mapping[str, Judged]:
    """The verdicts on the packages of one image. The image is made when the store lacks it."""
    packages = [name for each in group for name in (each.package, *each.beside)]
    draft = first_draft("coverage", packages, "any", parse_ready("tcp:1"), SUITE, 60)
    root = ImageRoot(make_reference(draft, context).tree)
    units = units_of(root, [each.package for each in group])
    return {each.package: judge(root, each, units[each.package]) for each in group}


def document(found: Mapping[str, Judged]) -> str:
    """The text of coverage.json."""
    content = {
        "schema": 1,
        "quickstart": f"{__version__}, source {source_digest('quickstart')[:16]}",
        "suite": SUITE,
        "packages": {
            name: {"version": each.version, "units": dict(sorted(each.units.items()))}
            for name, each in sorted(found.items())
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_document(text: str) -> Mapping[str, Judged]:
    """The verdicts by package, from a text that ``document`` returned."""
    return {
        name: Judged(each["version"], each["units"]) for name, each in json.loads(text)["packages"].items()
    }


def page_part(found: Mapping[str, Judged]) -> str:
    """The figures of the page: the counts, the accepted units, and why the others are refused."""
    units = {unit: said for each in found.values() for unit, said in each.units.items()}
    accepted = sorted(_name(unit) for unit, said in units.items() if said == ACCEPTED)
    helpers = sorted(_name(unit) for unit, said in units.items() if said == NO_DAEMON)
    daemons = len(units) - len(helpers)
    rows: dict[Kind, list[str]] = {}
    for unit, said in sorted(units.items()):
        if said not in (ACCEPTED, NO_DAEMON):
            rows.setdefault(kind_of(said), []).append(_name(unit))
    in_order = sorted(rows.items(), key=lambda row: (-len(row[1]), row[0].why))
    return "\n".join(
        (
            f"The {len(found)} packages have {daemons} daemon units. The reader accepts {len(accepted)} of them:",
            "",
            f"{', '.join(accepted)}.",
            "",
            f"The reader refuses the other {daemons - len(accepted)}:",
            "",
            "| why | units | what to do |",
            "|---|---|---|",
            *(f"| {kind.why} | {', '.join(names)} | {kind.advice} |" for kind, names in in_order),
            "",
            f"Another {len(helpers)} units have no daemon process (`Type=oneshot`): {', '.join(helpers)}.",
        )
    )


def _name(unit: str) -> str:
    return unit.removesuffix(_TYPE)


def with_part(page: str, part: str, by: str = "bench/services/coverage.py") -> str:
    """``page`` with ``part`` between the two marks of the script ``by``. Raises BadInputError without them."""
    begin, end = _MARK.format("begin", by), _MARK.format("end", by)
    before, mark, rest = page.partition(f"{begin}\n")
    _, closing, after = rest.partition(f"{end}\n")
    if not mark or not closing:
        raise BadInputError(f"{PAGE} lacks the line {begin} or {end}")
    return f"{before}{begin}\n\n{part}\n\n{end}\n{after}"


def main(words: Sequence[str]) -> None:
    parser = described(__doc__)
    parser.add_argument(
        "checkout", metavar="CHECKOUT", type=Path, nargs="?", default=Path(__file__).parents[2]
    )
    checkout = parser.parse_args(words).checkout
    found: dict[str, Judged] = {}
    with Store(default_root()) as store:
        for group in parse_list((checkout / LIST).read_text(encoding="utf-8")):
            found.update(judge_image(group, Context(store, Quiet())))
            print(
                f"{len(found)} packages, {sum(len(each.units) for each in found.values())} units", flush=True
            )
    (checkout / RESULTS).write_text(document(found), encoding="utf-8")
    page = checkout / PAGE
    page.write_text(with_part(page.read_text(encoding="utf-8"), page_part(found)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
