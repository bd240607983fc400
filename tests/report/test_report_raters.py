"""The report's card for several raters: each of them, their mean and all together, side by side."""

import pytest

from calibseg.analysis import table
from calibseg.analysis.evidence import gather
from calibseg.report.html import report
from calibseg.report.html.groups import comparison_groups
from calibseg.report.html.raters import raters
from support.reporting import CASES, CLASSES, scores

# Of each method: what rater 1 and rater 2 say, their mean, and the raters together, in every case alike.
DSC = {"ce": (0.9, 0.7, 0.8), "nacl": (0.8, 0.8, 0.8)}
ECE = {"ce": (0.1, 0.3, 0.2), "nacl": (0.15, 0.15, 0.15)}


def rated(path, loss):
    """A table of one method with the values of two raters."""
    one = table.read(scores(path, loss))
    rows = table.plain(one.rows)
    like = rows[(rows["metric"] == "dsc") & (rows["class"] == "organ")].drop(columns=["metric", "value", "voxels"])
    parts = [rows]
    for metric, values, up in (("rater_dsc", DSC[loss], True), ("rater_ece", ECE[loss], False)):
        rule, names = ("all ", ["all"]) if metric == "rater_ece" else ("", CLASSES[1:])
        for voxels, value in zip((f"{rule}rater 1", f"{rule}rater 2", rule.strip()), values, strict=True):
            facts = {"metric": metric, "voxels": voxels, "value": value, "higher_is_better": up}
            parts += [like.assign(**facts, **{"class": name}) for name in names]
    for metric, value, unit in (("consensus_dsc", 0.95, ""), ("volume_crps", 1.5, "ml")):
        facts = {"metric": metric, "voxels": "", "value": value, "unit": unit, "higher_is_better": unit == ""}
        parts += [like.assign(**facts, **{"class": name}) for name in CLASSES[1:]]
    table.write(table.ScoreTable(table.concat(parts), one.rules, one.notes, str(path)), path)
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raters")
    return [rated(folder / f"{loss}.csv", loss) for loss in DSC]


def test_the_table_sets_the_mean_over_raters_beside_the_raters_together(paths):
    found = raters(comparison_groups(gather(paths, voxels="predicted", **{"class": "all"})))
    heads = [(head.name, head.where, head.unit, head.higher_is_better) for head in found.columns]
    assert heads == [
        ("DSC", "with the label of most", "", True),
        ("rater DSC", "mean over raters", "", True),
        ("consensus DSC", "where all agree", "", True),
        ("ECE", "against their share, all voxels", "", False),
        ("rater ECE", "mean over raters, all voxels", "", False),
        ("volume CRPS", "of their volumes", "ml", False),
    ]
    values = {row.method: [round(cell.mean, 4) for cell in row.cells] for row in found.rows}
    assert values == {"ce": [0.8, 0.8, 0.95, 0.01, 0.2, 1.5], "nacl": [0.8, 0.8, 0.95, 0.01, 0.15, 1.5]}
    assert [row.cells[4].place for row in found.rows] == [2, 1]
    assert found.rows[0].cells[4].cases == len(CASES)


def test_the_figure_shows_each_rater_then_their_mean_then_all_of_them(paths):
    made = raters(comparison_groups(gather(paths, voxels="predicted", **{"class": "all"}))).figure
    assert made is not None
    assert [panel["title"] for panel in made["panels"]] == ["DSC", "ECE on all voxels"]
    assert made["panels"][0]["ticks"] == ["rater 1", "rater 2", "mean of them", "most of them"]
    lines = {one["method"]: [round(point["y"], 4) for point in one["points"]] for one in made["panels"][1]["series"]}
    assert list(lines) == ["nacl", "ce"]  # the better mean over raters first
    assert lines["ce"] == [0.1, 0.3, 0.2, 0.01]
    assert made["panels"][1]["ticks"][-1] == "their share"


def test_tables_without_raters_have_no_such_section(tmp_path):
    path = scores(tmp_path / "one.csv")
    assert raters(comparison_groups(gather([path], voxels="predicted", **{"class": "all"}))).rows == ()
    report([path], tmp_path / "report.html")
    assert 'id="raters"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_card_is_drawn_filtered_and_saved(browser, paths, tmp_path):
    report(paths, tmp_path / "report.html")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri() + "#raters")
    card = page.locator("#figure-raters")
    assert card.locator(".panel").count() == 2
    assert card.locator("svg[role=img] .series").count() == 4
    assert "mean of them" in card.locator("svg[role=img]").first.inner_html()
    assert "never below that against their share" in card.locator("figcaption").inner_text()
    best = page.locator("#table-raters td:nth-child(6).best")
    assert best.inner_text().startswith("0.150")
    with page.expect_download() as saved:
        card.locator("[data-save=csv]").click()
    assert "ECE on all voxels,CE,rater 2,0.3," in saved.value.path().read_text(encoding="utf-8")
    page.locator("#filter-bases .chip", has_text="NACL").click()
    assert card.locator("svg[role=img] .series").count() == 2
    assert page.locator("#table-raters tbody tr:visible").count() == 1
    assert errors == []
    page.close()
