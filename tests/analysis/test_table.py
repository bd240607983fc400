"""The score table: strict to read, safe to write, and never a mix of rules."""

import gzip
import json
import math

import numpy as np
import pytest

from calibseg.analysis import summary, table
from calibseg.analysis.columns import COLUMNS
from calibseg.analysis.merge import merge
from calibseg.analysis.sources import read_source
from calibseg.core.types import BadInput

RULES = {"units": "mm", "metrics": {"hd95": {"definition": "pooled"}}, "datasets": {"acdc": {"classes": ["", "lv"]}}}


def rows(loss="nacl", values=(0.1, math.nan, 1 / 3)):
    return table.frame(
        {
            "dataset": "acdc", "loss": loss, "seed": 0, "patient": f"p{index // 2}", "case": f"c{index}", "class": "lv",
            "scope": "case", "metric": "hd95", "value": value, "unit": "mm", "higher_is_better": False,
        }
        for index, value in enumerate(values)
    )  # fmt: skip


def written(folder, name="scores.csv", rules=RULES, **of_rows):
    table.write(table.ScoreTable(rows(**of_rows), rules, {"versions": {"calibseg": "0"}}), folder / name)
    return folder / name


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path):
    hard = (0.1, math.nan, 1 / 3, 5e-324, 1e99, 0.1 + 0.2)
    read = table.read(written(tmp_path, values=hard))
    assert tuple(read.rows.columns) == COLUMNS
    assert np.array_equal(read.rows["value"], hard, equal_nan=True)
    assert read.rows["higher_is_better"].tolist() == [False] * 6
    assert read.rows["seed"].tolist() == ["0"] * 6
    assert read.rules == RULES
    assert read.notes == {"versions": {"calibseg": "0"}}


def test_undefined_is_written_as_nan_and_blank_stays_blank(tmp_path):
    line = written(tmp_path).read_text().splitlines()[2]
    assert line == "acdc,,nacl,,0,,,p0,c1,lv,,case,hd95,nan,mm,false"


def test_a_compressed_table_reads_like_a_plain_one(tmp_path):
    plain = written(tmp_path)
    packed = tmp_path / "scores.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert table.read(packed).rows.equals(table.read(plain).rows)
    assert table.read(packed).rules == RULES
    for damage in (packed.read_bytes()[:-20], b"no gzip"):
        packed.write_bytes(damage)
        with pytest.raises(BadInput, match=r"scores\.csv\.gz is not a CSV table"):
            table.read(packed)


