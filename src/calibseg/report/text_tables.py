r"""A comparison of methods as a table for a paper: CSV, Markdown or LaTeX; best in bold, second best underlined.

Places are judged by the digits that are printed, so two methods that print the same share a place. Beside ours can
stand the values of a paper: a frame with the columns dataset, method (or loss and calibrator), metric, value.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from calibseg.analysis.case_values import method_names
from calibseg.analysis.columns import ALL, MEAN, Frame
from calibseg.analysis.paper_values import known_papers, paper_values
from calibseg.analysis.table import ScoreTable
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import PLACE, means, places
from calibseg.report.palette import shown_method, shown_metric

Form = Literal["md", "latex", "csv"]
Interval = Literal["none", "beside"]
LATEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
         "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
         "†": r"$^\dagger$"}  # fmt: skip
DIGITS = {"hd": 2, "hd95": 2, "asd": 2, "assd": 2}  # lengths; everything else has three


def comparison(table: ScoreTable, metrics: Sequence[str], paper: Frame | None = None) -> Frame:
    """The means with the place by printed digits, and the paper's value where there is one, else NaN."""
    rows_of_means = means(table, metrics)
    digits = [digits_of(metric) for metric in rows_of_means["metric"]]
    printed = np.array([round(value, places) for value, places in zip(rows_of_means["mean"], digits, strict=True)])
    signed = np.where(rows_of_means["higher_is_better"], -printed, printed)
    rows_of_means["place"] = np.nan
    for rows in rows_of_means.groupby([*PLACE, "metric"], sort=False).indices.values():
        lacking = (rows_of_means["cases"] - rows_of_means["defined"]).to_numpy()[rows]
        rows_of_means.iloc[rows, rows_of_means.columns.get_loc("place")] = places(signed[rows], lacking)
    if paper is None:
        return rows_of_means.assign(paper=np.nan)
    return rows_of_means.merge(_beside(paper), on=["dataset", "method", "metric"], how="left")


def _beside(paper: Frame) -> Frame:
    """A paper's values by dataset, method and metric, in the column `paper`."""
    if "method" not in paper.columns and {"loss", "calibrator"} <= set(paper.columns):
        paper = paper.assign(method=method_names(paper.assign(variant="")).astype(str))
    keys = ["dataset", "method", "metric"]
    for column in (*keys, "value"):
        if column not in paper.columns:
            raise BadInput(f"the paper's values have no column {column!r}, only {', '.join(map(str, paper.columns))}")
    if "class" in paper.columns:  # a row per class is no row of this table
        paper = paper[paper["class"].isin([ALL, MEAN])]
    return paper.drop_duplicates(keys)[[*keys, "value"]].rename(columns={"value": "paper"})


def read_paper(name: Path | str) -> Frame:
    """The values of a paper: the name of a packaged table (`nacl-table1`), or a CSV of one's own."""
    path = Path(name)
    if str(name) in known_papers():
        return paper_values(str(name))
    if not path.is_file():
        raise BadInput(f"{registry.unknown('paper table', str(name), known_papers())}; nor is it a CSV file")
    try:
        types: Any = {"dataset": str, "method": str, "metric": str, "value": float}
        return pd.read_csv(path, dtype=types, keep_default_na=False, na_values={"value": ["", "nan"]})
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise BadInput(f"{path} cannot be read as a CSV of a paper's values: {error}") from error


def typeset(means: Frame, form: Form = "md", interval: Interval = "beside") -> str:
    """The text of a table of `comparison`; interval: the 95 % patient-bootstrap interval after each mean."""
    if form == "csv":
        return means.to_csv(index=False, na_rep="nan", lineterminator="\n")
    head, rows = _cells(means, interval, MARKS[form])
    notes = [MARKS[form].plain(note) for note in undefined_notes(means)]
    return _markdown(head, rows, notes) if form == "md" else _latex(head, rows, notes)


