"""Gather the pages of the site: docs/, a page for every member of every family, commands, glossary, leaderboards.

    make docs                         # gathers into build/site-pages, draws the pictures and runs mkdocs, into site/
    python scripts/site.py            # the same; --pages: gathers only

A member's page is its own docstring with its options, so that what the code says and what the site says is one text.
Equations become MathML here: a browser shows them without a script and without a network.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gallery
import site_figures
import typer
from latex2mathml.converter import convert

from calibseg.analysis import leaderboard
from calibseg.core import registry
from calibseg.report.leaderboard import markdown

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "site-pages"
GALLERY = ROOT / "build" / "gallery"  # the runs behind the gallery's pictures
ROWS = ROOT / "docs" / "leaderboard"
TITLES = {"losses": "Losses", "priors": "Priors", "metrics": "Metrics", "calibrators": "Calibrators",
          "decisions": "Decisions", "networks": "Networks", "datasets": "Datasets"}  # fmt: skip
START = ("score-a-folder.md", "repair.md", "train-in-monai.md", "view-a-scan.md", "decisions.md", "raters.md",
         "papers.md", "add-a-member.md")  # fmt: skip
UNDERSTAND = ("what-ece-means.md", "choosing.md", "read-the-report.md", "gallery.md", "glossary.md")
FACTS = ("licence", "how_to_get", "layout", "classes", "channels", "regions", "split", "protocol", "citation")
MATHS = re.compile(r"(```.*?```|`[^`\n]+`)|\$\$(.+?)\$\$|(?<![\\$\w])\$([^$\n]+?)\$(?![\w$])", re.S)
DOCTEST = re.compile(r"(?:^>>> .*\n(?:^(?!>>> |\n).*\n?|^>>> .*\n?)*)", re.M)


def build(pages: Path = PAGES) -> Path:
    """Write every page into an empty folder."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for source in sorted((ROOT / "docs").rglob("*")):
        if source.suffix in (".md", ".png", ".svg", ".css"):
            _copy(source, pages / source.relative_to(ROOT / "docs"))
    for name in ("CONTRIBUTING", "ARCHITECTURE", "CHANGELOG"):
        _copy(ROOT / f"{name}.md", pages / f"{name.lower()}.md")
    for family in registry.families():
        _family(family, pages / "reference" / family)
    _write(pages / "glossary.md", _glossary())
    _write(pages / "reference" / "commands.md", _commands())
    _write(pages / "reference" / "python.md", _python())
    for name, more in (("gallery.md", gallery.page()), ("leaderboard.md", _leaderboard())):
        with (pages / name).open("a", encoding="utf-8") as file:
            file.write(more)
    return pages


def draw(pages: Path) -> None:
    """The pictures of members and of the gallery; the larger part of its runs is trained in another process."""
    shutil.rmtree(GALLERY, ignore_errors=True)
    GALLERY.mkdir(parents=True)
    here = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with (GALLERY / "training.log").open("w") as log:
        words = [sys.executable, str(Path(gallery.__file__)), str(GALLERY), "bench"]
        training = subprocess.Popen(words, env=here, stdout=log, stderr=log)
        try:
            site_figures.draw_all(pages / "reference")
            with contextlib.redirect_stdout(log):
                gallery.train(GALLERY, gallery.OTHERS)
        finally:
            failed = training.wait()
    if failed:
        raise SystemExit(f"the gallery's runs failed, see {GALLERY / 'training.log'}")
    (pages / "gallery").mkdir()
    gallery.draw(GALLERY, pages / "gallery")
    shutil.copyfile(GALLERY / "bench" / "report.html", pages / "gallery" / "report.html")


def maths(text: str) -> str:
    """Equations as MathML; code is left alone.

    >>> maths("the loss $x$, not `$x$`").count("<math")
    1
    """

    def one(found: "re.Match[str]") -> str:
        code, block, inline = found.groups()
        if code:
            return code
        made = convert(" ".join((block or inline).split()), display="block" if block else "inline")
        return f'\n\n<div style="overflow-x: auto">{made}</div>\n\n' if block else made

    return MATHS.sub(one, text)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != ".md":
        shutil.copyfile(source, target)
        return
    text = source.read_text(encoding="utf-8")
    text = re.sub(r"\]\((?:\.\./)*(CONTRIBUTING|ARCHITECTURE|CHANGELOG)\.md", _moved(target), text)
    text = text.replace("](docs/", "](")
    outside = r"\[([^\]]+)\]\((?:\.\./)+(?:README\.md|src/|examples/|benchmarks/|tests/)[^)]*\)"
    text = re.sub(outside, r"\1", text)  # a link that leads out of the site becomes its words
    _write(target, re.sub(r"<!-- not run: [^>]+ -->\n", "", text))


