"""The one door of score tables: whatever lies in the file is refused in one sentence or read as a plain loop does."""

import csv
import io
import json
import math
import random
import re
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibseg.analysis import table
from calibseg.analysis.case_values import case_values
from calibseg.analysis.columns import COLUMNS, KEY, WORDS
from calibseg.analysis.merge import merge
from calibseg.analysis.ranking import rank
from calibseg.core.types import BadInput
from calibseg.report.html import report

QUIET = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
RUBBISH = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "0x10",
    "1_000",
    "true",
    "case",
    "pooled",
    "ä",
    "A ",
    "\x00",
    '"',
    ",",
]


def row(**columns):
    given = {"dataset": "acdc", "loss": "ce", "subset": "test", "patient": "p0", "case": "c0", "class": "lv",
             "scope": "case", "metric": "dsc", "value": "0.5", "higher_is_better": "true"}  # fmt: skip
    return dict.fromkeys(COLUMNS, "") | given | columns


def text_of(rows, columns=COLUMNS):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([one[column] for column in columns] for one in rows)
    return text.getvalue()


def expected(rows):
    """What a plain loop says of rows of text: the values, or None where one of them cannot be right."""
    values, seen, said, patients = [], set(), {}, {}
    for one in rows:
        try:
            value = float(one["value"])
        except ValueError:
            return None
        wrong = (
            "_" in one["value"]
            or abs(value) > 1e100
            or one["scope"] not in ("case", "pooled")
            or one["higher_is_better"] not in ("true", "True", "TRUE", "false", "False", "FALSE")
            or not (one["metric"] and one["class"])
            or any(one[column] != one[column].strip() or not one[column].isprintable() for column in WORDS)
            or (one["scope"] == "case" and not (one["patient"] and one["case"]))
            or tuple(one[column] for column in KEY) in seen
        )  # fmt: skip
        meaning = (one["unit"], one["higher_is_better"].lower())
        if wrong or said.setdefault(one["metric"], meaning) != meaning:
            return None
        case = (one["dataset"], one["case"])
        if one["scope"] == "case" and patients.setdefault(case, one["patient"]) != one["patient"]:
            return None
        seen.add(tuple(one[column] for column in KEY))
        values.append(value)
    return values or None


words = st.one_of(
    st.sampled_from(RUBBISH),
    st.text(string.printable, max_size=4),
    st.floats().map(repr),
    st.sampled_from(["lv", "mm"]),
)


@st.composite
def damaged_rows(draw):
    rows = [row(case=f"c{n}", patient=f"p{n // 2}", value=repr(n / 7)) for n in range(draw(st.integers(0, 5)))]
    for _ in range(draw(st.integers(0, 3)) if rows else 0):
        rows[draw(st.integers(0, len(rows) - 1))][draw(st.sampled_from(COLUMNS))] = draw(words)
    return rows + (rows[:1] if draw(st.booleans()) and draw(st.booleans()) else [])


@QUIET
@given(damaged_rows())
def test_a_table_of_rubbish_is_refused_or_read_as_a_plain_loop_reads_it(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("door") / "scores.csv"
    path.write_text(text_of(rows), encoding="utf-8", newline="")
    with path.open(encoding="utf-8", newline="") as file:
        parsed = list(csv.DictReader(file))
    values = expected(parsed) if len(parsed) == len(rows) else None
    if values is None:
        with pytest.raises(BadInput, match=re.escape(str(path))):
            table.read(path)
        return
    found = table.read(path)
    assert np.array_equal(found.rows["value"], values, equal_nan=True)
    assert [found.rows[name].tolist() for name in WORDS] == [[one[name] for one in parsed] for name in WORDS]


@QUIET
@given(st.binary(max_size=300), st.sampled_from(["scores.csv", "scores.csv.gz", "scores.parquet", "scores.meta.json"]))
def test_bytes_of_any_kind_are_refused_by_the_name_of_their_file(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "scores.csv").write_text(text_of([row()]))
    (folder / name).write_bytes(content)
    with pytest.raises(BadInput, match=r"scores\.(csv|parquet|meta)"):
        table.read(folder / ("scores.csv" if name.endswith(".json") else name))


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inside: (
        st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(["classes", "regions", "merged", "a"]), inside)
    ),
)


@settings(QUIET, max_examples=15)
@given(st.sampled_from(["rules", "datasets", "metrics", "versions", "left_out", "merged"]), json_values)
def test_a_companion_of_the_wrong_kinds_is_refused_or_serves_every_reader(tmp_path_factory, key, value):
    path = tmp_path_factory.mktemp("meta") / "scores.csv"
    path.write_text(text_of([row(), row(loss="ls", value="0.75")]))
    meta = {"format": table.FORMAT, "rules": {"datasets": {}}}
    if key in ("datasets", "metrics"):
        meta["rules"][key] = {"acdc": value}
    else:
        meta[key] = value
    table.meta_path(path).write_text(json.dumps(meta))
    try:
        found = rank(table.read(path), ["dsc"])[0]
        report([path], path.with_suffix(".html"))
    except BadInput:
        return  # in one sentence
    assert found.data.values.tolist() == [[[0.5, 0.75]]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.astype({"value": str}), r"the column value holds .*string"),
        (lambda rows: rows.astype({"higher_is_better": int}), r"the column higher_is_better holds int64"),
        (lambda rows: rows.assign(seed=0), r"the column seed holds int64"),
        (lambda rows: rows.assign(case=None), r"the column case holds null with 1 gaps"),
        (lambda rows: rows.rename(columns={"case": "scan"}), r"has the columns .*scan"),
        (lambda rows: rows[:0], r"holds no rows"),
        (lambda rows: rows.assign(value=math.inf), r"scores\.parquet line 1: the value is infinite"),
        (lambda rows: pd.concat([rows, rows], ignore_index=True), r"1 rows appear twice"),
    ],
)
def test_a_parquet_table_of_somebody_else_s_passes_the_same_door(tmp_path, change, message):
    rows = pd.DataFrame([row()], columns=list(COLUMNS)).astype({"value": float}).assign(higher_is_better=True)
    path = tmp_path / "scores.parquet"
    rows.to_parquet(path)
    assert table.read(path).rows["value"].tolist() == [0.5]
    change(rows).to_parquet(path)
    with pytest.raises(BadInput, match=message):
        table.read(path)


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    for change, message in (({"value": math.inf}, "infinite"), ({"loss": "ce "}, "blanks"), ({"case": ""}, "its case")):
        made = table.frame([row(value=0.5, higher_is_better=True) | change])
        with pytest.raises(BadInput, match=message):
            table.write(table.ScoreTable(made, {}), tmp_path / "scores.csv")
    assert not list(tmp_path.iterdir())


