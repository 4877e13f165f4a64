"""The documentation is consistent: each relative link leads somewhere, the index names each page, and the package list is ours."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import click
import pytest

from quickstart import __version__
from quickstart.cli.main import group

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
INDEX = DOCS / "README.md"
ROOMS = ("users", "internals", "adr")
# What git ignores at the top of a checkout: artefacts and results of the user's own.
_OURS_ONLY = re.compile(r"(?!quickstart-|bench-|fuzz-c$|dist$|\.)")
_FENCED = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
# [text](target), [text](target "title"), and the line of a reference: [name]: target
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def pages(checkout: Path) -> list[Path]:
    """Every Markdown file of the checkout, in order; not what git ignores."""
    tops = (path for path in checkout.iterdir() if _OURS_ONLY.match(path.name))
    found = (top.rglob("*.md") if top.is_dir() else [top] for top in tops)
    return sorted(path for paths in found for path in paths if path.suffix == ".md")


def links(text: str) -> Iterator[str]:
    """The targets of a page's links, of pictures too; what stands in code is no link."""
    for match in _LINK.finditer(_CODE.sub("code", _FENCED.sub("", text))):
        yield match[1] or match[2]


def anchors(text: str) -> set[str]:
    """The names that headings get on a page: lower case, only letters, digits, `_`, `-`; a second one gets `-1`."""
    found: set[str] = set()
    for match in _HEADING.finditer(_FENCED.sub("", text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number, free = 0, name
        while free in found:
            number += 1
            free = f"{name}-{number}"
        found.add(free)
    return found


def faults(page: Path, checkout: Path) -> Iterator[str]:
    """The links of a page that lead nowhere, or out of the checkout, each with the page's name."""
    for link in links(page.read_text()):
        if _SCHEME.match(link):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / unquote(name)).resolve() if name else page
        if not target.is_relative_to(checkout) or not target.exists():
            yield f"{page.relative_to(checkout)}: {link}: no such file"
        elif fragment and target.suffix == ".md" and fragment not in anchors(target.read_text()):
            yield f"{page.relative_to(checkout)}: {link}: no such heading"


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    found = pages(CHECKOUT)
    assert INDEX in found
    assert [fault for page in found for fault in faults(page, CHECKOUT)] == []


def test_the_index_names_every_page_once() -> None:
    named = [(DOCS / link).resolve() for link in links(INDEX.read_text()) if not _SCHEME.match(link)]
    there = {path for room in ROOMS for path in (DOCS / room).glob("*.md")}
    assert {path for path in named if path.parent.parent == DOCS and path.suffix == ".md"} == there
    assert sorted(named) == sorted(set(named))


def test_the_packages_to_install_are_those_that_we_need() -> None:
    text = (DOCS / "users/install.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^ {4}sudo apt-get install -y --no-install-recommends (.+)$", text, re.MULTILINE)
    table = (CHECKOUT / "quickstart/host/packages.txt").read_text().splitlines()
    rows = [row.split() for row in table if row and not row.startswith("#")]
    assert line.split() == sorted({package for _, package, use in rows if use == "run"})


def words_of_ours() -> str:
    """Every string of our modules, the fixed parts of f-strings too, and what runs in the guest as it is."""
    modules = [ast.parse(path.read_text()) for path in (CHECKOUT / "quickstart").rglob("*.py")]
    nodes = [node for module in modules for node in ast.walk(module)]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    scripts = (CHECKOUT / "quickstart/initramfs/init").iterdir()
    return "\n".join(
        [*strings, *(path.read_text() for path in scripts if path.is_file() and not path.suffix)]
    )


def test_the_messages_of_troubleshooting_are_ours() -> None:
    text = (DOCS / "users/troubleshooting.md").read_text()
    messages = [span for line in _HEADING.findall(text) for span in re.findall(r"`([^`]+)`", line)]
    # A name, a number or a path is the reader's own.
    parts = [part.strip() for each in messages for part in re.split(r"\b(?:[A-Z]+|\d+)\b|[,/]\S*", each)]
    ours = words_of_ours()
    assert len(messages) > 15
    known = {"error: externally-managed-environment", "apt-get update"}
    assert [part for part in parts if " " in part and part not in known and part not in ours] == []


def verbs() -> dict[str, set[str]]:
    """Each verb with its long options; a verb of a group under both words, as in `profile new`."""
    found: dict[str, set[str]] = {}

    def walk(name: str, command: click.Command) -> None:
        if name:
            given = (each for option in command.params for each in [*option.opts, *option.secondary_opts])
            found[name] = {each for each in given if each.startswith("--")} | {"--help"}
        for word, each in command.commands.items() if isinstance(command, click.Group) else ():
            walk(f"{name} {word}".strip(), each)

    walk("", group)
    return found


def calls(text: str) -> Iterator[str]:
    """What a page's code says of `quickstart`: a line of a block with those that continue it, or a span."""
    joined = re.sub(r"\n {8,}(?=\[)", " ", text)
    yield from re.findall(r"^(?: {4,}|[ -]*run: )(?:\S*/)?(quickstart (?!.*/ )[^#\n]*)", joined, re.MULTILINE)
    yield from re.findall(r"`(quickstart [^`]+)`", _FENCED.sub("", text))


def unknown_options(text: str) -> Iterator[str]:
    """Options that a page gives to a verb that has none of that name, and options on their own that no verb has."""
    known = verbs()
    for call in calls(text):
        words = re.sub(r"\s+", " ", call).split(" ")[1:]
        verb = next((name for name in (" ".join(words[:2]), words[0]) if name in known), None)
        command = call.split(" | ")[0].split(" && ")[0]
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", command) if verb else ():
            if option not in known[verb or ""]:
                yield f"{verb} {option}"
    every = set().union(*known.values())
    for option in re.findall(r"`(--[a-z][a-z-]*)[^`]*`", _FENCED.sub("", text)):
        if option not in every | _OTHERS_OPTIONS:
            yield option


# Options of other programs that pages name on their own: debootstrap's, strace's, pip's.
_OTHERS_OPTIONS = {"--foreign", "--second-stage", "--seccomp-bpf", "--force-reinstall", "--test", "--move"}


def test_every_option_that_a_page_names_is_there() -> None:
    found = [*pages(DOCS), CHECKOUT / "README.md", CHECKOUT / "bench/results/README.md"]
    assert sum(1 for page in found for _ in calls(page.read_text())) > 80
    assert [f"{page.name}: {each}" for page in found for each in unknown_options(page.read_text())] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    quickstart run OUT --check", []),
        ("    quickstart run OUT --chekc", ["run --chekc"]),
        ("    .venv/bin/quickstart run OUT --wait  # --check", ["run --wait"]),
        (
            "    quickstart build --profile P [--rootfs DIR]\n                     [--nothing]",
            ["build --nothing"],
        ),
        ("`quickstart profile new --package P --threshold`", ["profile new --threshold"]),
        ("`quickstart bench compare --across-versions`", []),
        ("```yaml\n    - run: quickstart verify OUT --snapshot\n```", ["verify --snapshot"]),
        ("Give `--no-such-thing`.", ["--no-such-thing"]),
        ("Give `--snapshot`.", []),
        ("    quickstart status [--json]", []),
    ],
)
def test_which_options_are_unknown(text: str, said: list[str]) -> None:
    assert list(unknown_options(text)) == said


