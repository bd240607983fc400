"""A demanding reader of the report: links land, filters rank again, text can be read, files can be taken away."""

import re

import pytest

from calibseg.analysis import table
from calibseg.core.registry import members
from calibseg.report.html import report
from calibseg.report.palette import method_styles
from support.reporting import scores, study

# The contrast of every visible text with what lies behind it, the smallest first.
ARRIVED = """id => {
    const top = document.querySelector(id).getBoundingClientRect().top;
    const end = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    return end || Math.abs(top - document.querySelector(".filters").getBoundingClientRect().height) < 40;
}"""
CONTRASTS = """() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *, .filters *, nav *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest(".views, script, [aria-pressed=false]") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node), text = node instanceof SVGElement ? style.fill : style.color;
    if (!numbers(text).length) continue;
    const [a, b] = [light(numbers(text)), light(behind(node))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.tagName, node.getAttribute("class"), node.textContent.slice(0, 30)]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 5);
}"""


@pytest.fixture(scope="module")
def toy(browser, tmp_path_factory):
    """One page that several tests read: the study with a second seed."""
    folder = study(tmp_path_factory.mktemp("study"))
    report([folder], folder / "report.html")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    yield page
    page.close()


@pytest.fixture(scope="module")
def many(browser, tmp_path_factory):
    """130 methods: 13 trainings with 10 calibrators, whose names differ in their middle only."""
    folder = tmp_path_factory.mktemp("many")
    one = table.read(scores(folder / "one.csv"))
    parts = []
    for number in range(130):
        loss, calibrator = f"a_long_name_of_a_loss_{number // 10:02}_with_a_long_end", f"k{number % 10}"
        rows = table.plain(one.rows).assign(loss=loss, calibrator=calibrator if number % 10 else "none")
        rows.loc[rows["metric"] == "ece", "value"] *= 1 + (number * 37 % 130) / 130
        parts.append(rows)
    table.write(table.ScoreTable(table.concat(parts), one.rules, one.notes, "many"), folder / "many.csv")
    report([folder / "many.csv"], folder / "report.html")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto((folder / "report.html").as_uri())
    yield page
    page.close()


def test_the_first_screen_holds_the_verdict_and_its_checks(toy):
    checks = toy.locator("#verdict .checks li")
    assert checks.first.get_attribute("class") == "fail"
    assert checks.last.bounding_box()["y"] < 900
    assert toy.locator("#table-classes tbody tr").count() == 2


def test_every_link_of_the_contents_lands_on_its_section(toy):
    for link in toy.locator("#contents a").all():
        name = link.get_attribute("href")
        link.click()
        toy.wait_for_function(ARRIVED, arg=name, timeout=5000)  # a busy machine may take its time
        assert toy.evaluate("id => document.querySelector(id).querySelector('details.fold')?.open ?? true", name)


def test_a_deep_link_lands_on_its_section(toy, browser):
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto(toy.url.partition("#")[0] + "#ranks")
    page.wait_for_timeout(100)
    assert abs(page.locator("#ranks").bounding_box()["y"] - page.locator(".filters").bounding_box()["height"]) < 40
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_a_contrast_of_at_least_four_and_a_half(toy, scheme):
    toy.emulate_media(color_scheme=scheme)
    toy.wait_for_timeout(50)
    lowest = toy.evaluate(CONTRASTS)
    assert lowest[0][0] >= 4.5, lowest
    toy.emulate_media(color_scheme="light")


def test_a_filter_marks_and_ranks_those_that_are_left(toy):
    def marks():
        best = toy.locator("#table-headline tr:visible td:nth-child(2).best").evaluate_all(
            "cells => cells.map(cell => cell.parentElement.dataset.method)"
        )
        rank = toy.locator("#table-headline tr[data-method=nacl] .rank").inner_text()
        return best, rank

    assert marks() == (["crac+temperature"], "3.33")
    toy.locator("#filter-calibrators .chip", has_text="temperature").click()
    toy.locator("#filter-bases .chip", has_text="CRaC").click()
    assert marks() == (["nacl"], "1.67")  # of ce and nacl: better in ECE, worse in DSC and HD95
    sums = toy.locator("#figure-sum-rank svg[role=img]").get_attribute("aria-label")
    assert sums.endswith("Best first: CE, NACL")
    for group in ("bases", "calibrators"):
        toy.locator(f"#filter-{group} .chip.reset").click()
    assert marks() == (["crac+temperature"], "3.33")
    assert "Double-click: only this one" in toy.locator(".filters").inner_text()