def _moved(target: Path) -> "object":
    up = "../" * (len(target.relative_to(PAGES).parts) - 1) if target.is_relative_to(PAGES) else ""
    return lambda found: f"]({up}{found[1].lower()}.md"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(maths(text), encoding="utf-8")


def _family(family: str, folder: Path) -> None:
    """The list of a family, and a page for each of its members."""
    members = registry.members(family)
    lines = [f"# {TITLES.get(family, family.title())}\n", f"`calibseg list {family}` prints the same.\n"]
    lines += ["| key | what it is |", "| --- | --- |"]
    for key, summary in registry.summaries(family).items():
        lines.append(f"| [`{key}`]({key}.md) | {_cell(summary)} |")
        _write(folder / f"{key}.md", _member(members[key]))
    _write(folder / "index.md", "\n".join(lines) + "\n")


def _member(member: registry.Member) -> str:
    summary, _, rest = member.doc.strip().partition("\n")
    name = member.facts.get("acronym") or member.class_name
    parts = [f"# {name}\n", f"`{registry.SINGULAR[member.family]}:{member.key}` · **{summary.strip()}**\n"]
    picture = f"![what {member.key} does]({member.key}.svg)\n\n{site_figures.CAPTIONS[member.family]}"
    parts += [_sections(rest.strip()), "\n## What it does\n", picture]
    if member.options:
        parts += ["\n## Options\n", "| option | default | type | meaning and range |", "| --- | --- | --- | --- |"]
        parts += [
            f"| `{one.name}` | `{_cell(one.default)}` | `{_cell(one.type)}` | {_cell(one.note)} |"
            for one in member.options
        ]
    if member.family == "datasets":
        parts.append("")
        for fact in FACTS:
            if fact in member.facts:
                value = member.facts[fact]
                shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
                parts.append(f"**{fact.replace('_', ' ').capitalize()}.** {shown}\n")
    parts.append(f"\n## Use\n\n```python\n{_use(member)}\n```\n\n`calibseg explain {member.key}` prints this page.\n")
    return "\n".join(parts)


def _sections(text: str) -> str:
    """A docstring as Markdown: doctests are code, and `Paper:`, `Differs:` stand out."""
    text = DOCTEST.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", text + "\n")
    return re.sub(r"^(Paper|Differs|Absent rows|Undefined|Here): ", r"\n**\1.** ", text, flags=re.M)


