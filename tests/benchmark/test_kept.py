"""Reduced score tables: what is kept of a finished cell stands for the whole of it, and for nothing else."""

import json
import shutil
from dataclasses import replace

import pytest

from calibseg.analysis import table
from calibseg.benchmark import unfinished
from calibseg.benchmark.cell_stages import data_stages
from calibseg.benchmark.collect import merge_scores
from calibseg.benchmark.command import Command
from calibseg.benchmark.grid import read_grid
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.runs.folders import RunFolder
from calibseg.stages.prepare import make_splits
from support.benches import CELLS, bench_of, finished, noted

TABLES = {
    "split": {"sizes": [4.0, 2.0, 2.0], "train_sizes": [2, 3], "draws": 2},
    "train": {"epochs": 1, "batch_size": 4, "steps_per_epoch": 2},
    "score": {"voxels": "predicted,all"},  # every metric
    "report": {},
}
AXES = {
    "data": [
        {"dataset": "phantom", "split": "train2-draw0", "label": "two"},
        {"dataset": "phantom", "split": "train3-draw1", "label": "three"},
    ],
    "calibrator": ["none", "temperature"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two small training sets of one preparation, walked to the end and kept; then all other folders are lost."""
    folder = tmp_path_factory.mktemp("kept")
    bench = replace(bench_of(folder / "out", AXES, **TABLES), kept=folder / "kept")
    assert finished(bench).exit_code == 0
    whole = table.plain(merge_scores(bench).rows)
    assert [path.name for path in (folder / "out" / "work").iterdir()] == ["two"]  # prepared once for both labels
    kept = {path: path.read_bytes() for path in (folder / "kept").glob("*.csv.gz")}
    next(iter(kept)).unlink()
    assert finished(bench).exit_code == 0  # a cell that was finished without being kept is kept now
    assert {path: path.read_bytes() for path in (folder / "kept").glob("*.csv.gz")} == kept
    shutil.rmtree(folder / "out")
    return folder, whole


def test_kept_cells_count_as_done_when_their_folders_are_lost(made):
    folder, _ = made
    bench = replace(bench_of(folder / "again", AXES, **TABLES), kept=folder / "kept")
    assert finished(bench).exit_code == 0
    assert noted(bench, bench.grid.cells[0]) == ["prepare", "split"]  # the data are prepared, nothing is trained
    assert unfinished(bench, bench.grid.cells) == []
    assert not (folder / "again" / "runs").exists()


def test_a_kept_table_has_test_and_validation_cases_and_calibrators_are_cross_fitted(made):
    folder, whole = made
    for path in (folder / "kept").glob("*.csv.gz"):
        rows = table.plain(table.read(path).rows)
        counted = rows.groupby(["subset", "calibrator"])["case"].nunique().to_dict()
        assert set(counted) == {(part, name) for part in ("test", "validation") for name in ("", "temperature")}
        assert set(counted.values()) == {2}
        assert set(rows["scope"]) == {"case"}
        dsc = rows[rows["metric"] == "dsc"]
        assert "all" not in set(dsc["class"])  # class by class
        dsc = dsc[dsc["subset"] == "validation"]
        own, calibrated = (dsc.loc[dsc["calibrator"] == name, "value"].tolist() for name in ("", "temperature"))
        assert own == pytest.approx(calibrated, abs=0, nan_ok=True)  # no label moves
        assert set(rows.loc[rows["metric"] == "nll", "class"]) == {"all"}
        assert {"dsc", "hd95", "ece", "nll", "brier", "signed_gap"} == set(rows["metric"])  # the headline and the gap
    assert set(whole["dataset"]) == {"two", "three"}
    assert len(set(whole["metric"])) > 10  # run folders that are whole say more
    assert "pooled" in set(whole["scope"])


def test_a_kept_candidate_is_chosen_again_without_being_trained_again(tmp_path):
    axes = {"loss": [{"name": "ls", "choices": {"smoothing": [0.1, 0.9]}}]}
    tables = TABLES | {"split": {"sizes": [4.0, 2.0, 2.0]}, "select": {"by": "brier@all"}}
    winners = []
    for folder in ("out", "again"):
        bench = replace(bench_of(tmp_path / folder, axes, **tables), kept=tmp_path / "kept")
        done = finished(bench)
        assert done.exit_code == 0
        winners.append([candidate.cells for candidate in done.candidates if candidate.chosen])
        assert len(done.candidates) == 2
        assert set(merge_scores(bench).rows["loss"]) == {"ls"}
    assert winners[0] == winners[1]
    assert not (tmp_path / "again" / "runs" / winners[0][0][0]).exists()


def test_what_is_kept_says_the_same_numbers_to_six_digits(made):
    folder, whole = made
    bench = replace(bench_of(folder / "numbers", AXES, **TABLES), kept=folder / "kept")
    finished(bench)
    found = table.plain(merge_scores(bench).rows)
    keys = ["dataset", "loss", "calibrator", "seed", "case", "class", "voxels", "metric"]
    both = found.merge(whole[whole["scope"] == "case"], on=keys)
    assert len(both) == len(found) > 50
    assert both["value_x"].tolist() == pytest.approx(both["value_y"].tolist(), rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "changes",
    [["loss.name=ls"], ["seed=7"], ["split.split_seed=5"], ["score.bins=7"], ['score.voxels=["truth"]']],
    ids=["loss", "seed", "cases", "rules", "voxels"],
)
def test_a_kept_table_made_from_anything_else_does_not_count(made, changes, tmp_path):
    folder, _ = made
    bench = replace(bench_of(tmp_path / "out", AXES, changes, **TABLES), kept=folder / "kept")
    cell = bench.grid.cells[0]
    for stage in data_stages(bench, cell):
        stage.command()
    assert not bench.is_kept(cell)


def test_a_damaged_companion_is_refused_with_its_name(made, tmp_path):
    folder, _ = made
    shutil.copytree(folder / "kept", tmp_path / "kept")
    bench = replace(bench_of(tmp_path / "out", AXES, **TABLES), kept=tmp_path / "kept")
    path = table.meta_path(bench.kept_table(bench.grid.cells[0]))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kept": 5}))
    with pytest.raises(BadInput, match=r"meta\.json.*kept = 5 must be"):
        bench.is_kept(bench.grid.cells[0])


def test_small_training_sets_are_drawn_from_sizes_not_from_folds(made):
    folder, _ = made
    grid = read_grid(CELLS | TABLES | {"split": {"folds": 2, "train_sizes": [2]}})
    with pytest.raises(BadInput, match="give sizes, not folds"):
        Command("split", {"work": folder / "again" / "work" / "two", "how": grid.split})()
    assert make_splits(folder / "again" / "work" / "two", sizes=(4, 2, 2))["default"].test


def test_an_edited_calibrator_file_is_fitted_again_and_what_was_kept_of_it_no_longer_counts(tmp_path):
    program = tmp_path / "mine.py"
    program.write_text(registry.find("calibrators", "temperature").path.read_text())
    axes = {"calibrator": ["none", str(program)]}
    bench = replace(bench_of(tmp_path / "out", axes), kept=tmp_path / "kept")
    (cell,) = bench.grid.cells
    assert finished(bench).exit_code == 0
    assert bench.is_kept(cell)
    before = json.loads(RunFolder(bench.run(cell)).calibrator("mine").info.read_text())["made_from"]
    program.write_text(program.read_text().replace('] = "newton"', '] = "released"'))
    assert not bench.is_kept(cell)
    assert unfinished(bench, bench.grid.cells) == [cell]
    assert finished(bench).exit_code == 0
    assert json.loads(RunFolder(bench.run(cell)).calibrator("mine").info.read_text())["made_from"] != before
    assert noted(bench, cell)[-2:] == ["calibrate", "score test+mine"]
    assert bench.is_kept(cell)
    assert unfinished(bench, bench.grid.cells) == []