def undefined_notes(means: Frame) -> list[str]:
    """A footnote for each metric that is undefined for some method in cases where another has a value."""
    notes = []
    for metric, part in means[means["defined"] < means["cases"]].groupby("metric", sort=False):
        rows = part.to_dict("records")
        who = ", ".join(f"{shown_method(str(row['method']))} {row['defined']} of {row['cases']}" for row in rows)
        notes.append(f"† {shown_metric(str(metric))}, cases defined: {who}; the others take the column's worst value.")
    return notes


class Marks(NamedTuple):
    """How a form marks the best and the second, and what it does to plain text."""

    best: str
    second: str
    interval: str
    special: dict[str, str]

    def plain(self, text: str) -> str:
        return "".join(self.special.get(letter, letter) for letter in text)


MARKS = {
    "md": Marks(
        "**{}**", "<u>{}</u>", " ({}–{})",
        {"|": r"\|", "<": "&lt;", ">": "&gt;", "&": "&amp;", "*": r"\*", "_": r"\_", "`": r"\`", "\n": " "},
    ),
    "latex": Marks(r"\textbf{{{}}}", r"\underline{{{}}}", r" {{\scriptsize({}--{})}}", LATEX),
}  # fmt: skip


def digits_of(metric: str) -> int:
    return DIGITS.get(metric.partition("@")[0], 3)


def _cells(means: Frame, interval: Interval, marks: Marks) -> tuple[list[str], list[list[str]]]:
    metrics = list(dict.fromkeys(means["metric"]))
    beside = {metric: bool(means.loc[means["metric"] == metric, "paper"].notna().any()) for metric in metrics}
    better = {metric: bool(means.loc[means["metric"] == metric, "higher_is_better"].iloc[0]) for metric in metrics}
    shown = [column for column in PLACE if means[column].nunique() > 1]
    head = [*(marks.plain(column) for column in shown), "method"]
    for metric in metrics:
        head += [marks.plain(shown_metric(metric, better[metric])), *(["paper"] if beside[metric] else [])]
    rows = []
    for key, part in means.groupby([*PLACE, "method"], sort=False):
        named = dict(zip([*PLACE, "method"], key, strict=True))
        row = [*(marks.plain(str(named[column])) for column in shown), marks.plain(shown_method(str(named["method"])))]
        values = part.set_index("metric")
        for metric in metrics:
            one = values.loc[metric] if metric in values.index else None
            row.append("" if one is None else _cell(one, digits_of(metric), interval, marks))
            if beside[metric]:
                row.append("" if one is None or np.isnan(one["paper"]) else f"{one['paper']:.{digits_of(metric)}f}")
        rows.append(row)
    return head, rows


def _cell(one: Frame, digits: int, interval: Interval, marks: Marks) -> str:
    if np.isnan(one["mean"]):
        return "–" if marks.special is not LATEX else "--"
    text = f"{one['mean']:.{digits}f}"
    if one["place"] <= 2:
        text = (marks.best if one["place"] == 1 else marks.second).format(text)
    if one["defined"] < one["cases"]:
        text += "†" if marks.special is not LATEX else r"$^\dagger$"
    if interval == "none" or np.isnan(one["low"]):
        return text
    return text + marks.interval.format(f"{one['low']:.{digits}f}", f"{one['high']:.{digits}f}")


def _markdown(head: list[str], rows: list[list[str]], notes: list[str]) -> str:
    numbers = len(head) - 1 - head.index("method")
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *rows]) + "".join(f"\n{n}\n" for n in notes)


def _latex(head: list[str], rows: list[list[str]], notes: list[str]) -> str:
    numbers = len(head) - 1 - head.index("method")
    lines = [rf"\begin{{tabular}}{{{'l' * (len(head) - numbers)}{'r' * numbers}}}", r"\toprule"]
    lines += [" & ".join(head) + r" \\", r"\midrule", *(" & ".join(row) + r" \\" for row in rows)]
    lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par{{\footnotesize {note}}}" for note in notes)]
    return "\n".join(["% needs \\usepackage{booktabs}", *lines]) + "\n"