def _use(member: registry.Member) -> str:
    if member.family == "losses":
        from calibseg.cli.usage import usage

        return "\n".join(usage(member)[1])
    if member.family == "metrics":
        return (
            f'from calibseg import measure\n\nmeasure(scores, labels, kind="logits", metrics=("{member.key}",)).values'
        )
    package = {"priors": "calibseg.losses.priors"}.get(member.family, f"calibseg.{member.family}")
    return f"from {package} import {member.class_name}"


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _glossary() -> str:
    """The words of ARCHITECTURE.md, which is their home."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return "# Glossary\n" + text.partition("## Glossary")[2].partition("\n## ")[0]


def _leaderboard() -> str:
    """A table for each benchmark, from the rows in docs/leaderboard."""
    parts = []
    for name in leaderboard.benchmarks():
        to = leaderboard.benchmark(name)
        rows = leaderboard.standings(leaderboard.entries(ROWS, to), to)
        said = f"\n## {to.title}\n\nScored with `calibseg score {to.score}` against {to.labels}.\n"
        parts += [said, markdown(rows, to) if rows else "Nobody has added a row yet.", ""]
    return "\n".join(parts)


def _commands() -> str:
    """Every command with its options, as `--help` says them."""
    from calibseg.cli import app

    parts = ["# Commands\n"]
    for name, command in sorted(_verbs(typer.main.get_command(app))):
        parts += [
            f"\n## calibseg {name}\n",
            f"{command.help or ''}\n",
            "| option | default | meaning |",
            "| --- | --- | --- |",
        ]
        for one in command.params:
            if getattr(one, "hidden", False) or one.name == "help":
                continue
            said = ", ".join(f"`{word}`" for word in one.opts)
            default = "" if one.default in (None, "", (), []) or callable(one.default) else f"`{one.default}`"
            parts.append(f"| {said} | {default} | {_cell(getattr(one, 'help', '') or '')} |".replace("\\\\[", "["))
        examples = (command.epilog or "").replace("[bold]", "").replace("[/]", "").removeprefix("Examples:")
        parts += ["", *(f"- `{word.strip()}`" for word in examples.split("·") if word.strip())]
    return "\n".join(parts) + "\n"


def _verbs(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its words: `rank`, `nnunet calibrate`."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from _verbs(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _python() -> str:
    """The front door, which mkdocstrings reads from the source."""
    names = ("calibseg.api.in_memory.measure", "calibseg.api.in_memory.Measured", "calibseg.api.stages",
             "calibseg.calibrators.Calibrator", "calibseg.core.types.Prediction", "calibseg.core.types.Case",
             "calibseg.core.types.Split", "calibseg.core.types.BadInput")  # fmt: skip
    return "# Python\n\n" + "\n".join(f"::: {name}\n" for name in names)


def navigation(pages: Path) -> str:
    """mkdocs' configuration: the sections of the site; a page that none of them names stands under More."""
    placed = ["index.md", *START, *UNDERSTAND]
    results = ["leaderboard.md", *sorted(f"results/{path.name}" for path in (pages / "results").glob("*.md"))]
    more = [path.name for path in sorted(pages.glob("*.md")) if path.name not in (*placed, "leaderboard.md")]
    families = [name for name in TITLES if (pages / "reference" / name).is_dir()]
    families += [
        path.name for path in sorted((pages / "reference").iterdir()) if path.is_dir() and path.name not in TITLES
    ]
    lines = ["INHERIT: ../mkdocs.yml", f"docs_dir: {pages.name}", "site_dir: ../site", "nav:", "  - Home: index.md"]
    for title, names in (("Start", START), ("Understand", UNDERSTAND), ("Results", results), ("More", more)):
        lines += [f"  - {title}:", *(f"      - {name}" for name in names if (pages / name).is_file())]
    lines += ["  - Reference:", "      - Commands: reference/commands.md", "      - Python: reference/python.md"]
    for family in families:
        keys = sorted(path.name for path in (pages / "reference" / family).glob("*.md") if path.name != "index.md")
        lines += [f"      - {TITLES.get(family, family.title())}:", f"          - reference/{family}/index.md"]
        lines += [f"          - reference/{family}/{name}" for name in keys]
    return "\n".join(lines) + "\n"


def offline(site: Path) -> None:
    """What the theme would fetch so that a folder can be searched is taken from docs/vendor."""
    shutil.copyfile(ROOT / "docs" / "vendor" / "iframe-worker.js", site / "assets" / "iframe-worker.js")
    for page in site.rglob("*.html"):
        up = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/iframe-worker.js"), "utf-8")


def missing(site: Path) -> list[str]:
    """Pictures and pages that a page names and that are not there; a server's 404 page is no page of a folder."""
    return [
        f"{page.relative_to(site)}: {name}"
        for page in sorted(site.rglob("*.html"))
        for name in re.findall(r'(?:src|href)="([^"#?:]+)(?=["#?])', page.read_text(encoding="utf-8"))
        if page.name != "404.html" and not (page.parent / name).exists()
    ]


def main() -> int:
    pages = build()
    (pages.parent / "mkdocs.yml").write_text(navigation(pages), encoding="utf-8")
    print(f"{len(list(pages.rglob('*.md')))} pages in {pages}")
    if "--pages" in sys.argv:
        return 0
    draw(pages)
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(pages.parent / "mkdocs.yml")]
    done = subprocess.run(words, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode == 0:
        offline(ROOT / "site")
        if lost := missing(ROOT / "site"):
            raise SystemExit(f"{len(lost)} links lead nowhere, the first is {lost[0]}")
        print(f"site: {ROOT / 'site' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
