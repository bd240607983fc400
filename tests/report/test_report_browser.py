"""The report in a real browser: it draws, sorts, filters, slides, turns dark, and asks nobody for anything."""

import pytest

from calibseg.report.html import report
from support.reporting import scores, study

# What a reader sees in a canvas: how many different colours its pixels have.
COLOURS = """canvas => new Set(new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = study(tmp_path_factory.mktemp("study"))
    scores(folder / "runs" / "ce-s0" / "scores-two.csv", "ce", dataset="two <b>")
    report([folder], folder / "report.html")
    return folder / "report.html"


class Reader:
    """A page with everything that went wrong on it."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(viewport={"width": 1300, "height": 900}, **options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def draw_everything(self) -> None:
        self.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")


def test_it_draws_every_figure_without_an_error_or_a_request(browser, path):
    with Reader(browser, path) as reader:
        reader.draw_everything()
        figures = reader.page.locator("figure.chart")
        assert figures.count() == 15
        for figure in figures.all():
            marks = figure.locator("svg[role=img] :is(path, rect, circle, polygon, line)")
            assert marks.count() > 5, figure.get_attribute("id")
            assert figure.locator("svg[role=img]").first.get_attribute("aria-label")
        wrong = reader.page.locator("svg [d*=NaN], svg [x*=NaN], svg [cx*=NaN], svg [points*=NaN], svg [width*='-']")
        assert wrong.count() == 0
        assert reader.errors == []
        assert [url for url in reader.requests if not url.startswith("data:")] == [path.as_uri()]


def test_a_click_on_a_head_sorts_best_first_and_a_second_click_turns_it(browser, path):
    with Reader(browser, path) as reader:
        head = reader.page.locator("#table-headline th", has_text="ECE")
        cells = reader.page.locator("#table-headline td:nth-child(3)")

        def values() -> list[float]:
            return [float(text) for text in cells.evaluate_all("cells => cells.map(cell => cell.dataset.value)")]

        head.locator("button").click()
        assert values() == sorted(values())
        assert head.get_attribute("aria-sort") == "ascending"
        head.locator("button").press("Enter")
        assert values() == sorted(values(), reverse=True)
        assert head.get_attribute("aria-sort") == "descending"
        reader.page.locator("#table-headline th", has_text="DSC").locator("button").click()  # higher is better
        assert reader.page.locator("#table-headline th[aria-sort=descending]").count() == 1


def test_chips_filter_tables_and_figures(browser, path):
    with Reader(browser, path) as reader:
        reader.draw_everything()
        rows = reader.page.locator("#table-headline tbody tr:visible")
        panels = reader.page.locator("#figure-reliability-predicted .panel")
        assert (rows.count(), panels.count()) == (7, 4)
        reader.page.locator("#filter-bases .chip", has_text="NACL").click()
        assert (rows.count(), panels.count()) == (5, 3)
        reader.page.locator("#filter-calibrators .chip", has_text="temperature").click()
        assert rows.count() == 3
        reader.page.locator("#filter-places .chip[data-value='two <b>']").press("Space")
        assert (rows.count(), panels.count()) == (2, 2)
        assert "two <b>" not in reader.page.locator("#table-headline tbody tr:visible").first.inner_text()
        for group in ("bases", "calibrators", "places"):
            reader.page.locator(f"#filter-{group} .chip.reset").click()
        assert rows.count() == 7
        assert reader.errors == []


def test_a_point_says_what_it_is(browser, path):
    with Reader(browser, path) as reader:
        mark = reader.page.locator("#figure-trade-off svg[role=img] circle").first
        mark.scroll_into_view_if_needed()
        mark.hover()
        tip = reader.page.locator("#tip")
        assert tip.is_visible()
        assert "ECE on predicted foreground, case mean: 0.2" in tip.inner_text()
        assert "DSC: 0.800 (0.790 – 0.810)" in tip.inner_text()


def test_the_slider_turns_the_slices_of_a_case(browser, path):
    with Reader(browser, path) as reader:
        page = reader.page
        page.locator("#viewer").scroll_into_view_if_needed()
        page.wait_for_function("document.querySelector('#case-scores').textContent.includes('DSC')")
        canvases = page.locator("#views canvas:visible").all()
        assert len(canvases) == 5  # the true probability is known of made data only
        assert all(canvas.evaluate(COLOURS) > 1 for canvas in (canvases[0], canvases[1], canvases[2], canvases[4]))
        before, shown = canvases[1].evaluate("c => c.toDataURL()"), page.locator("#slice-shown").inner_text()
        page.locator("#slice").focus()
        page.keyboard.press("Home")
        page.wait_for_function("text => document.querySelector('#slice-shown').textContent !== text", arg=shown)
        assert page.locator("#slice-shown").inner_text().endswith("(1 of 6)")
        assert canvases[1].evaluate("c => c.toDataURL()") != before
        page.locator("#method-pick").select_option("crac")
        page.wait_for_function("document.querySelector('#case-scores').textContent.includes('CRaC')")
        assert "CRaC: DSC 0.690 · NLL 0.190" in page.locator("#case-scores").inner_text()  # the means less 0.01
        assert reader.errors == []


