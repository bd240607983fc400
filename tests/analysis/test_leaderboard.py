"""Leaderboards: what is not measured by the benchmark's rules, on its cases and labels, does not become a row."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibseg.analysis import leaderboard, table
from calibseg.analysis.leaderboard import add, benchmark, benchmarks, entries, entry, standings
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import BadInput
from calibseg.io.label_fingerprint import label_fingerprint
from calibseg.report.leaderboard import head, markdown
from support.real_data import DATA

SCRIPTS = Path(__file__).parents[2] / "scripts"
TO = benchmark("hippocampus")


def made(dsc=0.8, hd95=1.5, seeds=("0",), **given) -> ScoreTable:
    """A table of one method, as `calibseg score` makes it: all cases alike but the first, which is worse by 0.1."""
    rows = []
    for seed in seeds:
        for number, (case, told) in enumerate(TO.cases.items()):
            worse = 0.0 if number else 0.1
            for key, metric in TO.metrics.items():
                name, _, voxels = key.partition("@")
                value = {"dsc": dsc - worse, "hd95": hd95 + worse}.get(name, 0.05 + worse)
                for of in metric["classes"]:
                    who = {"case": case, "patient": told["patient"], "scope": "case", "class": of, "seed": seed}
                    what = {"metric": name, "voxels": voxels, "unit": metric["unit"], "value": value}
                    rows.append({**who, **what, "higher_is_better": metric["higher_is_better"], "loss": "ce"})
    told = {key.partition("@")[0]: metric["options"] for key, metric in TO.metrics.items()}
    rules = {**TO.rules, "metrics": told, "datasets": {"": {"classes": list(TO.classes)}}}
    notes = {"label_fingerprints": {case: one["labels"] for case, one in TO.cases.items()},
             "versions": {"calibseg": "0.1.0"}}  # fmt: skip
    return replace(ScoreTable(table.frame(rows), rules, notes, "scores.csv"), **given)


def changed(rows, case, metric, of, value):
    at = (rows["case"] == case) & (rows["metric"] == metric) & (rows["class"] == of)
    return rows.assign(value=np.where(at, value, rows["value"]))


def test_a_metric_that_was_not_measured_is_named():
    whole = made()
    rules = {**whole.rules, "metrics": {name: told for name, told in whole.rules["metrics"].items() if name != "brier"}}
    with pytest.raises(BadInput, match=r"does not hold brier, which hippocampus asks for: calibseg score --pred"):
        entry(replace(whole, rules=rules), "ours", TO)


def test_a_row_is_one_file_and_comes_back(tmp_path):
    path = add(entry(made(), "Our method, 2 nets", TO, "https://example.org/a"), TO, tmp_path)
    assert path == tmp_path / "hippocampus" / "our-method-2-nets.json"
    (row,) = standings(entries(tmp_path, TO), TO)
    assert row.entry.method == "Our method, 2 nets"
    assert row.means["dsc"][0] == pytest.approx(0.8 - 0.1 / 50)  # one of 50 cases is worse by 0.1
    assert row.means["dsc"][1] <= row.means["dsc"][0] <= row.means["dsc"][2]
    text = markdown([row], TO)
    assert "[Our method, 2 nets](https://example.org/a)" in text
    assert len(head(TO)) == text.splitlines()[0].count(" | ") + 1
    with pytest.raises(BadInput, match="there already"):
        add(entry(made(), "our METHOD 2 nets", TO), TO, tmp_path)


def test_the_better_row_comes_first_and_a_missed_organ_costs(tmp_path):
    lost = made(0.9)
    lost = replace(lost, rows=changed(lost.rows, FIRST, "hd95", "anterior", np.nan))
    add(entry(lost, "misses one", TO), TO, tmp_path)
    add(entry(made(0.7, 9.0), "finds all", TO), TO, tmp_path)
    rows = {row.entry.method: row for row in standings(entries(tmp_path, TO), TO)}
    assert list(rows) == ["misses one", "finds all"]
    assert rows["misses one"].undefined["hd95"] == 1
    # The missing distance takes the worst of its column and class, 9.1; the other class of that case has 1.6.
    assert rows["misses one"].means["hd95"][0] == pytest.approx((49 * 1.5 + (9.1 + 1.6) / 2) / 50)
    assert "49 of 50 defined" in markdown(list(rows.values()), TO)


def test_seeds_are_averaged_and_counted():
    two = made(0.8, seeds=("0", "1"))
    rows = two.rows.assign(
        value=np.where((two.rows["seed"] == "1") & (two.rows["metric"] == "dsc"), 0.6, two.rows["value"])
    )
    row = entry(replace(two, rows=rows), "two", TO)
    assert row.seeds == 2
    assert row.values["dsc"]["anterior"][:2] == [pytest.approx(0.65), pytest.approx(0.7)]


def test_cases_are_known_by_their_labels_whatever_they_are_called():
    scored = made()
    marks = scored.notes["label_fingerprints"]
    renamed = {case: f"subject{number}" for number, case in enumerate(marks)}
    rows = table.plain(scored.rows)
    rows = table.categorical(rows.assign(case=rows["case"].map(renamed), patient=rows["case"].map(renamed)))
    notes = {"label_fingerprints": {renamed[case]: mark for case, mark in marks.items()}}
    assert entry(replace(scored, rows=rows, notes=notes), "a", TO).values == entry(scored, "a", TO).values


def _without(scored, case):
    return replace(scored, rows=scored.rows[scored.rows["case"] != case])


FIRST = next(iter(TO.cases))
WRONG = {
    "bins is 20, not 15": lambda t: replace(t, rules={**t.rules, "bins": 20}),
    "units is 'voxel', not 'mm'": lambda t: replace(t, rules={**t.rules, "units": "voxel"}),
    "options of hd95": lambda t: replace(t, rules={**t.rules, "metrics": {**t.rules["metrics"], "hd95": {}}}),
    "the list of classes": lambda t: replace(t, rules={**t.rules, "datasets": {"": {"classes": ["a", "b"]}}}),
    "does not say its rules": lambda t: replace(t, rules=None),
    "does not say which labels": lambda t: replace(t, notes={}),
    "scored against other labels": lambda t: replace(
        t, notes={"label_fingerprints": {**t.notes["label_fingerprints"], FIRST: "0" * 32}}
    ),
    "lacks 1 of the 50 test cases": lambda t: _without(t, FIRST),
    "holds 2 methods": lambda t: replace(
        t, rows=table.concat([t.rows, table.categorical(table.plain(t.rows).assign(loss="nacl"))])
    ),
    "dsc is 1.5, which it cannot be": lambda t: replace(t, rows=changed(t.rows, FIRST, "dsc", "anterior", 1.5)),
    "for 0 of the 50 cases": lambda t: replace(t, rows=t.rows[t.rows["metric"] != "brier"]),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_match_the_benchmark_is_refused(message):
    with pytest.raises(BadInput, match=message):
        entry(WRONG[message](made()), "a", TO)


def test_a_case_of_somebody_else_is_refused():
    scored = made()
    marks = dict(scored.notes["label_fingerprints"])
    marks["stranger"] = label_fingerprint(np.ones((2, 2, 2)))
    rows = table.plain(scored.rows)
    strange = rows[rows["case"] == FIRST].assign(case="stranger", patient="stranger")
    more = table.categorical(table.concat([rows, strange]))
    with pytest.raises(BadInput, match="'stranger' is none of the 50 test cases"):
        entry(replace(scored, rows=more, notes={"label_fingerprints": marks}), "a", TO)
    marks["stranger"] = marks[FIRST]
    with pytest.raises(BadInput, match="two cases were scored against the same labels"):
        entry(replace(scored, rows=more, notes={"label_fingerprints": marks}), "a", TO)


@pytest.mark.parametrize(
    ("method", "link"),
    [("", ""), ("a|b", ""), ("<script>", ""), ("x" * 61, ""), ("a\nb", ""), ("a", "http://x"),
     ("a", "javascript:alert(1)"), ("a", "https://x)(y")],
)  # fmt: skip
def test_names_and_links_cannot_act_on_a_page(method, link):
    with pytest.raises(BadInput):
        entry(made(), method, TO, link)


def test_a_row_of_another_state_of_the_benchmark_is_refused(tmp_path):
    path = add(entry(made(), "a", TO), TO, tmp_path)
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "checked": "0" * 32}))
    with pytest.raises(BadInput, match="add it again"):
        entries(tmp_path, TO)


def test_an_empty_leaderboard_has_no_rows(tmp_path):
    assert standings(entries(tmp_path, TO), TO) == []


def script():
    spec = importlib.util.spec_from_file_location("leaderboard_cases", SCRIPTS / "leaderboard_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", benchmarks())
def test_the_rules_that_are_shipped_are_those_of_scoring_now(name):
    from calibseg.stages.score.chosen_metrics import rules_of
    from calibseg.stages.score.options import ScoringOptions

    to = benchmark(name)
    now = rules_of(ScoringOptions(units=to.rules["units"]))
    assert all(now.get(key, "softmax") == value for key, value in to.rules.items())
    assert all(now["metrics"][key.partition("@")[0]] == told["options"] for key, told in to.metrics.items())
    assert len({case["labels"] for case in to.cases.values()}) == len(to.cases)


@pytest.mark.parametrize(("name", "folder"), [("hippocampus", "Task04_Hippocampus"), ("acdc", "ACDC")])
def test_the_cases_that_are_shipped_are_those_of_the_data(name, folder):
    root = DATA / folder
    if not root.is_dir():
        pytest.skip(f"the real data is not at {root} (set CALIBSEG_DATA)")
    content = json.loads(json.dumps(script().content(name, root)))
    shipped = json.loads((leaderboard.HOME / f"{name}.json").read_text())
    assert {"format": "calibseg-leaderboard/1", **content} == shipped
