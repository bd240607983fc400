"""The demonstration's sentences follow what was measured."""

import io

from rich.console import Console

from calibseg.cli.demo_benchmark import Row, say


def row(method, gap, low, high, nll=0.1, dsc=0.83, found=True):
    return Row(method, {"dsc": dsc, "ece@predicted": 0.05, "nll": nll}, found, gap, low, high)


def said(*rows) -> str:
    stream = io.StringIO()
    say(rows, Console(file=stream, width=200))
    return stream.getvalue()


def test_a_gap_whose_interval_excludes_0_has_a_direction_and_another_has_none():
    assert row("a", 0.052, 0.041, 0.063).said == "5.2% [4.1%, 6.3%] surer than it should be"
    assert row("a", -0.052, -0.063, -0.041).said == "5.2% [4.1%, 6.3%] less sure than it should be"
    assert row("a", 0.01, -0.01, 0.03).said == "about as sure as it should be (+1.0% [-1.0%, +3.0%])"


def test_who_halves_the_gap_is_named_nearest_to_0_first():
    text = said(row("ce_dice", 0.05, 0.04, 0.06), row("nacl", -0.02, -0.03, -0.01), row("ls", 0.01, 0.0, 0.02),
                row("ce", 0.04, 0.03, 0.05, nll=0.09))  # fmt: skip
    assert "1. ce_dice finds every organ (DSC 0.830) and is 5.0% [4.0%, 6.0%] surer than it should be" in text
    assert "2. at most half of that: ls (+1.0%), nacl (-2.0%)" in text
    assert "3. best NLL on unseen cases: ce (0.090, ce_dice 0.100); it is 4.0% [3.0%, 5.0%] surer" in text


def test_what_was_not_found_is_not_claimed():
    text = said(row("ce_dice", 0.05, 0.04, 0.06, found=False), row("ce", 0.04, 0.03, 0.05))
    assert "ce_dice misses an organ in some case" in text
    assert "2. no other method halves that" in text
    text = said(row("ce_dice", -0.01, -0.02, 0.01), row("ce", 0.0, -0.01, 0.01))
    assert "ce_dice finds every organ (DSC 0.830) and is about as sure as it should be" in text
    assert "half" not in text
