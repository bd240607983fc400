"""How methods and metrics look and are called: as their own files say, else in a stable colour."""

import subprocess
import sys

from calibseg.core import registry
from calibseg.core.registry import Member, members
from calibseg.report.palette import OTHERS, loss_of, method_styles, shown_method, shown_metric


def test_every_loss_says_how_it_is_written_and_drawn_and_no_two_look_alike():
    facts = {key: member.facts for key, member in members("losses").items()}
    assert all(fact.get("acronym") and fact.get("colour") and fact.get("marker") for fact in facts.values())
    assert len({fact["colour"] for fact in facts.values()}) == len(facts)
    assert shown_method("crac+temperature") == "CRaC+temperature"


def test_the_arrow_follows_the_direction_that_the_table_gives():
    assert shown_metric("hd95", higher_is_better=False) == "HD95 ↓"
    assert shown_metric("my_metric", higher_is_better=True) == "my metric ↑"
    assert shown_metric("ece@all") == "ECE, all"


def test_a_loss_of_somebody_else_is_drawn_as_it_says_or_else_in_a_colour_by_its_name(monkeypatch):
    known = members("losses")
    mine = Member(
        "losses", "mine", "Mine", "m", known["ce"].path, "Mine.", (), {"acronym": "MINE", "colour": "#123456"}
    )
    silent = Member("losses", "silent", "Silent", "m", known["ce"].path, "Silent.", (), {})
    monkeypatch.setattr(registry, "members", lambda family: known | {"mine": mine, "silent": silent})
    styles = method_styles(["mine", "silent", "ce"])
    assert (styles["mine"].colour, styles["mine"].label) == ("#123456", "MINE")
    assert styles["silent"].colour in OTHERS
    assert styles["silent"] == method_styles(["silent"])["silent"]  # whatever is beside it


def test_a_loss_keeps_its_colour_whatever_is_beside_it():
    alone = method_styles(["nacl"])["nacl"]
    beside = method_styles(["mine", "ce", "nacl", "theirs"])
    assert beside["nacl"] == alone
    assert len({style.colour for style in beside.values()}) == 4
    assert [loss_of(name) for name in ("ce_dice", "ce+temperature", "mbls-m5", "mbls5", "lsx", "crac (wide)")] == [
        "ce_dice", "ce", "mbls", "mbls", "lsx", "crac",
    ]  # fmt: skip


def test_reading_and_drawing_tables_does_not_import_torch():
    code = (
        "import sys, calibseg.report.html, calibseg.report.matplotlib, calibseg.report.text_tables;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
