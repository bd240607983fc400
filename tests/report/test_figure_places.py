"""Figures of several networks: each has its own panel or bar, and nothing is pooled over them."""

import numpy as np
import pandas as pd
import pytest

from calibseg.analysis import table
from calibseg.analysis.sources import read_source
from calibseg.core.types import BadInput
from calibseg.report.figure_data import scores as figure_scores
from calibseg.report.matplotlib import Request, plot, save
from support.reporting import scores

ECES = {("ce", "unet"): 0.2, ("ce", "wide"): 0.1, (r"$\frac{$", "unet"): 0.06, (r"$\frac{$", "wide"): 0.02}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two methods on two networks with known errors; one of the methods has a name that TeX would choke on."""
    folder, found = tmp_path_factory.mktemp("networks"), []
    for number, ((loss, network), ece) in enumerate(ECES.items()):
        path = scores(folder / f"t{number}.csv", loss, ece)
        made, bins = table.read(path), pd.read_csv(table.bins_path(path), keep_default_na=False)
        whole = table.ScoreTable(made.rows.assign(network=network), made.rules, made.notes, made.name)
        table.write(whole, path, bins.assign(network=network))
        found.append(path)
    return tuple(found)


def texts(figure):
    return [axis.get_title() for axis in figure.axes]


def test_over_and_under_confidence_of_two_networks_are_not_averaged(tables):
    found = figure_scores.confidence_balance(read_source(tables).table)
    shown = {(row["method"], row["network"]): row["over"] for row in found.to_dict("records")}
    assert shown == {key: pytest.approx(0.75 * ece) for key, ece in ECES.items()}  # the maker's share of the ECE
    assert texts(plot("signed", Request(tables))) == ["unet", "wide"]


def test_reliability_has_a_panel_for_every_method_on_every_network(tables):
    curves = figure_scores.reliability(read_source(tables).need_bins())
    for (method, network), ece in ECES.items():
        one = curves[(curves["method"] == method) & (curves["network"] == network)]
        assert one["share"].sum() == pytest.approx(1.0)
        # five bins with their middles at 0.1, 0.3, ...: the accuracy is ece below, but never below 0
        assert figure_scores.curve_error(one) == pytest.approx(
            np.mean([min(ece, m) for m in (0.1, 0.3, 0.5, 0.7, 0.9)])
        )
    expected = ["unet · CE", r"unet · $\frac{$", "wide · CE", r"wide · $\frac{$"]
    assert texts(plot("reliability", Request(tables))) == expected


def test_the_reliability_of_one_case_is_its_own(tables):
    rows = read_source(tables).need_bins()
    rows.loc[(rows["case"] == "case_1") & (rows["scope"] == "case"), "accuracy"] = 0.25
    one = figure_scores.reliability(rows, case="case_1")
    assert set(one["accuracy"]) == {0.25}
    assert set(one["count"]) == {500}
    assert texts(plot("reliability", Request(tables[:1], case="case_1"))) == ["CE"]
    with pytest.raises(BadInput, match=r"no case named 'case_9'.*In the table: case_0, case_1"):
        plot("reliability", Request(tables, case="case_9"))
    with pytest.raises(BadInput, match="--case is for slices and reliability: means shows all cases"):
        plot("means", Request(tables, case="case_1"))


@pytest.mark.parametrize("kind", ["radar", "means", "distance", "stacked", "networks", "compromise", "ranks"])
def test_every_figure_draws_two_networks_and_a_name_that_is_no_formula(tables, kind, tmp_path):
    figure = plot(kind, Request(tables))
    assert save(figure, tmp_path / f"{kind}.svg").stat().st_size > 1000
    drawn = (tmp_path / f"{kind}.svg").read_text()
    assert r"\frac{" in drawn
    if kind in ("radar", "distance", "networks", "means"):
        assert "unet" in drawn
        assert "wide" in drawn


def test_the_compromise_has_a_spoke_for_each_dataset_and_the_means_on_them(tables):
    """MbLS Fig. 2: a panel per method, green DSC and blue ECE around the datasets and networks."""
    figure = plot("compromise", Request(tables, metrics=("dsc", "ece@predicted")))
    assert texts(figure) == ["CE", r"$\frac{$"]
    dsc, ece = figure.axes[0].lines
    np.testing.assert_allclose(dsc.get_ydata(), [0.8, 0.8, 0.8])  # the first spoke again: the line is closed
    np.testing.assert_allclose(ece.get_ydata(), [0.2, 0.1, 0.2])
    with pytest.raises(BadInput, match="a metric of which more is better against one of which less is"):
        plot("compromise", Request(tables, metrics=("ece", "dsc")))
    with pytest.raises(BadInput, match="compromise shows two metrics"):
        plot("compromise", Request(tables, metrics=("dsc",)))


def test_the_bars_of_networks_are_the_means_of_each(tables):
    """MbLS Fig. 7."""
    figure = plot("networks", Request(tables, metrics=("ece@predicted",)))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    np.testing.assert_allclose(heights, [0.2, 0.1, 0.06, 0.02])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["unet", "wide"]


def test_a_method_without_any_defined_value_is_drawn_as_nothing(tmp_path):
    good, path = scores(tmp_path / "a.csv"), scores(tmp_path / "b.csv", "nacl")
    made = table.read(path)
    table.write(table.ScoreTable(made.rows.assign(value=np.nan), made.rules, made.notes, made.name), path)
    for kind in ("signed", "means", "radar", "ranks", "networks"):
        save(plot(kind, Request((good, path))), tmp_path / f"{kind}.png")


def boxes(figure, drawn):
    figure.draw_without_rendering()
    return [text.get_window_extent() for text in drawn]


def test_names_beside_each_other_do_not_overlap(tmp_path):
    names = [(loss, calibrator) for loss in ("ce_dice", "ls", "our method without its second decoder and margin 5")
             for calibrator in ("", "temperature", "region_temperature")]  # fmt: skip
    paths = tuple(scores(tmp_path / f"{n}.csv", loss, calibrator=named) for n, (loss, named) in enumerate(names))
    figure = plot("reliability", Request(paths))
    titles = boxes(figure, [axis.title for axis in figure.axes])
    assert not any(a.overlaps(b) for n, a in enumerate(titles) for b in titles[:n])


def test_the_names_of_spokes_stand_outside_of_the_radar(tmp_path):
    paths = tuple(scores(tmp_path / f"{loss}.csv", loss, ece) for loss, ece in (("ce", 0.2), ("nacl", 0.1)))
    figure = plot("radar", Request(paths))
    (axis,) = figure.axes
    for box in boxes(figure, axis.get_xticklabels()):
        corners = axis.transData.inverted().transform(box.corners())
        assert (corners[:, 1] > 1).all()  # radius; the rim is at 1