def test_a_card_gives_svg_csv_and_latex(toy):
    card = toy.locator("#figure-balance")
    with toy.expect_download() as saved:
        card.locator("[data-save=svg]").click()
    drawn = saved.value.path().read_text(encoding="utf-8")
    assert saved.value.suggested_filename == "balance.svg"
    assert drawn.startswith("<svg")
    assert "var(--" not in drawn.replace('fill="var', "")
    with toy.expect_download() as saved:
        card.locator("[data-save=csv]").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("panel,")
    assert len(lines) == 7
    with toy.expect_download() as saved:
        toy.locator("[data-table=table-headline] [data-save=csv]").click()
    assert "NACL" in saved.value.path().read_text(encoding="utf-8")
    toy.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    toy.locator("[data-table=table-headline] [data-save=latex]").click()
    toy.wait_for_function("window.copied")
    assert re.search(r"\\begin\{tabular\}.*NACL.*\\bottomrule", toy.evaluate("window.copied"), re.S)


def test_the_methods_paragraph_and_its_bibtex_can_be_copied(toy):
    toy.evaluate("window.copied = ''; navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    toy.locator("#contents a", has_text="Methods").click()
    toy.locator("[data-copy=methods-bibtex]").click()
    toy.wait_for_function("window.copied")
    assert "@misc{nacl," in toy.evaluate("window.copied")
    assert "Friedman's test over patients" in toy.locator("#methods-text").inner_text()


def test_a_point_of_the_scatter_opens_its_case(toy):
    toy.locator("#case-pick").select_option("1")
    before = toy.locator("#case-pick").input_value()
    toy.locator("#figure-every-case .opens").first.click(force=True)  # another case lies on it
    assert toy.locator("#case-pick").input_value() != before
    assert toy.locator("#figure-every-case path[fill=none]").count() == 0  # no line leads from case to case
    assert toy.errors == []


def test_every_marker_of_a_loss_has_a_shape_of_its_own(browser, tmp_path):
    losses = list(members("losses"))
    report([scores(tmp_path / f"{loss}.csv", loss) for loss in losses], tmp_path / "report.html")
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    drawn = page.locator("#filter-bases .swatch > svg > *").evaluate_all(
        "nodes => nodes.map((node) => node.tagName + node.getAttribute('points'))"
    )
    assert len(drawn) == len(losses)
    assert len(set(drawn)) == len({style.marker for style in method_styles(losses).values()})
    page.close()


def test_names_beside_points_do_not_lie_on_each_other(many):
    boxes = many.locator("#figure-trade-off text.name").evaluate_all(
        "nodes => nodes.map((node) => node.getBoundingClientRect()).map((b) => [b.x, b.right, b.y, b.bottom])"
    )
    right = many.locator("#figure-trade-off svg[role=img]").bounding_box()
    assert len(boxes) >= 3
    assert max(box[1] for box in boxes) <= right["x"] + right["width"]
    for number, (left, end, top, bottom) in enumerate(boxes):
        for other in boxes[:number]:
            assert other[1] <= left + 1 or end <= other[0] + 1 or other[3] <= top + 3 or bottom <= other[2] + 3


def test_a_page_of_130_methods_is_short_until_something_is_opened(many):
    assert many.evaluate("document.documentElement.scrollHeight") < 6000
    many.locator("#contents a", has_text="Ranks").click()
    rows = many.locator("#figure-sum-rank svg[role=img] text.strong")
    assert rows.count() == 21  # and the head of the last column
    names = rows.all_text_contents()
    assert len(set(names)) == 21  # shortened, and still apart
    many.locator("#figure-sum-rank .switch").click()
    assert rows.count() == 131
    assert many.locator("#table-headline tbody tr").count() == 130
    for width in (1300, 420):
        many.set_viewport_size({"width": width, "height": 900})
        many.wait_for_timeout(200)
        assert many.evaluate("document.documentElement.scrollWidth") <= width