def made(name, **columns):
    rows = [row(loss=name, case=f"c{n}", patient=f"p{n}", value=0.1 * n, higher_is_better=True) for n in range(2)]
    return table.ScoreTable(table.frame([one | columns for one in rows]), {"datasets": {}}, {}, f"{name}.csv")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"higher_is_better": False},
            r"b\.csv and a\.csv contradict each other: higher_is_better of dsc is false and t",
        ),
        ({"unit": "voxel"}, r"b\.csv and a\.csv contradict each other: dsc is in voxel and no unit"),
    ],
)
def test_tables_that_contradict_each_other_are_refused_in_any_order_by_both_names(columns, message):
    first, second = made("a"), made("b", **columns)
    with pytest.raises(BadInput, match=message):
        merge([first, second])
    with pytest.raises(BadInput, match=r"a\.csv and b\.csv contradict"):
        merge([second, first])
    with pytest.raises(BadInput, match=r"a\.csv and b\.csv contradict"):
        merge([second, made("c", metric="ece"), first])


def test_a_case_belongs_to_one_patient_in_a_table_and_between_tables(tmp_path):
    other = [row(case="c0", patient="somebody", loss="b", value="0.25")]
    (tmp_path / "both.csv").write_text(text_of([row(case="c0", patient="p0"), *other]))
    with pytest.raises(BadInput, match=r"both\.csv: case 'c0' belongs to patient '.*' and to '.*'"):
        table.read(tmp_path / "both.csv")
    with pytest.raises(BadInput, match=r"a\.csv and b\.csv: case 'c0' belongs to patient"):
        merge([made("a"), made("b", patient="somebody")])
    elsewhere = [one | {"dataset": "flare"} for one in other]  # another dataset's c0 is another case
    (tmp_path / "two.csv").write_text(text_of([row(case="c0", patient="p0"), *elsewhere]))
    assert len(table.read(tmp_path / "two.csv").rows) == 2


def test_a_table_is_not_written_over_another_kind_of_file(tmp_path):
    for name, message in (("log.csv", "exists and is no score table"), ("case0.nii.gz", r"ends with \.csv, \.parquet")):
        (tmp_path / name).write_text("epoch,loss\n0,1\n")
        with pytest.raises(BadInput, match=message):
            table.check_output(tmp_path / name)
    (tmp_path / "scores.csv").write_text(text_of([row()]))
    table.check_output(tmp_path / "scores.csv")
    with pytest.raises(BadInput, match="is read by this command, which would overwrite it"):
        table.check_output(tmp_path / "scores.csv", [tmp_path / "." / "scores.csv"])


def test_a_table_without_its_rules_can_be_exported_and_read(tmp_path):
    (tmp_path / "a.csv").write_text(text_of([row()]))
    for name in ("b.csv", "b.parquet"):
        table.write(table.read(tmp_path / "a.csv"), tmp_path / name)
        assert table.read(tmp_path / name).rules is None


def plain_ranks(values, bigger):
    """Rank 1 for the best; equal to 1e-9 is equal: values[method] -> how many are better, plus one."""
    good = [-value if bigger else value for value in values]
    return [1.0 + sum(other < value - 1e-9 for other in good) for value in good]


@QUIET
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32), st.booleans())
def test_ranks_equal_those_of_a_plain_loop_in_any_order_of_the_rows(methods, cases, seed, bigger):
    generator = random.Random(seed)
    values = [[generator.choice([0.0, 0.1, 0.2, 0.3, 1 / 3]) for _ in range(cases)] for _ in range(methods)]
    rows = [
        row(loss=f"m{m}", case=f"c{c}", patient=f"p{c}", value=values[m][c], higher_is_better=bigger)
        for m in range(methods)
        for c in range(cases)
    ]
    generator.shuffle(rows)
    data = case_values(table.frame(rows), ["dsc"])
    found = rank(table.ScoreTable(table.frame(rows), None), ["dsc"])[0].ranks
    columns = found[found["ranking"] == "column"].set_index("method")
    means = [sum(one) / cases for one in values]
    by_case = [plain_ranks([values[m][c] for m in range(methods)], bigger) for c in range(cases)]
    mean_case_rank = found[(found["ranking"] == "mean case-rank") & (found["metric"] == "")].set_index("method")["rank"]
    for m in range(methods):
        assert columns["mean"][f"m{m}"] == pytest.approx(means[m], abs=1e-12)
        assert columns["rank"][f"m{m}"] == plain_ranks(means, bigger)[m]
        assert mean_case_rank[f"m{m}"] == pytest.approx(sum(ranks[m] for ranks in by_case) / cases)
    assert set(data.methods) == {f"m{m}" for m in range(methods)}
