"""The file name is the registration."""

import importlib.metadata
import subprocess
import sys

import pytest

import calibseg.losses
from calibseg.core import registry
from calibseg.core.types import BadInput

GOOD = '''"""A loss in one file."""
from calibseg.losses import Loss
class Mine(Loss):
    """Mine.

    power: > 0, how much.
    """
    views = 1
    def __init__(self, power: float = 2.0, **common):
        super().__init__(**common)
        self.power = power
    def objective(self, logits, target):
        return {"mine": (logits.abs() ** self.power * target.voxel_weight(logits.dtype)).sum()}
'''


@pytest.mark.parametrize("family", registry.families())
def test_every_file_holds_one_public_class_under_its_own_key(family):
    for key, member in registry.members(family).items():
        assert member.path.stem == key
        assert member.summary.endswith(".")
        assert member.load().__name__ == member.class_name


def test_a_class_is_imported_by_name_when_it_is_asked_for():
    from calibseg.losses import NACL

    assert NACL is registry.load("losses", "nacl")
    assert "NACL" in dir(calibseg.losses)
    with pytest.raises(ImportError):
        exec("from calibseg.losses import NoSuchLoss")


def test_listing_reads_sources_and_imports_nothing():
    code = "import sys; from calibseg.core import registry\n"
    code += "print(len(registry.members('losses'))); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(shown[0]) >= 10
    assert shown[1] == "False"


def test_a_path_to_a_file_is_a_member(tmp_path, batch):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    member = registry.find("losses", str(path))
    assert member.key == "mine"
    assert member.options[0].name == "power"
    assert member.options[0].note == "> 0, how much."
    logits, labels = batch(3)
    value = registry.build("losses", str(path), {"power": 1.0})(logits, labels)
    assert value.item() == pytest.approx(logits.abs().sum(1).mean().item())


def test_an_entry_point_is_a_member(tmp_path, monkeypatch):
    (tmp_path / "plugged.py").write_text(GOOD)
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[calibseg.losses]\nplugged = plugged:Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "plugged" in {entry.name for entry in importlib.metadata.entry_points(group="calibseg.losses")}
    member = registry.members("losses")["plugged"]
    assert member.summary == "A loss in one file."
    assert registry.build("losses", "plugged", {"power": 3.0}).power == 3.0


def test_a_plug_in_cannot_take_a_known_name(tmp_path, monkeypatch):
    info = tmp_path / "thief-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thief\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[calibseg.losses]\nnacl = thief:Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match=r"'thief:Mine' is named 'nacl', which nacl\.py already is"):
        registry.members("losses")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('"""Two."""\nclass A: ...\nclass B: ...\n', "exactly one public class, found A, B"),
        ('"""None."""\nclass _A: ...\n', "exactly one public class, found none"),
        ("class A: ...\n", "there is no docstring"),
        ("class A(:\n", "line 1 is not Python"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, text, complaint):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint) as caught:
        registry.find("losses", str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_and_an_unknown_family_are_named():
    with pytest.raises(BadInput, match=r"no file '\./nothing\.py'"):
        registry.find("losses", "./nothing.py")
    with pytest.raises(BadInput, match=r"no family named 'loses'\. Did you mean 'losses'"):
        registry.members("loses")


def test_a_list_says_what_the_parsed_files_say():
    for family in registry.families():
        parsed = {key: member.summary for key, member in registry.members(family).items()}
        assert registry.summaries(family) == parsed
