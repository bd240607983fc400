"""What the command line, a grid and Python can say about scoring and calibrating is the same, and means the same."""

import shlex
from dataclasses import fields

import pytest
import tomli_w
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from calibseg.benchmark.grid import read_grid
from calibseg.cli import app
from calibseg.cli.shared_options import ClassOptions
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.io.conventions import FileConventions
from calibseg.stages.calibrate import stage as calibrating
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.score import stage as scoring
from calibseg.stages.score.options import ScoringOptions

KINDS = {"score": ScoringOptions, "calibrate": CalibrationOptions}
FILES = {"help", "images", "labels", "output", "predictions", "run", "work", "workers"}
FILES |= {field.name for kind in (FileConventions, ClassOptions) for field in fields(kind)}
ELSEWHERE = {  # what names files and cases, which a benchmark knows by itself, and how many processes work
    "score": FILES | {"calibrator", "members", "raters", "subset", "skip_bad", "tag"},
    "calibrate": FILES | {"apply", "apply_images", "apply_labels", "subset", "method"},
}
UNUSUAL = {  # for every field a value that is not its default
    "score": {
        "voxels": ["boundary", "union"],
        "boundary_mm": 3.14159265,
        "metrics": ["dsc", "hd95", "cece"],
        "bins": 20,
        "empty": "released",
        "units": "voxel",
        "options": {"hd95.definition": "max_directed", "cece.classes": "released"},
    },
    "calibrate": {
        "fit_on": "foreground",
        "sample": 500,
        "seed": 7,
        "folds": 3,
        "choose": "any",
        "options": {"local_temperature.epochs": 5, "temperature.solver": "it's a text"},
    },
}


def command(name):
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


def options_of(name, table):
    """The options as Python would say them."""
    return KINDS[name](**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


@pytest.mark.parametrize("name", KINDS)
def test_flags_grid_keys_and_fields_are_the_same_set(name):
    of_python = {field.name for field in fields(KINDS[name])}
    of_the_command = {parameter.name for parameter in command(name).params} - ELSEWHERE[name]
    with pytest.raises(BadInput, match="no key named") as error:
        read_grid({"data": {"dataset": "phantom"}, name: {"no such key": 1}})
    of_a_grid = {word.split(".")[1] for word in str(error.value).partition("Known: ")[2].split(", ")}
    assert of_the_command == of_a_grid == of_python


@pytest.mark.parametrize("name", KINDS)
def test_every_field_is_tried_with_a_value_that_is_not_its_default(name):
    unusual, usual = options_of(name, UNUSUAL[name]), KINDS[name]()
    assert not [one.name for one in fields(usual) if getattr(unusual, one.name) == getattr(usual, one.name)]


class Received(Exception):
    """Ends a command where its stage would begin, and carries the options that the stage was given."""


@pytest.fixture
def received(monkeypatch):
    """The options that a line of a shell hands to its stage, which does not run."""

    def stop(*places, **given):
        raise Received(given.get("scoring", given.get("options")))

    monkeypatch.setattr(scoring, "score_run", stop)
    monkeypatch.setattr(calibrating, "calibrate_run", stop)

    def run(words):
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, Received), result.output
        return result.exception.args[0]

    return run


def planned(tmp_path, tables):
    """The words of every line that --plan prints for a grid with these tables."""
    lines = ['data = { dataset = "phantom" }', '[axes]\ncalibrator = ["none", "temperature", "local_temperature"]']
    lines += ["noise = [0.0, 0.05]", "[split]", "sizes = [0.7, 0.1234567, 0.1765433]"]
    for name, table in tables.items():
        lines.append(tomli_w.dumps({name: table}))
    (tmp_path / "grid.toml").write_text("\n".join(lines))
    shown = CliRunner().invoke(app, ["benchmark", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "out"), "--plan"])
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.output.splitlines() if line and not line.startswith("#")]
    assert all(line.startswith("calibseg ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("tables", [{}, UNUSUAL], ids=["defaults", "nothing by default"])
def test_every_line_of_a_plan_is_understood_by_the_command_as_the_grid_says(tmp_path, received, tables):
    wanted = {name: options_of(name, tables.get(name, {})) for name in KINDS}
    seen = {"score": 0, "calibrate": 0}
    for name, *words in planned(tmp_path, tables):
        context = command(name).make_context(name, list(words))  # an unknown or malformed word is an error
        if name == "split":
            assert context.params["sizes"] == (0.7, 0.1234567, 0.1765433)
        if name in KINDS:
            assert received([name, *words]) == wanted[name]
            seen[name] += 1
    assert seen == {"score": 7, "calibrate": 1}  # validation once; two test sets, each with three calibrators


def test_a_calibrator_from_a_file_is_fitted_by_its_path_and_scored_by_its_name(tmp_path):
    template = registry.PACKAGE / "cli" / "templates" / "calibrator.py.txt"
    mine = tmp_path / "mine.py"
    mine.write_text(template.read_text().replace("{name}", "mine"))
    (tmp_path / "grid.toml").write_text(f'data = {{ dataset = "phantom" }}\n[axes]\ncalibrator = ["{mine}"]')
    shown = CliRunner().invoke(app, ["benchmark", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "out"), "--plan"])
    lines = [shlex.split(line) for line in shown.output.splitlines()]
    (fit,) = (words for words in lines if words[1:2] == ["calibrate"])
    assert fit[fit.index("--method") + 1] == str(mine)
    (scored,) = (words for words in lines if "--calibrator" in words)
    assert scored[scored.index("--calibrator") + 1] == "mine"
