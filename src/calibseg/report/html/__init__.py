"""The report: ONE file that opens offline in any browser and shows everything that was found.

`report(sources, "report.html")` reads score tables, runs or a benchmark's folder and writes a page with tables,
figures and the worst cases in it. Nothing is fetched when it is opened: style, script, data and pictures are inside,
and a content policy in the page forbids the rest. The same sources give the same bytes.

What is chosen on which data is said on the page: the recommended method by validation (analysis/recommendation.py; in
words: verdict.py), its test value as the headline; the best test value is called the oracle's.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from calibseg import __version__
from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.evidence import gather
from calibseg.analysis.paper_values import paper_values
from calibseg.analysis.recommendation import Recommendation
from calibseg.core.files import check_output, write_text
from calibseg.core.registry import PACKAGE
from calibseg.report import palette
from calibseg.report.html import tables as report_tables
from calibseg.report.html.content import content
from calibseg.report.html.verdict import reasons

PAGE = PACKAGE / "report" / "html" / "page"
DIGITS = 6  # significant digits of a number in a figure: more than a screen shows, and half the bytes


@dataclass(frozen=True)
class Report:
    """What was written, for whoever has to say it."""

    path: Path
    bytes: int
    figures: tuple[str, ...]
    cases: int
    warnings: tuple[str, ...]
    recommended: tuple[Recommendation, ...]
    failed: tuple[str, ...]  # checks of the first screen, as sentences


def report(
    sources: Sequence[Path | str], output: Path | str, title: str | None = None, paper: Frame | None = None
) -> Report:
    """Write a report about score tables, run folders, or a benchmark's folder.

    title, paper: default: as a benchmark's grid says
    paper: a table of printed values (paper_values.py) to stand beside ours
    """
    check_output(Path(output), (".html", ".htm"))
    evidence = gather(sources, voxels="predicted", **{"class": ALL})
    stated = evidence.stated or {}
    if paper is None and "paper" in stated:
        paper = paper_values(stated["paper"])
    made = content(evidence, title or stated.get("title"), paper)
    text = render(made.page, made.data)
    write_text(Path(output), text)
    ids = tuple(figure["id"] for figure in made.data["figures"])
    cases, failed = len(made.data["cases"]), tuple(reasons(made.verdicts))
    return Report(Path(output), len(text.encode()), ids, cases, made.warnings, made.choices, failed)


def render(page: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The page as text. What comes from data is escaped by jinja2, or lies in JSON that no tag can end."""
    script, style = ((PAGE / name).read_text(encoding="utf-8") for name in ("script.js", "style.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": report_tables.number,
        "label": report_tables.label,
        "method": palette.shown_method,
    }
    whole = {"script": Markup(script), "style": Markup(style), "data": Markup(embedded(data))}
    template = environment.get_template("page.html.j2")
    return template.render(**page, **whole, script_hash=digest, version=__version__)


def embedded(data: Any) -> str:
    r"""JSON that can stand in a script element: no `<` that could end it; undefined numbers are null.

    >>> embedded({"case": "</script><b>", "value": float("nan"), "mean": 0.123456789})
    '{"case":"\\u003c/script\\u003e\\u003cb\\u003e","value":null,"mean":0.123457}'
    """
    text = json.dumps(_plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    unsafe = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate(str.maketrans(unsafe))


def _plain(value: Any) -> Any:
    """Numbers as JSON knows them: few digits, no NaN, nothing of numpy's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):  # numpy's float64 is one too
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else value.item()