def test_companions_are_named_after_the_table(tmp_path):
    assert table.meta_path(tmp_path / "scores.csv").name == "scores.meta.json"
    assert table.bins_path(tmp_path / "scores.csv").name == "bins.csv"
    assert table.bins_path(tmp_path / "nacl.csv").name == "nacl.bins.csv"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("patient,case", "case,patient", 1), r"scores\.csv has the columns .*case,patient"),
        (lambda text: text.replace(",0.1,mm", ",0.1mm,mm", 1), r"line 2: the value '0\.1mm' is not a number"),
        (lambda text: text.replace(",case,hd95", ",volume,hd95", 1), r"line 2: scope is 'volume', not one of case, po"),
        (lambda text: text.replace("false", "no", 1), r"line 2: higher_is_better is 'no', not one of true, false"),
        (lambda text: "", r"is not a CSV table"),
        (lambda text: text + "a,b\n" + "x," * 40 + "\n", r"is not a CSV table"),
    ],
)
def test_a_damaged_table_is_refused_by_file_and_line(tmp_path, damage, message):
    path = written(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(BadInput, match=message):
        table.read(path)


@pytest.mark.parametrize("spelt", [str.title, str.upper])
def test_yes_and_no_as_pandas_and_excel_write_them_are_read(tmp_path, spelt):
    path = written(tmp_path)
    before = table.read(path).rows
    path.write_text(path.read_text().replace("true", spelt("true")).replace("false", spelt("false")))
    assert table.read(path).rows.equals(before)


def test_a_missing_table_and_a_damaged_companion_are_named(tmp_path):
    with pytest.raises(BadInput, match=r"no score table .*none\.csv"):
        table.read(tmp_path / "none.csv")
    path = written(tmp_path)
    (tmp_path / "scores.meta.json").write_text("{")
    with pytest.raises(BadInput, match=r"scores\.meta\.json is not JSON"):
        table.read(path)
    (tmp_path / "scores.meta.json").write_text(json.dumps({"format": "calibseg-run/1", "rules": {}}))
    with pytest.raises(BadInput, match=r"does not say format calibseg-scores/1"):
        table.read(path)


def test_a_failed_write_leaves_the_old_table_and_no_debris(tmp_path):
    path = written(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    unwritable = table.ScoreTable(rows(loss="ce"), {"bins": math.nan})  # NaN is not JSON: fails after the rows
    with pytest.raises(ValueError, match="Out of range float"):
        table.write(unwritable, path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_row_cannot_appear_twice(tmp_path):
    twice = table.frame([*rows().to_dict("records"), rows().to_dict("records")[0]])
    with pytest.raises(BadInput, match=r"1 rows appear twice, the first for dataset acdc, loss nacl, .*case c0"):
        table.write(table.ScoreTable(twice, RULES), tmp_path / "scores.csv")
    assert not list(tmp_path.iterdir())


def test_tables_with_the_same_rules_merge(tmp_path):
    one, two = table.read(written(tmp_path, "a.csv")), table.read(written(tmp_path, "b.csv", loss="ce"))
    merged = merge([one, two])
    assert merged.rows["loss"].tolist() == ["nacl"] * 3 + ["ce"] * 3
    assert merged.rules == RULES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": "voxel"}, r'units is "voxel" in it, not "mm"'),
        (
            {"metrics": {"hd95": {"definition": "max_directed"}}},
            r'hd95\.definition is "max_directed" in it, not "pooled"',
        ),
        ({"empty": "worst"}, r'empty is "worst" in it, not absent'),
    ],
)
def test_tables_with_different_rules_refuse_to_merge_and_name_the_difference(tmp_path, change, message):
    one = table.read(written(tmp_path, "a.csv"))
    two = table.read(written(tmp_path, "b.csv", rules=RULES | change, loss="ce"))
    with pytest.raises(
        BadInput, match=r"b\.csv was scored by other rules than .*a\.csv and cannot be merged: .*" + message
    ):
        merge([one, two])


def test_tables_of_other_datasets_and_metrics_merge_and_keep_what_is_said_of_both(tmp_path):
    other = {"units": "mm", "metrics": {"dsc": {"empty": "nan"}}, "datasets": {"flare": {"classes": ["", "liver"]}}}
    one, two = table.read(written(tmp_path, "a.csv")), table.read(written(tmp_path, "b.csv", rules=other, loss="ce"))
    merged = merge([one, two]).rules
    assert merged["metrics"] == {"hd95": {"definition": "pooled"}, "dsc": {"empty": "nan"}}
    assert list(merged["datasets"]) == ["flare", "acdc"]


def test_a_table_without_its_rules_stands_alone(tmp_path):
    one, two = written(tmp_path, "a.csv"), written(tmp_path, "b.csv", loss="ce")
    (tmp_path / "b.meta.json").unlink()
    assert table.read(two).rules is None
    with pytest.raises(BadInput, match=r"b\.csv cannot be merged .* b\.meta\.json is not beside it"):
        merge([table.read(one), table.read(two)])


def test_the_same_method_twice_does_not_merge(tmp_path):
    path = written(tmp_path)
    with pytest.raises(BadInput, match="3 rows appear twice"):
        merge([table.read(path), table.read(path)])


def test_a_nameless_table_can_be_given_a_method(tmp_path):
    one = read_source(named={"theirs": written(tmp_path, loss="")}).table
    assert set(one.rows["loss"]) == {"theirs"}
    both = table.ScoreTable(table.frame([*rows().to_dict("records"), *rows("ce").to_dict("records")]), RULES)
    table.write(both, tmp_path / "both.csv")
    with pytest.raises(BadInput, match=r"holds 2 losses and cannot be called 'x'"):
        read_source(named={"x": tmp_path / "both.csv"})


def test_the_summary_counts_what_is_defined_and_resamples_patients():
    values = [0.0, math.nan, 4.0, 8.0]  # patient p0: 0 and undefined; patient p1: 4 and 8
    found = summary.summary(rows(values=values)).iloc[0]
    assert (found["mean"], found["defined"], found["cases"]) == (4.0, 3, 4)
    assert (found["low"], found["high"]) == (0.0, 6.0)  # the draws: p0 twice 0, one each 4, p1 twice 6


def test_the_mean_of_classes_counts_every_defined_value_once():
    both = [
        rows(values=values).assign(**{"class": name}) for name, values in (("lv", [1.0, 2.0]), ("rv", [math.nan, 6.0]))
    ]
    together = rows(values=[9.0, 9.0]).assign(metric="ece", **{"class": "all"})
    frame = table.frame([row for part in (*both, together) for row in part.to_dict("records")])
    found = summary.class_means(frame, ["lv", "rv"])
    assert found[["metric", "class", "mean", "defined", "cases"]].to_numpy().tolist() == [["hd95", "(mean)", 3.0, 3, 4]]


def test_pooled_rows_do_not_enter_the_summary():
    pooled = rows(values=[9.0]).assign(scope="pooled", patient="", case="")
    found = summary.summary(table.frame([*rows(values=[1.0, 2.0]).to_dict("records"), *pooled.to_dict("records")]))
    assert found["mean"].tolist() == [1.5]
