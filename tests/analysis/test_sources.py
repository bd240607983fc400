"""The one gatherer of score tables: plot, table and report call the same runs by the same names."""

import pandas as pd
import pytest

from calibseg.analysis import table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.columns import KEY
from calibseg.analysis.evidence import gather
from calibseg.analysis.merge import merge
from calibseg.analysis.sources import read_source
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


def both_subsets(path, *subsets):
    made = [
        table.read(scores(path / f"{word or 'unsaid'}.csv", loss, dsc=dsc, subset=word, cases=[f"{word}0", f"{word}1"]))
        for loss in ("ce", "nacl")
        for word, dsc in zip(subsets, (0.5, 0.9, 0.1), strict=False)
    ]
    table.write(merge(made), path / "scores.csv")
    return path / "scores.csv"


def subset_means(rows):
    dsc = rows[(rows["metric"] == "dsc") & (rows["loss"] == "ce")]
    return round(dsc["value"].mean(), 9)


def test_subsets_are_never_averaged_test_is_taken_unless_another_is_asked_for(tmp_path):
    path = both_subsets(tmp_path, "validation", "test", "train")
    assert subset_means(read_source([path]).table.rows) == 0.9
    assert subset_means(read_source([path], subset="validation").table.rows) == 0.5
    assert subset_means(read_source([path], subset="train").table.rows) == 0.1
    assert set(read_source([path], every_subset=True).table.rows["subset"]) == {"validation", "test", "train"}
    with pytest.raises(
        BadInput, match=r"scores\.csv: holds no rows of the subset 'tset', only of validation, test, train"
    ):
        read_source([path], subset="tset")
    found = gather([path])
    assert (subset_means(found.test.rows), subset_means(found.validation.rows)) == (0.9, 0.5)
    assert found.warnings == ("left out: the rows of the subset 'train', as those of test are compared",)


def test_several_subsets_without_test_ask_for_a_choice_and_one_needs_none(tmp_path):
    path = both_subsets(tmp_path, "validation", "train")
    with pytest.raises(BadInput, match=r"holds the subsets validation, train, .* choose with --subset"):
        read_source([path])
    (tmp_path / "one").mkdir()
    only = both_subsets(tmp_path / "one", "mine")
    assert subset_means(read_source([only]).table.rows) == subset_means(gather([only]).test.rows) == 0.5


def test_what_was_pooled_over_a_fold_goes_with_its_subset(tmp_path):
    rows = table.read(scores(tmp_path / "a.csv", subset="test")).rows
    pooled = rows.assign(scope="pooled", subset="test fold1", case="", patient="").drop_duplicates(list(KEY))
    table.write(table.ScoreTable(table.concat([rows, pooled]), {}), tmp_path / "b.csv")
    assert len(read_source([tmp_path / "b.csv"]).table.rows) == len(rows) + len(pooled)


def test_an_empty_table_is_told_not_left_out(tmp_path):
    path = scores(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(path.read_text().splitlines()[0] + "\n")
    for read in (read_source, gather):
        with pytest.raises(BadInput, match=r"b\.csv holds no rows"):
            read([path, tmp_path / "b.csv"])


def test_a_benchmark_s_list_of_cells_in_latin_1_is_named(tmp_path):
    source = runs_of_one_loss(tmp_path)
    (source / "cells.csv").write_bytes("cell,dataset,network,label\na,toy,unet,fläche\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"cells\.csv is not a CSV table"):
        gather([source])


def test_a_name_of_ones_own_is_the_whole_name_of_a_table_of_one_method(tmp_path):
    path = scores(tmp_path / "a.csv", calibrator="temperature")
    rows = read_source(named={"ours": path}).table.rows
    assert set(zip(rows["loss"], rows["calibrator"], rows["variant"], strict=True)) == {("ours", "", "")}


def test_a_method_that_was_scored_on_another_subset_alone_does_not_vanish(tmp_path):
    both = [scores(tmp_path / f"ce-{subset}.csv", "ce", subset=subset) for subset in ("test", "validation")]
    nacl = scores(tmp_path / "nacl.csv", "nacl", subset="validation")
    assert methods(read_source(both).table.rows) == ["ce"]
    assert methods(read_source([*both, nacl], subset="validation").table.rows) == ["ce", "nacl"]
    with pytest.raises(BadInput, match="nacl on toy unet has no scores of the subset test"):
        read_source([*both, nacl])


def test_a_run_without_test_scores_does_not_vanish_beside_one_that_has_them(tmp_path):
    runs = [run(tmp_path / loss, loss) for loss in ("ce", "nacl")]
    for folder, subset in zip(runs, ("test", "validation"), strict=True):
        scores(folder / f"scores-{subset}.csv", folder.name, subset=subset)
    with pytest.raises(BadInput, match="nacl on toy unet has no scores of the subset test"):
        read_source(runs)
