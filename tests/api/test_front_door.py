"""What `calibseg` itself offers: exactly these names, loaded when they are used."""

import subprocess
import sys

import pytest

import calibseg
from calibseg import api
from calibseg.core import registry

SURFACE = {
    *("losses", "metrics", "calibrators", "decisions", "networks", "datasets"),
    *("Case", "Split", "Prediction", "BadInput"),
    *("measure", "Measured", "CalibrationMonitor", "available", "create"),
}
STAGES = {"prepare", "split", "train", "predict", "calibrate", "score", "rank", "report", "benchmark"}


def test_these_names_and_no_others_are_the_public_surface():
    assert set(calibseg.__all__) == SURFACE
    assert set(api.__all__) == STAGES | {"measure", "Measured"}
    assert set(dir(calibseg)) == SURFACE | {"__version__", "api"}
    for name in SURFACE:
        assert getattr(calibseg, name) is not None
    for name in STAGES:
        assert getattr(api, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'loses'"):
        _ = calibseg.loses


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, calibseg; dir(calibseg); calibseg.BadInput; calibseg.available('losses')"
    code += "; print(*{'torch', 'numpy', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_a_first_use_imports_what_it_needs():
    code = "import calibseg; print(calibseg.losses.NACL.__name__, calibseg.datasets.Phantom.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["NACL", "Phantom"], done.stderr


def test_datasets_are_those_of_the_data_room():
    import calibseg.data.datasets

    assert calibseg.datasets is calibseg.data.datasets


@pytest.mark.parametrize("family", registry.families())
def test_a_family_can_be_listed_under_its_plural_and_its_singular(family):
    listed = calibseg.available(family)
    assert listed == calibseg.available(registry.SINGULAR[family])
    assert list(listed) == list(registry.members(family))
    assert all(listed.values())


def test_create_builds_a_member_and_refuses_what_it_does_not_know():
    assert calibseg.create("losses", "nacl", weight=0.3).weight == 0.3
    assert calibseg.create("metric", "ece").needs == "calibration"
    for arguments, complaint in (
        (("loses", "nacl"), "no family named 'loses'. Did you mean 'losses'?"),
        (("losses", "nakl"), "no loss named 'nakl'. Did you mean 'nacl'?"),
    ):
        with pytest.raises(calibseg.BadInput, match=complaint):
            calibseg.create(*arguments)
    with pytest.raises(calibseg.BadInput, match="no option of loss 'nacl' named 'wait'"):
        calibseg.create("losses", "nacl", wait=1)
