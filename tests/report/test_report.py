"""The report's content: what stands on the page, what is left out, and that no text can break out of it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from calibseg.analysis import table
from calibseg.analysis.evidence import _stated, gather
from calibseg.analysis.ranking import rank
from calibseg.cli import app
from calibseg.core.types import BadInput
from calibseg.report.html import embedded, render, report
from calibseg.report.html.content import _case_values, content
from calibseg.report.html.groups import comparison_groups
from calibseg.report.html.tables import Cell, Section, number
from calibseg.runs.folders import RunFolder
from calibseg.runs.info import read_run, write_run
from support.reporting import CASES, data_of, run, scores, study

EVIL = "</script><script>alert(1)</script><b>&\"'"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(made):
    report([made], made / "report.html")
    return (made / "report.html").read_text(encoding="utf-8")


class Words(HTMLParser):
    """What a reader sees: the text outside style and script, by the id of the table it stands in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: set[str] = set()
        self.words, self.table, self.silent = [], "", False
        self.feed(text.replace("<wbr>", ""))

    def handle_starttag(self, tag, attrs):
        about = dict(attrs)
        self.ids |= {about["id"]} if about.get("id") else set()
        if tag == "table":
            self.table = about.get("id") or ""
        if tag == "tr" and self.table:
            self.tables.setdefault(self.table, []).append([])
        if tag in ("td", "th") and self.tables.get(self.table):
            self.tables[self.table][-1].append("")
        self.silent = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.table = "" if tag == "table" else self.table
        self.silent = False

    def handle_data(self, data):
        if not self.silent:
            self.words.append(data)
            if self.table and self.tables.get(self.table) and self.tables[self.table][-1]:
                self.tables[self.table][-1][-1] += data.strip() + " "


def test_the_headline_has_every_method_with_its_mean_and_interval(page):
    rows = {row[0].split()[0]: row for row in Words(page).tables["table-headline"][1:]}
    assert set(rows) == {"CE", "CE+temperature", "NACL", "NACL+temperature", "CRaC", "CRaC+temperature"}
    assert rows["CE"][1].split() == ["0.200", "0.190", "–", "0.210"]  # ECE on predicted: the cases are 0.19 and 0.21
    assert rows["CE"][4].split()[0] == "0.800"


def test_best_is_bold_and_second_underlined(page):
    line = next(row for row in page.split("<tr ")[1:] if 'data-method="crac+temperature"' in row)
    assert 'class="num best" data-value="0.025' in line
    line = next(row for row in page.split("<tr ")[1:] if 'data-method="crac"' in row)
    assert 'class="num second" data-value="0.05' in line


def test_the_recommended_method_is_chosen_on_validation_and_the_oracle_is_named(page):
    words = " ".join(" ".join(Words(page).words).split())
    assert "Smallest validation NLL (0.250) among the 2 methods" in words  # crac's DSC is too low
    assert "Oracle: CRaC+temperature has the smallest NLL on test, 0.180" in words
    assert page.count('class="badge">chosen on validation') == 1


def test_the_three_voxel_rules_stand_side_by_side_with_their_meanings(page):
    words = Words(page)
    head, first = words.tables["table-rules"][:2]
    assert [cell.split()[-1] for cell in head[1:]] == ["foreground", "foreground", "voxels"]
    assert [cell.split()[0] for cell in first[1:]] == ["0.100", "0.200", "0.0200"]
    assert "even a perfect predictor does not score 0 here" in " ".join(words.words)


def test_every_figure_has_its_place_on_the_page_and_its_data(page):
    drawn = {figure["id"]: figure for figure in data_of(page)["figures"]}
    assert set(drawn) == {"trade-off", "reliability-predicted", "balance", "distance", "sum-rank", "mean-case-rank",
                          "differences", "radar", "every-case", "training", "multipliers", "interior", "logits",
                          "shift", "risk-coverage"}  # fmt: skip
    assert {f"figure-{name}" for name in drawn} <= Words(page).ids
    curve = drawn["reliability-predicted"]["panels"][0]
    assert [series["method"] for series in curve["series"]] == ["ce", "ce+temperature"]
    assert [point["y"] for point in curve["series"][0]["points"]] == [0.0, 0.1, 0.3, 0.5, 0.7]  # middle - 0.2
    balance = {row["method"]: row for row in drawn["balance"]["panels"][0]["rows"]}
    assert (balance["ce"]["over"], balance["ce"]["under"], balance["ce"]["gap"]) == (0.15, 0.05, 0.1)
    sigma = [point["what"] for point in drawn["shift"]["panels"][0]["series"][0]["points"]]
    assert sigma == ["σ = 0", "σ = 0.1"]


