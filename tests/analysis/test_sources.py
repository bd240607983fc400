"""The one gatherer of score tables: plot, table and report call the same runs by the same names."""

import pandas as pd
import pytest

from calibseg.analysis import table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.sources import gather, read_source
from calibseg.core.types import BadInput
from support.reporting import run, scores


def methods(rows):
    return sorted(method_names(rows).unique())


def runs_of_one_loss(folder):
    for name, margin, seed in (("toy-mbls-s0-abc", 5.0, 0), ("toy-mbls-s1-def", 5.0, 1), ("toy-mbls-s0-fed", 8.0, 0)):
        where = run(folder / "runs" / name, "mbls", seed=seed, margin=margin)
        scores(where / "scores-test.csv", "mbls", seed=str(seed))
        scores(where / "scores-test+temperature.csv", "mbls", seed=str(seed), calibrator="temperature")
    return folder


def test_plot_and_report_call_the_same_runs_by_the_same_names(tmp_path):
    source = runs_of_one_loss(tmp_path)
    plotted, reported = read_source([source]), gather([source])
    expected = ["mbls (margin=5.0)", "mbls (margin=8.0)"]
    assert methods(plotted.table.rows) == sorted([*expected, *(f"{name}+temperature" for name in expected)])
    assert methods(plotted.table.rows) == methods(reported.test.rows)
    assert methods(plotted.need_bins()) == methods(reported.bins) == methods(reported.test.rows)
    assert {run.method for run in reported.runs} == set(expected)


def test_a_benchmark_has_the_names_of_its_cells_before_and_after_its_tables_are_merged(tmp_path):
    source = runs_of_one_loss(tmp_path)
    cells = [(path.name, "toy", "unet", f"m{path.name[-3:]}") for path in sorted((source / "runs").iterdir())]
    columns = ["cell", "dataset", "network", "label"]
    pd.DataFrame(cells, columns=columns).to_csv(source / "cells.csv", index=False)
    before = methods(read_source([source]).table.rows)
    assert before == methods(gather([source]).test.rows)
    merged = read_source([source]).table
    table.write(merged, source / "scores.parquet")
    assert methods(read_source([source]).table.rows) == methods(gather([source]).test.rows) == before
    assert methods(read_source([source]).need_bins()) == before
    assert {run.method for run in gather([source]).runs} == {label for *_, label in cells}


def test_a_report_reads_only_the_reliability_rows_that_it_is_asked_for(tmp_path):
    source = runs_of_one_loss(tmp_path)
    whole, some = gather([source]).bins, gather([source], voxels="predicted").bins
    assert set(whole["voxels"]) == {"truth", "predicted", "all"}
    assert some.reset_index(drop=True).equals(whole[whole["voxels"] == "predicted"].reset_index(drop=True))


def test_reliability_rows_that_are_none_are_named(tmp_path):
    path = scores(tmp_path / "scores.csv")
    (tmp_path / "bins.csv").write_text((tmp_path / "bins.csv").read_text().replace("accuracy", "acc", 1))
    with pytest.raises(BadInput, match=r"bins\.csv has no column 'accuracy': these are no reliability rows"):
        read_source([path]).need_bins()
