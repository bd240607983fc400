"""How methods and metrics look and are called: as their own files say, else in a stable colour."""

import itertools
import subprocess
import sys

import numpy as np

from calibseg.core import registry
from calibseg.core.registry import Member, members
from calibseg.report.palette import (
    OTHERS,
    OVER,
    UNDER,
    contrast,
    loss_of,
    method_styles,
    seen_on_white,
    shown_method,
    shown_metric,
)


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
    assert styles["silent"].colour in map(seen_on_white, OTHERS)
    assert styles["silent"] == method_styles(["silent"])["silent"]  # whatever is beside it


def test_a_loss_keeps_its_colour_whatever_is_beside_it():
    alone = method_styles(["nacl"])["nacl"]
    beside = method_styles(["mine", "ce", "nacl", "theirs"])
    assert beside["nacl"] == alone
    assert len({style.colour for style in beside.values()}) == 4
    assert [loss_of(name) for name in ("ce_dice", "ce+temperature", "mbls-m5", "mbls5", "lsx", "crac (wide)")] == [
        "ce_dice", "ce", "mbls", "mbls", "lsx", "crac",
    ]  # fmt: skip


def test_the_same_loss_has_one_colour_and_a_calibrated_method_is_hollow_and_dashed():
    styles = method_styles(["ls", "ls+temperature"])
    assert styles["ls"].colour == styles["ls+temperature"].colour
    assert [(style.dash, style.face) for style in styles.values()] == [
        ("solid", styles["ls"].colour), ("dashed", "white"),
    ]  # fmt: skip


def test_every_mark_has_a_contrast_of_three_to_one_with_white():
    drawn = [style.colour for style in method_styles([*members("losses"), "somebody", "else"]).values()]
    for colour in (*drawn, OVER, UNDER):
        assert contrast([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) >= 2.99, colour


def test_losses_differ_for_deuteranopes_in_colour_or_in_marker():
    """Machado, Oliveira and Fernandes 2009: sRGB as a deuteranope sees it, severity 1."""
    matrix = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    styles = method_styles(members("losses"))
    seen = {name: matrix @ [int(style.colour[i : i + 2], 16) for i in (1, 3, 5)] for name, style in styles.items()}
    for one, two in itertools.combinations(styles, 2):
        apart = float(np.linalg.norm(seen[one] - seen[two]))
        assert apart > 25 or styles[one].marker != styles[two].marker, (one, two, apart)


def test_reading_and_drawing_tables_does_not_import_torch():
    code = (
        "import sys, calibseg.report.html, calibseg.report.matplotlib, calibseg.report.text_tables;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
