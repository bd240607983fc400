"""Merged score tables as Parquet: the same rows, rules and values, to the bit, as in CSV."""

import math

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from calibseg.analysis import table
from calibseg.analysis.merge import merge
from calibseg.cli import app
from calibseg.core.types import BadInput

RULES = {"units": "mm", "metrics": {"dsc": {}}, "datasets": {"acdc": {"classes": ["background", "lv"]}}}
VALUES = [0.1, 1 / 3, math.nan, -0.0, 5e-324, 1.7976931348623157e99, 0.30000000000000004]


def made(loss="ce"):
    rows = [
        {"dataset": "acdc", "loss": loss, "patient": f"p{n}", "case": f"c{n}", "class": "lv", "scope": "case",
         "metric": "dsc", "value": value, "higher_is_better": True}
        for n, value in enumerate(VALUES)
    ]  # fmt: skip
    return table.ScoreTable(table.frame(rows), RULES, {"versions": {"calibseg": "0"}}, "made")


def bits(scores):
    return scores.rows["value"].to_numpy().view(np.int64).tolist()


@pytest.mark.parametrize("name", ["scores.csv", "scores.parquet"])
def test_every_bit_of_a_value_survives_the_file(tmp_path, name):
    table.write(made(), tmp_path / name)
    read = table.read(tmp_path / name)
    assert bits(read) == bits(made())
    assert read.rows.equals(made().rows)
    assert (read.rules, read.notes) == (RULES, {"versions": {"calibseg": "0"}})


def test_a_parquet_table_is_one_file_and_the_same_rows_give_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        table.write(made(), tmp_path / folder / "scores.parquet")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["scores.parquet"]
    assert (tmp_path / "a" / "scores.parquet").read_bytes() == (tmp_path / "b" / "scores.parquet").read_bytes()


def test_a_parquet_table_that_pandas_wrote_is_read_and_has_no_rules(tmp_path):
    table.plain(made().rows).to_parquet(tmp_path / "theirs.parquet")
    read = table.read(tmp_path / "theirs.parquet")
    assert read.rows.equals(made().rows)
    assert read.rules is None


def test_what_is_no_parquet_table_is_named(tmp_path):
    path = tmp_path / "scores.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(BadInput, match=r"scores\.parquet is not a Parquet table"):
        table.read(path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(BadInput, match=r"scores\.parquet has the columns a; a score table has dataset,"):
        table.read(path)


def test_rank_table_and_export_read_parquet_as_they_read_csv(tmp_path):
    both = merge([made("ce"), table.ScoreTable(made("ls").rows, RULES, {}, "other")])
    kept = both.rows[both.rows["value"].between(0, 1)]
    both = table.ScoreTable(kept, RULES, {}, "both")
    table.write(both, tmp_path / "scores.csv")
    table.write(both, tmp_path / "scores.parquet")
    for command in (["rank", "--metrics", "dsc"], ["table", "--metrics", "dsc"]):
        shown = [CliRunner().invoke(app, [*command, str(tmp_path / f"scores.{kind}")]) for kind in ("csv", "parquet")]
        assert shown[0].exit_code == 0, shown[0].output
        assert shown[0].output == shown[1].output
    exported = CliRunner().invoke(app, ["table", str(tmp_path / "scores.parquet"), "--export", str(tmp_path / "e.csv")])
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "e.csv").read_bytes() == (tmp_path / "scores.csv").read_bytes()
    assert table.read(tmp_path / "e.csv").rules == RULES


def test_merging_many_tables_keeps_their_rows_in_order_and_their_words_sorted():
    tables = [table.ScoreTable(made(f"m{n}").rows, RULES, {}, f"t{n}") for n in (3, 1, 2, 0)]
    merged = merge(tables)
    assert merged.rows["loss"].unique().tolist() == ["m3", "m1", "m2", "m0"]
    assert merged.rows["loss"].cat.categories.tolist() == ["m0", "m1", "m2", "m3"]
    assert merged.rows["value"].tolist()[:2] == VALUES[:2]
    assert merged.name == "t3 and 3 more"
