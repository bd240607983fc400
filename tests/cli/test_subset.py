"""One word for train, validation, test and calibration on the command line: --subset, of which --cases is an alias."""

import pytest
from typer.testing import CliRunner

from calibseg.cli import app

COMMANDS = {
    "predict": ("RUN",),
    "score": ("RUN",),
    "calibrate": ("RUN",),
    "plot": ("logits", "RUN", "-o", "x.pdf"),
    "table": ("RUN",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_cases_is_an_alias_of_subset(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        CliRunner().invoke(app, [command, *COMMANDS[command], option, "validation"])
        for option in ("--subset", "--cases")
    ]
    texts = [(run.exit_code, run.output, str(run.exception)) for run in runs]
    assert texts[0] == texts[1]
    assert "No such option" not in texts[0][1]
    assert "RUN" in "".join(map(str, texts[0]))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_subset_first(command):
    shown = CliRunner().invoke(app, [command, "--help"]).output
    assert 0 < shown.index("--subset") < shown.index("--cases")