def test_cost_and_what_was_fitted_on_what_come_from_the_runs(page):
    tables = Words(page).tables
    assert [cell.strip() for cell in tables["table-cost"][1]] == [
        "ce-s0", "CE", "toy", "unet", "0", "3", "2", "1.5", "30.0", "512", "12", "cpu"]  # fmt: skip
    fitted = [[cell.strip() for cell in row] for row in tables["table-fitted"]]
    assert ["crac-s0", "multipliers λ and ρ", "validation, 2 cases"] in fitted
    assert ["ce-s0", "checkpoint (epoch 2)", "validation, 2 cases, by miou"] in fitted


def test_sections_without_data_are_left_out(tmp_path):
    found = report([scores(tmp_path / "scores.csv")], tmp_path / "report.html")
    words = Words((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert {"headline", "rules", "reliability"} <= words.ids
    assert words.ids.isdisjoint({"paper", "robustness", "training", "viewer", "cost", "warnings"})
    assert (found.cases, found.recommended) == (0, ())


def test_a_table_without_bins_has_no_reliability_diagram_but_a_report(tmp_path):
    path = scores(tmp_path / "scores.csv")
    (tmp_path / "bins.csv").unlink()
    assert "reliability-predicted" not in report([path], tmp_path / "report.html").figures


def test_html_in_names_stays_text(tmp_path):
    where = run(tmp_path / "runs" / "a", EVIL)
    (where / "logits" / "test" / "case_0.npz").unlink()
    scores(where / "scores-test.csv", EVIL, cases=[EVIL, "case_1"], dataset=EVIL)
    scores(where / "scores-validation.csv", EVIL, cases=["v"], dataset=EVIL, subset="validation")
    report([where], tmp_path / "report.html", title=EVIL)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>") == 2  # the data and the one script
    assert Words(text).tables["table-headline"][1][0].startswith(EVIL)
    assert data_of(text)["methods"][0]["name"] == EVIL


def test_a_case_id_with_html_in_it_is_shown_as_text():
    shown = {"place": "toy", "case": EVIL, "why": EVIL}
    empty = content_of_nothing() | {"cases": [shown]}
    text = render(empty, {"cases": [shown]})
    assert "<script>alert" not in text
    assert EVIL in "".join(Words(text).words)
    assert data_of(text)["cases"][0]["case"] == EVIL


def content_of_nothing() -> dict:
    words = (
        "facts verdicts remarks headline columns rule_rows rule_columns rule_notes paper paper_keys cost fitted"
        " versions sources warnings cases cases_notes"
    )
    figures = dict.fromkeys(("headline", "reliability", "ranks", "robustness", "training", "failure", "cases"), ())
    nothing = {"title": "t", "several": False, "many": False, "methods_text": None, "ranks": {}, "figures": figures}
    nothing |= {"failure": Section(None, (), ()), "raters": Section(None, (), ())}
    return dict.fromkeys(words.split(), ()) | nothing


def test_json_survives_line_separators_and_undefined_numbers():
    text = embedded({"a": "\u2028&<", "b": [np.float64("inf"), np.int64(3), np.float64(0.1)]})
    assert not set("\u2028&<") & set(text)
    assert json.loads(text) == {"a": "\u2028&<", "b": [None, 3, 0.1]}


def test_the_same_sources_give_the_same_bytes(made, tmp_path):
    for name in ("a.html", "b.html"):
        report([made], tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_the_page_allows_no_request_and_only_its_own_script(page):
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)


def test_tables_and_figures_of_ten_methods_with_a_calibrator_take_less_than_a_megabyte(tmp_path):
    ten = [f"c{number}" for number in range(10)]
    for index in range(10):
        for calibrator in ("", "temperature"):
            path = tmp_path / f"m{index}{calibrator}.csv"
            scores(path, f"m{index}", 0.01 * (index + 1), calibrator=calibrator, cases=ten)
    tables = [path for path in sorted(tmp_path.glob("*.csv")) if ".bins" not in path.name]
    assert report(tables, tmp_path / "report.html").bytes < 1_000_000


def test_undefined_values_are_marked_and_named(tmp_path):
    first = scores(tmp_path / "a.csv", "ce", undefined="case_1")
    second = scores(tmp_path / "b.csv", "nacl")
    found = report([first, second], tmp_path / "report.html")
    assert found.warnings == ("HD95 of core in toy is undefined in some cases (how many: ce 1)",)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("3 of 4 defined") == 3  # in the table, and on the first screen in a card and in its class


def test_a_column_that_no_case_has_is_undefined_and_warns_nobody():
    values = np.array([[[np.nan, 1.0], [np.nan, 3.0]]])  # [metric, case, method]
    data = SimpleNamespace(values=values, methods=["a", "b"], higher_is_better=np.array([True]))
    means = _case_values(SimpleNamespace(data=data))["means"]  # pyright: ignore
    assert means == [[pytest.approx(np.nan, nan_ok=True), 2.0]]


def test_a_table_with_other_rules_is_left_out_and_named(tmp_path):
    first = scores(tmp_path / "a.csv", "ce")
    second = scores(tmp_path / "b.csv", "nacl", bins=10)
    found = report([first, second], tmp_path / "report.html")
    assert len(found.warnings) == 1
    assert "b.csv was scored by other rules" in found.warnings[0]
    assert "bins is 10 in it, not 5" in found.warnings[0]


def test_methods_scored_on_other_cases_have_values_but_neither_place_nor_rank(tmp_path):
    first, second = scores(tmp_path / "a.csv", "ce"), scores(tmp_path / "b.csv", "nacl", cases=["other"])
    found = report([first, second], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "toy is not ranked" in found.warnings[0]
    assert len(Words(text).tables["table-headline"]) == 3
    assert 'class="num best"' not in text
    assert "sum-rank" not in found.figures


def test_runs_that_share_a_loss_are_called_by_what_sets_them_apart(tmp_path):
    for name, margin in (("mbls5-s0", 5.0), ("mbls10-s0", 10.0), ("mbls10-s1", 10.0)):
        where = run(tmp_path / "runs" / name, "mbls", seed=int(name[-1]), margin=margin)
        scores(where / "scores-test.csv", "mbls", 0.1 + margin / 100, seed=name[-1])
    found = gather([tmp_path])
    assert {run.method for run in found.runs} == {"mbls (margin=5.0)", "mbls (margin=10.0)"}
    made = content(found)
    assert [row.method for row in made.page["headline"]] == ["mbls (margin=10.0)", "mbls (margin=5.0)"]
    curve = next(figure for figure in made.data["figures"] if figure["id"] == "sensitivity-0")
    panel = curve["panels"][1]
    assert (curve["title"], panel["title"]) == ("mbls: margin", "ECE on predicted foreground")
    assert [(p["x"], round(p["y"], 12)) for p in panel["series"][0]["points"]] == [(5.0, 0.15), (10.0, 0.2)]


def test_a_benchmark_is_read_under_the_names_of_its_cells(tmp_path):
    where = run(tmp_path / "runs" / "toy-unet-mbls-s0-abc", "mbls", margin=5.0)
    run(tmp_path / "runs" / "toy-unet-mbls-s0-def", "mbls", margin=8.0)  # a candidate that was not chosen
    scores(where / "scores-test.csv", "mbls", dataset="toy")
    scores(tmp_path / "scores.csv", "m5", dataset="Toy set")
    (tmp_path / "bins.csv").unlink()
    cells = [("toy-unet-mbls-s0-abc", "Toy set", "unet", "m5"), ("toy-unet-mbls-s0-def", "Toy set", "unet", "m8")]
    pd.DataFrame(cells, columns=["cell", "dataset", "network", "label"]).to_csv(tmp_path / "cells.csv", index=False)
    (tmp_path / "grid.toml").write_text('title = "Two margins"\n[report]\npaper = "mbls-table3"\n')
    found = gather([tmp_path])
    assert [(run.method, run.dataset) for run in found.runs] == [("m5", "Toy set")]
    assert found.stated == {"title": "Two margins", "paper": "mbls-table3"}
    assert {"training", "reliability-predicted"} <= set(report([tmp_path], tmp_path / "report.html").figures)
    assert "<title>Two margins</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_ranks_by_the_metrics_of_its_grid_as_the_benchmark_does(made, tmp_path):
    named = ["ece@truth", "dsc"]
    for text in ("ece@truth, dsc", named):
        (tmp_path / "grid.toml").write_text(f"[report]\nmetrics = {text!r}\n")
        evidence = replace(gather([made], voxels="predicted"), stated=_stated(tmp_path / "grid.toml"))
        (group,) = comparison_groups(evidence)
        assert list(group.ranked().data.metrics) == named
        assert group.ranked().ranks.equals(rank(evidence.test, named)[0].ranks)


def test_paper_values_stand_beside_ours(tmp_path):
    columns = ["dataset", "loss", "calibrator", "class", "metric", "value"]
    paper = pd.DataFrame(
        [("toy", "ce", "none", "(mean)", "dsc", 0.9), ("toy", "ce", "none", "all", "ece@truth", 0.05),
         ("toy", "ce", "none", "organ", "dsc", 0.1), ("acdc", "ce", "none", "(mean)", "dsc", 0.2)],
        columns=columns,
    )  # fmt: skip
    report([scores(tmp_path / "scores.csv")], tmp_path / "report.html", paper=paper)
    rows = Words((tmp_path / "report.html").read_text(encoding="utf-8")).tables["table-paper"]
    assert [cell.strip() for cell in rows[1]] == ["toy", "CE", "0.900", "0.800", "0.0500", "0.0500"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.01234, "0.0123"), (0.5, "0.500"), (12.345, "12.3"), (1234.5, "1234"), (float("nan"), "–"), (-0.05, "-0.0500")],
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown


def test_a_cell_without_an_interval_shows_none():
    assert (Cell(0.5).interval, Cell(0.5, 0.4, 0.6).interval) == ("", "0.400 – 0.600")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: [], "name at least one score table, run folder or benchmark folder"),
        (lambda folder: [folder / "absent"], "no score table, run folder or benchmark folder .*absent"),
        (lambda folder: [folder], "holds no training run .run.json., no runs and no score table"),
        (lambda folder: [run(folder / "runs" / "a")], "no score table there yet; run calibseg score first"),
        (lambda folder: [scores(folder / "a.csv", variant="noise0.1-seed0")], "holds only images with noise added"),
    ],
)
def test_what_cannot_be_reported_is_said_in_one_sentence_and_nothing_is_written(tmp_path, make, message):
    with pytest.raises(BadInput, match=message):
        report(make(tmp_path), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_validation_alone_is_shown_and_flagged(tmp_path):
    found = report([scores(tmp_path / "scores.csv", subset="validation")], tmp_path / "report.html")
    assert "there are none of test" in found.warnings[0]
    assert found.recommended == ()


def test_the_command_writes_the_page_and_says_what_it_recommends(made, tmp_path):
    result = CliRunner().invoke(app, ["report", str(made), "-o", str(tmp_path / "r.html"), "--title", "Ours"])
    assert result.exit_code == 0, result.output
    assert "toy: recommended NACL (validation NLL 0.2500, DSC 0.7980)" in result.output
    assert f"wrote {tmp_path / 'r.html'}" in result.output.replace("\n", "")
    assert "<h1>Ours</h1>" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_torch_is_not_needed():
    import subprocess
    import sys

    code = "import sys; import calibseg.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_case_id_in_the_study_is_known_to_the_page(page):
    assert {shown["case"] for shown in data_of(page)["cases"]} <= set(CASES)


def test_the_methods_paragraph_says_what_every_run_did_not_only_the_first(tmp_path):
    for loss, seed, epochs in (("ce", 0, 5), ("ce", 1, 5), ("nacl", 0, 9)):
        where = run(tmp_path / "runs" / f"{loss}-s{seed}", loss, seed)
        info = read_run(where)
        write_run(
            RunFolder(where), replace(info, recipe={**info.recipe, "train": {"select": "miou", "epochs": epochs}})
        )
        scores(where / "scores-test.csv", loss, seed=str(seed))
    text = content(gather([tmp_path])).page["methods_text"]["text"]
    assert "for 5 or 9 epochs;" in text
    assert "with 1 or 2 seeds per method" in text
    assert "toy (2 training, 2 validation, 4 test cases; split seed 0)" in text


def test_the_methods_paragraph_names_the_metrics_that_were_measured_and_ranked_and_no_others(tmp_path):
    for loss in ("ce", "nacl"):
        path = scores(tmp_path / f"{loss}.csv", loss)
        found = table.read(path)
        rows = found.rows[~found.rows["metric"].isin(["hd95", "brier"])]
        table.write(replace(found, rows=rows), path)
    evidence = gather([tmp_path / "ce.csv", tmp_path / "nacl.csv"])
    for stated, ranked in ({}, "DSC, ECE on predicted foreground"), ({"metrics": "dsc,nll"}, "DSC, NLL on all voxels"):
        made = content(replace(evidence, stated=stated)).page["methods_text"]
        assert "by ECE on predicted foreground, NLL on all voxels, DSC;" in made["text"]
        assert f"Ranks ({ranked}) were compared" in made["text"]
        assert "brier" not in made["bibtex"]
