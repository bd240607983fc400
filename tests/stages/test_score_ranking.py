"""Ranking anybody's scored folders, and the help of both commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibseg import cli
from calibseg.api import score
from support.scored_folders import QUICK, random_case, save_case, values_of


def test_strangers_folders_are_ranked_by_name(folder, calibseg):
    for number in range(4):
        p, labels = random_case(number)
        sharp = p**3 / (p**3).sum(0)
        save_case(folder / "sharp", f"case{number}", sharp, labels, affine=np.diag([1.0, 2.0, 3.0, 1.0]))
    rules = {"metrics": ("dsc", "hd95", "ece", "cece", "nll")}
    score(predictions=folder / "p", labels=folder / "l", output=folder / "plain.csv", **rules)
    score(predictions=folder / "sharp" / "p", labels=folder / "sharp" / "l", output=folder / "sharp.csv", **rules)
    given = ("rank", "--method", f"plain={folder}/plain.csv", "--method", f"sharp={folder}/sharp.csv")
    code, out, _ = calibseg(
        *given, "--metrics", "dsc,nll,ece@truth", "--compare", "plain,sharp", "-o", folder / "ranks.csv"
    )
    assert code == 0
    assert "plain minus sharp" in out
    ranks = pd.read_csv(folder / "ranks.csv", keep_default_na=False)
    columns = ranks[ranks["ranking"] == "column"].set_index(["metric", "method"])
    assert columns.loc[("dsc", "plain"), "rank"] == columns.loc[("dsc", "sharp"), "rank"] == 1.0  # the same argmax
    plain = values_of(folder / "plain.csv", metric="nll", voxels="all", class_="all", scope="case")
    assert float(columns.loc[("nll@all", "plain"), "mean"]) == pytest.approx(np.mean(plain))
    meta = json.loads((folder / "ranks.meta.json").read_text())
    assert meta["format"] == "calibseg-ranks/1"
    assert meta["parts"][0]["friedman_tests"]["nll@all"]["blocks"] == 4
    assert [row["metric"] for row in meta["parts"][0]["differences"]] == ["dsc", "nll@all", "ece@truth"]


def test_unnamed_or_differently_scored_tables_are_not_ranked(folder, calibseg):
    score(predictions=folder / "p", labels=folder / "l", output=folder / "a.csv", metrics=QUICK)
    score(predictions=folder / "p", labels=folder / "l", output=folder / "b.csv", metrics=QUICK, units="voxel")
    code, _, err = calibseg("rank", folder / "a.csv", folder / "a.csv")
    assert code == 2
    assert "rows appear twice" in err
    given = ("rank", folder / "a.csv", "--method", f"b={folder}/b.csv", "-o", folder / "ranks.csv")
    code, _, err = calibseg(*given)
    assert code == 2
    assert 'units is "voxel" in it, not "mm"' in err
    assert not (folder / "ranks.csv").exists()


def test_reliability_rows_that_a_glob_catches_are_no_score_tables(folder, calibseg):
    for loss in ("ce", "nacl"):
        score(predictions=folder / "p", labels=folder / "l", output=folder / f"{loss}.csv", metrics=QUICK,
              experiment={"loss": loss})  # fmt: skip
    tables = sorted(folder.glob("*.csv"))
    assert any(path.name == "ce.bins.csv" for path in tables)
    code, out, err = calibseg("rank", *tables, "--metrics", "dsc")
    assert code == 0, err
    assert "nacl" in out


def test_datasets_can_be_ranked_apart(folder, calibseg):
    for dataset in ("one", "two"):
        for loss in ("ce", "nacl"):
            tags = {"dataset": dataset, "loss": loss}
            output = folder / f"{dataset}-{loss}.csv"
            score(predictions=folder / "p", labels=folder / "l", output=output, metrics=QUICK, experiment=tags)
    paths = sorted(folder.glob("*-*.csv"))
    paths = [path for path in paths if "bins" not in path.name]
    code, out, _ = calibseg("rank", *paths, "--metrics", "dsc,ece", "--by", "dataset", "-o", folder / "ranks.csv")
    assert code == 0
    assert "dataset one" in out
    assert set(pd.read_csv(folder / "ranks.csv")["part"]) == {"one", "two"}


@pytest.mark.parametrize("command", ["score", "rank"])
def test_help_has_examples_and_is_quick_to_load(command):
    code = (
        "import sys\nfrom calibseg.cli import main\nsys.argv = ['calibseg', sys.argv[1], '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, command], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert f"calibseg {command}" in done.stdout.decode()
