"""Benchmarks whose grid or files change half-way: the end is that of a run from the beginning."""

import os

import pytest

from calibseg.analysis import table
from calibseg.benchmark import plan
from calibseg.benchmark.cell import pending
from calibseg.runs import folders
from calibseg.stages.calibrate import fit_and_choose
from support.benches import bench_of, finished

AXES = {"calibrator": ["none", "temperature", "vector"]}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    bench = bench_of(tmp_path_factory.mktemp("bench") / "out", AXES)
    assert finished(bench).exit_code == 0
    return bench


def test_a_plan_goes_on_to_what_is_made_from_what_it_makes_anew(done):
    (cell,) = done.grid.cells
    logits = folders.RunFolder(done.run(cell)).logits / "validation"
    os.utime(next(logits.glob("*.npz")))
    lines = [line for line in plan(done, done.grid.cells, {}) if line.startswith("calibseg")]
    said = [
        (words[1], "".join(words[words.index("--calibrator") + 1 :][:1]) if "--calibrator" in words else "")
        for words in map(str.split, lines)
    ]
    assert said == [("score", ""), ("calibrate", ""), ("score", "temperature"), ("score", "vector"), ("benchmark", "")]


def test_a_calibration_that_was_killed_under_other_options_is_made_again(done, monkeypatch):
    before = table.read(done.folder.scores).rows
    cross_fit = fit_and_choose.cross_fit

    def killed(method, *arguments):
        if method is not None and method[0] == "vector":  # temperature is whole by then, vector only fitted
            raise KeyboardInterrupt
        cross_fit(method, *arguments)

    monkeypatch.setattr(fit_and_choose, "cross_fit", killed)
    with pytest.raises(KeyboardInterrupt):
        finished(bench_of(done.folder.path, AXES, calibrate={"fit_on": "foreground"}))
    monkeypatch.undo()
    again = bench_of(done.folder.path, AXES)
    assert pending(again, again.grid.cells[0], False)[0].name == "calibrate"
    assert finished(again).exit_code == 0
    after = table.read(done.folder.scores).rows
    assert after.equals(before)