def test_before_and_after_calibration_lie_on_both_sides_of_a_line(browser, path):
    pixel = """(canvas, x) => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        return [...copy.getImageData(Math.round(canvas.width * x), canvas.height / 2, 1, 1).data];
    }"""
    with Reader(browser, path) as reader:
        page = reader.page
        page.locator("#viewer").scroll_into_view_if_needed()
        page.wait_for_function("document.querySelector('#case-scores').textContent.includes('after temperature')")
        confidence = page.locator("#views canvas").nth(3)
        before = [confidence.evaluate(pixel, place) for place in (0.2, 0.8)]
        page.locator("#calibration").fill("50")
        page.wait_for_function(
            "document.querySelector('#calibration-shown').textContent.startsWith('left of the line')"
        )
        after = [confidence.evaluate(pixel, place) for place in (0.2, 0.8)]
        assert after[0] != before[0]
        assert after[1] == before[1]
        page.locator("#calibration").fill("100")
        page.wait_for_function("document.querySelector('#calibration-shown').textContent === 'after temperature'")
        assert confidence.evaluate(pixel, 0.8) != before[1]
        errors = page.locator("#views figcaption", has_text="Errors").inner_text()
        assert "(red): 12 as trained, 0 after temperature" in errors
        assert reader.errors == []


def test_the_reliability_curve_moves_from_as_trained_to_calibrated(browser, path):
    moving = "() => document.querySelector('#figure-reliability-predicted .moving path[fill=none]')?.getAttribute('d')"
    ends = (
        "() => [...document.querySelectorAll('#figure-reliability-predicted .panel')].map(p =>"
        " [...p.querySelectorAll('.ghost path[fill=none]')].map(line => line.getAttribute('d')))"
    )
    with Reader(browser, path) as reader:
        card = reader.page.locator("#figure-reliability-predicted")
        assert card.locator(".ghost").count() == 0
        card.locator(".compare select").select_option("temperature")
        assert card.locator(".compare output").inner_text() == "as trained"
        first, last = reader.page.evaluate(ends)[0]
        assert reader.page.evaluate(moving) == first
        card.locator(".compare input").fill("50")
        assert reader.page.evaluate(moving) not in (first, last)
        assert "not measured" in card.locator(".compare output").inner_text()
        card.locator(".compare input").fill("100")
        assert reader.page.evaluate(moving) == last
        card.locator(".compare select").select_option("")
        assert card.locator(".ghost").count() == 0
        assert reader.errors == []


def test_the_risk_coverage_card_has_a_line_for_each_method_and_names_its_convention(browser, path):
    with Reader(browser, path) as reader:
        card = reader.page.locator("#figure-risk-coverage")
        assert card.locator("svg[role=img] .series").count() == 7
        assert "equal confidences are accepted together" in card.locator("figcaption").inner_text()
        cells = reader.page.locator("#table-failure tbody tr").first.locator("td.num").all_inner_texts()
        # Risks 0.21, 0.19, 0.21, 0.19, the last case the most confident: selective risk 0.19, 0.2, 0.19667, 0.2.
        wanted = [(0.19 + 0.195 + 0.198333 + 0.198333) / 4, (0.02375 + 0.07375 + 0.12375 + 0.17375) / 4]
        assert [float(text.split()[0]) for text in cells] == pytest.approx(wanted, abs=6e-4)
        assert all("–" in text for text in cells)


def test_dark_follows_the_system_and_the_button_turns_it(browser, path):
    ground = "getComputedStyle(document.body).backgroundColor"
    with Reader(browser, path, color_scheme="dark") as reader:
        assert reader.page.evaluate(ground) == "rgb(20, 23, 27)"
        curve = reader.page.locator("#figure-trade-off svg[role=img] circle").first
        dark = curve.get_attribute("fill")
        assert dark != "#000000"  # CE is black on paper
        reader.page.locator("#theme").click()
        assert reader.page.evaluate(ground) == "rgb(251, 251, 249)"
        assert reader.page.locator("#figure-trade-off svg[role=img] circle").first.get_attribute("fill") == "#000000"


def test_a_narrow_screen_needs_no_sideways_scrolling(browser, path):
    with Reader(browser, path) as reader:
        reader.page.set_viewport_size({"width": 380, "height": 800})
        reader.draw_everything()
        assert reader.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_numbers_behind_a_figure_can_be_read(browser, path):
    with Reader(browser, path) as reader:
        details = reader.page.locator("#figure-balance details")
        details.locator("summary").click()
        cells = details.locator("tbody tr").first.locator("td").all_inner_texts()
        assert cells[:4] == ["toy", "CE", "0.150", "0.0500"]


def test_without_a_script_the_tables_are_there(browser, path):
    with Reader(browser, path, java_script_enabled=False) as reader:
        assert reader.page.locator("#table-headline tbody tr").count() == 7
        assert "switched off" in reader.page.locator("noscript").inner_text()
