"""Benchmarks: a grid is walked to its end whatever happens in between, and nothing is done twice."""

import csv
import io
import json
import os
import re
import shlex
import signal
from dataclasses import replace
from unittest.mock import MagicMock

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from calibseg.analysis import table
from calibseg.analysis.merge import merge
from calibseg.analysis.run_names import chosen_cells
from calibseg.benchmark import benchmark, chosen_by, cluster, open_bench, plan
from calibseg.benchmark.cell import Outcome, pending, read_outcome, walk
from calibseg.benchmark.cell_stages import data_stages
from calibseg.benchmark.collect import _named, collect_results
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.progress import Board
from calibseg.benchmark.workers import Budget, budget, visible_gpus
from calibseg.cli import app
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.runs import folders
from calibseg.runs.info import read_run
from support.benches import CELLS, QUIET, bench_of, calibseg, files_below, finished, noted, start, until


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two losses, with and without temperature scaling, and noise; walked to the end."""
    axes = {"loss": ["ce", "ls"], "calibrator": ["none", "temperature"], "noise": [0.0, 0.05]}
    bench = bench_of(tmp_path_factory.mktemp("bench") / "out", axes)
    return bench, finished(bench)


def test_every_cell_goes_through_every_stage_once(done):
    bench, result = done
    assert result.exit_code == 0
    assert {outcome.status for outcome in result.outcomes.values()} == {"done"}
    first, second = bench.grid.cells
    own = ["train", "predict validation", "score validation", "calibrate", "predict test", "score test"]
    own += ["score test+temperature", "predict test-noise0.05-seed0", "score test-noise0.05-seed0"]
    own += ["score test-noise0.05-seed0+temperature"]
    assert noted(bench, first) == ["prepare", "split", *own]  # the first finds no data, the second does
    assert noted(bench, second) == own


def test_scores_of_all_cells_lie_in_one_table_under_their_names(done):
    bench, result = done
    rows = table.plain(table.read(bench.folder.scores).rows)
    methods = rows[["loss", "calibrator", "variant"]].drop_duplicates()
    assert set(map(tuple, methods.to_numpy())) == {
        (loss, calibrator, variant)
        for loss in ("ce", "ls")
        for calibrator in ("", "temperature")
        for variant in ("", "noise0.05-seed0")
    }
    assert set(table.read(bench.folder.validation_scores).rows["subset"]) == {"validation"}
    ranks = pd.read_csv(bench.folder.ranks)
    assert set(ranks["method"]) == {"ce", "ls", "ce+temperature", "ls+temperature"}  # noise is no method
    assert set(ranks["metric"].dropna()) == {"dsc", "ece@predicted", "nll@all"}
    assert result.collected.scores == bench.folder.scores


def test_putting_together_counts_what_is_not_finished(tmp_path):
    shown = CliRunner().invoke(app, ["benchmark", "cpu/phantom", "-o", str(tmp_path), "--collect"])
    assert shown.exit_code == 0
    assert "3 cells: 0 done (0 of them now), 0 failed, 0 stopped, 3 waiting" in shown.output


def test_cells_that_were_never_begun_are_waiting_and_not_done(tmp_path):
    bench = bench_of(tmp_path / "out", {"loss": ["ce", "ls", "focal"]})

    def stopped_early(slugs, command, folder, board):
        return {slugs[0]: Outcome("stopped", "train")}

    result = benchmark(bench, bench.grid.cells, stopped_early, QUIET)
    assert (result.cells, result.those("stopped"), result.waiting) == (3, [bench.grid.cells[0].slug], 2)
    assert result.exit_code == 75


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("score.metrics=dsc,no_such", "no_such"),
        ("axes.noise=[0.0, nan]", "must be numbers of at least 0"),
        ('score.options={"hd95.definition" = "no_such"}', "definition"),
    ],
)
def test_a_plan_refuses_what_would_fail_after_hours(tmp_path, change, fact):
    shown = CliRunner().invoke(app, ["benchmark", "cpu/phantom", "-o", str(tmp_path / "o"), "--plan", "--set", change])
    assert isinstance(shown.exception, BadInput)
    assert fact in str(shown.exception)
    assert not (tmp_path / "o").exists()


def test_a_second_time_nothing_is_done(done):
    bench, _ = done
    before = files_below(bench.folder.path)
    again = finished(bench, run=lambda command: pytest.fail(f"{command} was run again"))
    assert again.outcomes == {}
    assert again.exit_code == 0
    assert files_below(bench.folder.path) == before


def test_what_is_older_than_its_sources_is_made_again(done):
    bench, _ = done
    cell = bench.grid.cells[0]
    run = folders.RunFolder(bench.run(cell))
    os.utime(run.logits / "validation" / sorted(os.listdir(run.logits / "validation"))[0])
    names = [stage.name for stage in pending(bench, cell, False)]
    assert names == ["score validation", "calibrate"]
    assert walk(bench, cell).status == "done"
    # the calibrator is new, so what was calibrated with it is scored again
    assert noted(bench, cell)[-4:-2] == ["score validation", "calibrate"]
    assert set(noted(bench, cell)[-2:]) == {"score test+temperature", "score test-noise0.05-seed0+temperature"}
    assert not pending(bench, cell, False)


def test_a_case_that_was_prepared_again_is_predicted_again(done):
    bench, _ = done
    cell = bench.grid.cells[0]
    (id, *_) = read_run(bench.run(cell)).cases("test")
    os.utime(prepared.case_path(bench.work(cell), id))
    assert [stage.name for stage in pending(bench, cell, False)] == ["predict test", "predict test-noise0.05-seed0"]
    assert walk(bench, cell).status == "done"
    assert not pending(bench, cell, False)


def test_another_way_to_calibrate_is_seen(done):
    bench, _ = done
    grid = read_grid(dict(bench.grid.tables) | {"calibrate": {"sample": 50}})
    other = open_bench(grid, bench.folder.path, {})
    assert [stage.name for stage in pending(other, grid.cells[0], False)] == ["calibrate"]


def test_another_way_to_score_is_seen(done):
    bench, _ = done
    grid = read_grid(dict(bench.grid.tables) | {"score": {"metrics": "dsc,ece,nll", "voxels": "truth"}})
    other = open_bench(grid, bench.folder.path, {})
    assert {stage.name.split()[0] for stage in pending(other, grid.cells[0], False)} == {"score"}


def test_a_run_made_by_hand_in_a_cells_folder_counts(done, tmp_path):
    """Trained elsewhere on the same cases, from the same recipe: moved in, its predictions are compared, no more."""
    bench, _ = done
    (cell, _) = bench.grid.cells
    other = bench_of(tmp_path / "out", {"loss": [{"name": "ce", "label": "cross-entropy"}]})
    calibseg(["prepare", "--dataset", "phantom", "-o", str(other.work(cell)), *_options()])
    calibseg(["split", str(other.work(cell)), "--sizes", "4", "2", "2"])
    other.run(cell).parent.mkdir(parents=True)
    os.symlink(bench.run(cell), other.run(cell))
    names = {stage.name.split()[0] for stage in pending(other, other.grid.cells[0], False)}
    assert names == {"predict"}  # the cases are newer than the logits


def _options():
    return [word for name, value in CELLS["data"]["options"].items() for word in ("--option", f"{name}={value}")]


def test_a_failed_cell_is_told_with_its_error_and_the_rest_goes_on(tmp_path):
    wild = {"name": "ls", "label": "wild", "train": {"learning_rate": 1e30}}
    bench = bench_of(tmp_path / "out", {"loss": [wild, "ce"]}, ["train.epochs=2"])
    result = finished(bench)
    bad, good = bench.grid.cells
    assert result.exit_code == 1
    assert result.those("failed") == [bad.slug]
    assert result.outcomes[bad.slug].stage == "train"
    assert "the loss is not finite any more" in result.outcomes[bad.slug].error
    assert read_outcome(bench.folder, bad.slug) == result.outcomes[bad.slug]
    assert result.outcomes[good.slug].status == "done"
    rows = table.read(bench.folder.scores).rows
    assert set(rows["loss"]) == {"ce"}


def test_a_crash_of_any_kind_ends_its_cell_only(tmp_path):
    def crashing(command):
        if command.verb == "train" and "-ls-" in str(command.arguments["recipe"]):
            raise MemoryError("no room")
        return command()

    bench = bench_of(tmp_path / "out", {"loss": ["ls", "ce"]})
    result = finished(bench, crashing)
    assert result.outcomes[bench.grid.cells[0].slug] == Outcome(
        "failed", "train", "MemoryError: no room", 3, result.outcomes[bench.grid.cells[0].slug].seconds
    )
    assert result.outcomes[bench.grid.cells[1].slug].status == "done"


def test_the_plan_carried_out_by_hand_makes_the_same_files(done, tmp_path):
    bench, _ = done
    grid = read_grid(dict(bench.grid.tables) | {"axes": {"calibrator": ["none", "temperature"]}})
    hand = open_bench(grid, tmp_path / "out", {})
    lines = plan(hand, grid.cells, {})
    commands = [shlex.split(line) for line in lines if line and not line.startswith("#")]
    assert [command[1] for command in commands] == [
        *("prepare", "split", "train", "predict", "score", "calibrate", "predict", "score", "score", "benchmark"),
    ]
    for command in commands:
        assert command[0] == "calibseg"
        assert calibseg(command[1:]) == 0
    (cell,) = grid.cells
    assert not pending(hand, cell, False)
    assert (
        files.read_tensors(folders.RunFolder(hand.run(cell)).weights, "weights")[1]
        == (files.read_tensors(folders.RunFolder(bench.run(cell)).weights, "weights")[1])
    )
    for name in ("scores-test.csv", "scores-test+temperature.csv", "scores-validation.csv", "log.csv"):
        ours, theirs = (pd.read_csv(where.run(cell) / name) for where in (hand, bench))
        times = [column for column in ours if column in ("train_s", "epoch_s")]
        pd.testing.assert_frame_equal(ours.drop(columns=times), theirs.drop(columns=times))
    assert hand.folder.scores.is_file()
    assert [line for line in plan(hand, grid.cells, {}) if line and not line.startswith("#")] == lines[-1:]


def test_the_best_candidate_on_validation_goes_on_to_the_test_cases(tmp_path):
    loss = {"name": "ls", "choices": {"smoothing": [0.1, 0.9]}}
    bench = bench_of(tmp_path / "out", {"loss": [loss, "ce"]}, select={"by": "nll"})
    result = finished(bench)
    assert result.exit_code == 0
    selection = pd.read_csv(bench.folder.selection)
    assert selection["chosen"].sum() == 1
    assert [json.loads(choice) for choice in selection["choice"]] == [{"loss.smoothing": 0.1}, {"loss.smoothing": 0.9}]
    assert selection.loc[selection["chosen"], "value"].item() == selection["value"].min()  # of NLL less is better
    winner, loser = (set(selection.loc[selection["chosen"] == chosen, "cells"]) for chosen in (True, False))
    assert chosen_cells(bench.folder.path) == winner
    assert (bench.folder.run(*winner) / "scores-test.csv").is_file()
    assert not (bench.folder.run(*loser) / "scores-test.csv").exists()
    assert set(table.read(bench.folder.scores).rows["loss"]) == {"ls", "ce"}


def test_folds_stand_side_by_side(tmp_path):
    bench = bench_of(
        tmp_path / "out",
        {"data.split": ["fold-1-of-2", "fold-2-of-2"]},
        split={"folds": 2, "validation": 1},
    )
    assert finished(bench).exit_code == 0
    rows = table.read(bench.folder.scores).rows
    assert rows.loc[rows["scope"] == "case", "case"].nunique() == 8
    assert set(rows.loc[rows["scope"] == "pooled", "subset"]) == {"test fold-1-of-2", "test fold-2-of-2"}


def test_a_case_may_select_in_several_folds(done):
    bench, _ = done
    cell = bench.grid.cells[0]
    path = bench.run(cell) / "scores-validation.csv"
    folds = [replace(cell.recipe, data=replace(cell.recipe.data, split=name)) for name in ("without-1", "without-2")]
    tables = [_named(table.read(path), replace(cell, recipe=recipe), ()) for recipe in folds]
    rows = merge(tables).rows
    cases = rows[rows["scope"] == "case"]
    assert set(cases["subset"]) == {"validation"}
    assert {case.split()[1] for case in cases["case"]} == {"without-1", "without-2"}
    assert cases["patient"].nunique() * 2 == cases["case"].nunique()


def test_killed_or_stopped_in_the_middle_it_ends_as_if_nothing_had_happened(done, tmp_path):
    """Killed with its worker while a cell trains, then asked to stop, then left alone: every stage ends once."""
    grid = read_grid(dict(done[0].grid.tables) | {"axes": {"loss": ["ce"]}}, ["train.epochs=60"])
    (tmp_path / "g.toml").write_text(grid.toml())
    (cell,) = grid.cells
    run, lock = folders.RunFolder(tmp_path / "out/runs" / cell.slug), tmp_path / "out/locks" / f"{cell.slug}.lock"
    process = start(tmp_path, "--workers", "1", "--threads", "1")
    until(run.state.exists)
    os.kill(process.pid, signal.SIGKILL)
    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    process.communicate()
    assert read_run(run.path).status == "running"
    before = run.log.stat().st_mtime_ns
    process = start(tmp_path, "--workers", "1", "--threads", "1")
    until(lambda: run.log.stat().st_mtime_ns > before)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 75, told
    assert "the same command goes on where this one stopped" in told
    assert read_run(run.path).status == "stopped"
    process = start(tmp_path, "--workers", "1", "--threads", "1")
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "1 cells: 1 done (1 of them now), 0 failed" in told
    with (tmp_path / "out" / "logs" / f"{cell.slug}.csv").open(newline="") as file:
        ended = [row["stage"] for row in csv.DictReader(file) if row["exit_code"] == "0"]
    assert len(ended) == len(set(ended))
    with run.log.open(newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(number) for number in range(1, 61)]


def test_the_board_counts_what_runs_is_done_and_failed_and_guesses_the_time_left(done, monkeypatch):
    bench, _ = done
    other = bench_of(bench.folder.path, {"loss": ["ce", "nacl", "crac"], "calibrator": ["none"]})
    clock = [100.0]
    monkeypatch.setattr("calibseg.benchmark.progress.time.monotonic", lambda: clock[0])
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    board = Board(other, other.grid.cells, screen)
    assert [board.parts[cell.slug] for cell in other.grid.cells] == [1.0, 2 / 14, 2 / 14]  # data are there, of 14 parts
    one, two, three = (cell.slug for cell in other.grid.cells)
    with board:
        for slug in (one, two):
            board.start(slug)
        clock[0] = 160.0
        board.end(one, Outcome("done"))
        board.end(two, Outcome("failed", "train", "it broke"))
        board.start(three)
    # 12/14 of a cell took 60 s; 12/14 of another are left
    assert board.left_s() == pytest.approx(60.0)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.file.getvalue())
    assert "failed   phantom unet nacl s0  1 min 0 s  train: it broke" in shown
    assert "1 running, 1 done, 1 failed, 0 waiting, 1 min 0 s so far, about 1 min 0 s left" in shown
    assert re.search(r"phantom +unet +crac +0 +train 0 of 1 epochs", shown)


def test_cells_are_named_by_label_dataset_network_or_seed():
    grid = read_grid(CELLS | {"axes": {"loss": ["ce", "nacl"], "seed": [0, 1]}})
    assert [cell.title for cell in chosen_by(grid, ["nacl"])] == ["phantom unet nacl s0", "phantom unet nacl s1"]
    assert len(chosen_by(grid, ["s1"])) == 2
    assert len(chosen_by(grid, [])) == 4
    assert [cell.title for cell in chosen_by(grid, ["s1", "nacl"])] == ["phantom unet nacl s1"]  # kinds narrow
    assert len(chosen_by(grid, ["s1", "s0", "ce"])) == 2  # names of one kind widen
    folder = grid.cells[0].slug
    assert [cell.slug for cell in chosen_by(grid, [folder])] == [folder]
    assert len(chosen_by(grid, [folder, "s1"])) == 3
    own_seeds = read_grid(CELLS | {"axes": {"loss": [{"name": "ce", "seeds": [0]}, {"name": "nacl", "seeds": [1]}]}})
    with pytest.raises(BadInput, match="no cell of the grid is all of ce, s1"):
        chosen_by(own_seeds, ["ce", "s1"])
    with pytest.raises(BadInput, match=r"no cell named 'nakl'. Did you mean 'nacl'"):
        chosen_by(grid, ["nakl"])


def test_raw_data_that_are_needed_are_asked_for_before_anything_runs(tmp_path):
    grid = read_grid({"data": {"dataset": "acdc"}})
    with pytest.raises(BadInput, match="say where the raw data of acdc lie: --root acdc=FOLDER"):
        open_bench(grid, tmp_path / "out", {})
    with pytest.raises(BadInput, match="there is no such folder"):
        open_bench(grid, tmp_path / "out", {"acdc": str(tmp_path / "nowhere")})
    with pytest.raises(BadInput, match="no dataset of the grid named 'flare'"):
        open_bench(grid, tmp_path / "out", {"flare": str(tmp_path)})
    assert not (tmp_path / "out").exists()


def test_two_raw_folders_of_labels_that_share_their_prepared_cases_are_refused(tmp_path):
    data = [{"dataset": "acdc", "label": "a"}, {"dataset": "acdc", "label": "b", "train": {"batch_size": 8}}]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    roots = {name: str(tmp_path / name) for name in ("a", "b")}
    with pytest.raises(
        BadInput, match=r"a and b are prepared alike and share .*work.a, but their raw data are .*/a and"
    ):
        open_bench(read_grid({"axes": {"data": data}}), tmp_path / "out", roots)
    assert not (tmp_path / "out").exists()
    open_bench(read_grid({"axes": {"data": data}}), tmp_path / "out", {"acdc": roots["a"]})
    own = [entry | {"work": str(tmp_path / f"work-{entry['label']}")} for entry in data]
    open_bench(read_grid({"axes": {"data": own}}), tmp_path / "out", roots)


def test_a_cell_gets_no_second_job_while_the_controller_does_not_answer(tmp_path, monkeypatch):
    answers = iter([None, {"7_0": "RUNNING"}, {}])
    submitted: list[str] = []
    monkeypatch.setattr(cluster, "POLL_S", 0)
    monkeypatch.setattr(cluster, "_check_slurm", lambda: None)
    monkeypatch.setattr(cluster, "_remembered", lambda folder: {"a": "7_0"})
    monkeypatch.setattr(cluster, "_submitted", lambda slugs, *more: submitted.extend(slugs) or {})
    monkeypatch.setattr(cluster, "alive_jobs", lambda: next(answers))
    monkeypatch.setattr(cluster, "read_outcome", lambda folder, slug: Outcome("done"))
    folder, board = folders.BenchmarkFolder(tmp_path), MagicMock(running={})
    assert cluster.run_on_slurm(["a"], lambda slug: [slug], folder, board, cluster.Cluster()) == {"a": Outcome("done")}
    assert submitted == []


def test_threads_never_exceed_the_cores():
    for cores in (1, 2, 3, 8, 64):
        for cells in (1, 2, 5, 100):
            share = budget(cells, None, None, cores=cores)
            assert share.workers * share.threads <= cores
    assert budget(9, 3, None, cores=8) == Budget(3, 2)
    assert budget(9, None, 4, cores=8) == Budget(2, 4)
    assert budget(9, None, None, cores=32, gpus=("0", "1")) == Budget(2, 16, ("0", "1"))
    for devices in (1, 2, 4):
        share = budget(9, None, None, cores=8, devices=devices)
        assert share.workers * share.threads * devices <= 8
    with pytest.raises(BadInput, match="2 workers with 2 threads each need more than the 2 cores"):
        budget(9, 2, 2, cores=2)


def test_a_worker_sees_as_many_gpus_as_its_training_has_processes(monkeypatch):
    def seen(gpus: str, devices: int) -> list[str]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        share = budget(9, None, None, cores=32, gpus=visible_gpus(), devices=devices)
        return [share.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(share.workers)]

    assert seen("0,1,2,3", 1) == ["0", "1", "2", "3"]
    assert seen("0,1,2,3", 2) == ["0,1", "2,3"]
    assert seen("4, 6", 1) == ["4", "6"]  # those that the user leaves us, not the first of the machine
    assert seen("0,1,2", 2) == ["0,1"]
    assert Budget(2, 1, ("0", "1", "2"), 2).environment(1)["CUDA_VISIBLE_DEVICES"] == "2,0"
    for nothing in ("", "-1"):
        assert seen(nothing, 1) == [nothing] * 4


def test_data_whose_options_the_grid_no_longer_has_are_prepared_anew(tmp_path):
    data = {"dataset": "phantom", "options": {"cases": 4, "size": [4, 16, 16], "noise": 0.5}}
    data["protocol"] = {"crop": [0, 8, 8]}
    without = [data, {**data, "options": {"cases": 4, "size": [4, 16, 16]}}, {**data, "protocol": {}}]
    for now in without:
        bench = bench_of(tmp_path / "out", data=now)
        prepare = data_stages(bench, bench.grid.cells[0])[0]
        assert not prepare.done()
        prepare.command()
        assert prepare.done()


def test_scores_of_cases_that_were_prepared_anew_are_left_out(tmp_path):
    bench = bench_of(tmp_path / "out")
    assert finished(bench).collected.notes == []
    index = bench.work(bench.grid.cells[0]) / "dataset.json"
    content = json.loads(index.read_text())
    for entry in content["cases"]:
        entry["key"] += "changed"
    index.write_text(json.dumps(content))
    collected = collect_results(bench)
    assert collected.scores is None
    assert any("prepared anew since" in note for note in collected.notes)
