"""Tables on a terminal."""

import pandas as pd
from rich.console import Console

from calibseg.cli import console


def test_no_name_is_broken_where_calibrators_stand_side_by_side_in_80_columns(capsys):
    rows = [dict.fromkeys(console.CALIBRATION, 0.1234) | {"method": name} for name in ("none", "region_temperature")]
    console.show(Console(width=80), console.calibration_table(rows, "region_temperature", "On validation"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[-3:]] == ["none", "region_temperature", "(chosen)"]
    assert len(lines[-2].split()) == 1 + len(console.CALIBRATION)


def test_a_single_patient_has_a_mean_and_no_interval(capsys):
    row = {"metric": "ece", "voxels": "predicted", "class": "all", "unit": "", "mean": 0.1, "defined": 1, "cases": 1}
    nan = float("nan")
    found = pd.DataFrame(
        [row | {"low": nan, "high": nan}, row | {"metric": "dsc", "voxels": "", "mean": nan, "low": nan}]
    )
    Console(width=80).print(console.summary_table(found))
    _, ece, dsc = capsys.readouterr().out.splitlines()
    assert "0.1" in ece
    assert "needs two patients" in ece
    assert dsc.count("undefined") == 2