# Files of a user, of a machine or of another project, which pages name as if they were ours.
_NOT_OURS = {"NAME.toml", "MATRIX.toml", "profile.toml", "ssd.toml", "matrix.toml", "bench/storage/NAME.toml"}
_NOT_OURS |= {"bench/storage/ssd.toml", "run.sh", "OUT/run.sh", "web/run.sh", "mkfs.erofs"}


def missing_files(text: str, ours: list[str]) -> Iterator[str]:
    """Source files that a page names in code and that no path of ours ends with."""
    for name in re.findall(r"`([\w./-]+\.(?:py|c|h|sh|toml))`", _FENCED.sub("", text)):
        if (
            name not in _NOT_OURS
            and not name.startswith("/")
            and not any(path.endswith("/" + name) for path in ours)
        ):
            yield name


def test_every_source_file_that_a_page_names_is_there() -> None:
    tops = [path for path in CHECKOUT.iterdir() if _OURS_ONLY.match(path.name)]
    files = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
    ours = [f"/{path.relative_to(CHECKOUT)}" for path in files]
    # The changelog may name what a later version has removed.
    named = [page for page in pages(CHECKOUT) if page.name != "CHANGELOG.md"]
    assert [f"{page.name}: {each}" for page in named for each in missing_files(page.read_text(), ours)] == []


def test_which_source_files_are_missing() -> None:
    text = "`a/b.py`, `b.py`, `c.py`, `/etc/x.toml`, `profile.toml`, c.py\n```\n`d.py`\n```\n"
    assert list(missing_files(text, ["/quickstart/a/b.py"])) == ["c.py"]


def test_the_changelog_begins_with_our_version() -> None:
    versions = re.findall(r"^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert versions[1] == __version__
    assert tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"] == __version__
    assert f"this page describes {__version__}." in (DOCS / "users/install.md").read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[a](there.md)", []),
        ("[a](there.md#one-heading)", []),
        ("[a](#here)", []),
        ("[a](../README.md)", []),
        ("[a](https://example.org/nowhere.md)", []),
        ("`[a](nowhere.md)`", []),
        ("```\n[a](nowhere.md)\n```", []),
        ("[`a`](nowhere.md)", ["docs/page.md: nowhere.md: no such file"]),
        ("![a](nowhere.svg)", ["docs/page.md: nowhere.svg: no such file"]),
        ("[a]: nowhere.md", ["docs/page.md: nowhere.md: no such file"]),
        ("[a](there.md#another)", ["docs/page.md: there.md#another: no such heading"]),
        ("[a](../../outside.md)", ["docs/page.md: ../../outside.md: no such file"]),
    ],
)
def test_what_a_link_may_be(line: str, said: list[str], tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    page = checkout / "docs/page.md"
    page.parent.mkdir(parents=True)
    (tmp_path / "outside.md").write_text("")
    (checkout / "README.md").write_text("")
    (checkout / "docs/there.md").write_text("# One `heading`\n")
    page.write_text(f"# Here\n\n{line}\n")
    assert list(faults(page, checkout)) == said


def test_names_of_headings() -> None:
    text = "# The form: `--payload`\n## Twice\n## Twice\n```\n# no heading\n```\n### See [a page](a.md) (it's 2)\n"
    assert anchors(text) == {"the-form---payload", "twice", "twice-1", "see-a-page-its-2"}


def test_pages_are_those_of_the_checkout(tmp_path: Path) -> None:
    for name in ("README.md", "docs/a/b.md", ".venv/c.md", "quickstart-web/d.md", "dist/e.md", "docs/f.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert pages(tmp_path) == [tmp_path / "README.md", tmp_path / "docs/a/b.md"]
