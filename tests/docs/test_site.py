"""The pages of the site: one for every member, no link that leads nowhere, and near what a reader looks for."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from calibseg.analysis import leaderboard
from calibseg.core import registry
from calibseg.report.matplotlib import KINDS

pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+\.md)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "scripts"))  # its pictures are made by files beside it
    found = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module, module.build(tmp_path_factory.mktemp("site") / "pages")


def test_every_member_has_a_page_with_its_equation_options_and_paper(site):
    _, pages = site
    for family in registry.families():
        for key in registry.members(family):
            assert (pages / "reference" / family / f"{key}.md").is_file(), (family, key)
    nacl = (pages / "reference" / "losses" / "nacl.md").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in nacl
    assert "**Paper.** Murugesan et al., MICCAI 2023" in nacl
    assert "| `weight` | `0.1` | `float` |" in nacl
    assert "$$" not in nacl


def test_no_link_leads_nowhere(site):
    _, pages = site
    missing = [
        (page.relative_to(pages).as_posix(), link)
        for page in pages.rglob("*.md")
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).is_file()
    ]
    assert not missing


def test_a_link_out_of_the_site_becomes_its_words_and_an_interval_keeps_its_brackets(site, tmp_path):
    module, _ = site
    page, copied = tmp_path / "a.md", tmp_path / "site" / "a.md"
    page.write_text("[Code](../src/a.py#L3): 0.1 [0.0, 0.2], [more](../b.md), [all](../../README.md#x) [1].\n")
    module._copy(page, copied)
    assert copied.read_text() == "Code: 0.1 [0.0, 0.2], [more](../b.md), all [1].\n"


def test_what_readers_look_for_is_at_most_three_links_from_the_first_page(site):
    _, pages = site
    depth, waiting = {pages / "index.md": 0}, [pages / "index.md"]
    for page in waiting:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if target not in depth:
                depth[target] = depth[page] + 1
                waiting.append(target)
    for name in ("score-a-folder.md", "what-ece-means.md", "choosing.md", "add-a-member.md", "contributing.md"):
        assert depth[(pages / name).resolve()] <= 3, name


def test_the_navigation_names_every_page_that_stands_in_docs(site):
    module, pages = site
    text = module.navigation(pages)
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.relative_to(ROOT / "docs").as_posix() in text
    assert "reference/commands.md" in text


def test_commands_are_listed_with_their_options(site):
    _, pages = site
    text = (pages / "reference" / "commands.md").read_text(encoding="utf-8")
    assert "## calibseg rank" in text
    assert "`--top`" in text


def test_the_gallery_has_every_kind_of_figure_with_its_command(site):
    module, pages = site
    text = (pages / "gallery.md").read_text(encoding="utf-8")
    assert list(module.gallery.COMMANDS) == list(KINDS)
    for kind in KINDS:
        assert f"\n## {kind}\n" in text
        assert f"calibseg plot {kind} " in text
        assert f"![{kind}](gallery/{kind}.svg)" in text


def test_the_page_of_leaderboards_has_a_table_or_says_that_there_is_none(site):
    _, pages = site
    text = (pages / "leaderboard.md").read_text(encoding="utf-8")
    for name in leaderboard.benchmarks():
        to = leaderboard.benchmark(name)
        rows = leaderboard.entries(ROOT / "docs" / "leaderboard", to)
        part = text.partition(f"## {to.title}")[2].partition("\n## ")[0]
        assert all(f"{row.method}" in part for row in rows)
        assert ("Nobody has added a row yet." in part) == (not rows)


def test_every_member_has_a_picture_and_a_sentence_about_it(site):
    module, pages = site
    figures = module.site_figures
    assert set(figures.FAMILIES) == set(figures.CAPTIONS) == set(registry.families())
    nacl = (pages / "reference" / "losses" / "nacl.md").read_text(encoding="utf-8")
    assert f"![what nacl does](nacl.svg)\n\n{figures.CAPTIONS['losses']}" in nacl
    for family, key in (("losses", "bwcr"), ("priors", "max"), ("decisions", "volume"), ("datasets", "acdc")):
        drawn = figures.FAMILIES[family](registry.members(family)[key])
        assert all(axis.has_data() for axis in drawn.axes), (family, key)


def test_every_metric_is_drawn_and_an_ensemble_like_the_raters_has_no_distance_to_them(site):
    module, _ = site
    for key, member in registry.members("metrics").items():
        drawn = module.site_figures.FAMILIES["metrics"](member)
        values = [np.asarray(axis.lines[0].get_ydata(), float) for axis in drawn.axes]
        assert all(np.isfinite(line).any() for line in values), key
        if key == "energy_distance":  # the fourth factor is 1: members and raters are the same discs
            assert values[0][3] == pytest.approx(0, abs=1e-9)
            assert min(values[0][[0, 6]]) > 0.01


def test_a_loss_of_the_pictures_has_the_slope_of_its_curve(site):
    """The right panel is the derivative of the left one, voxel by voxel: of CE, sigmoid(d) - 1."""
    module, _ = site
    drawn = module.site_figures.FAMILIES["losses"](registry.members("losses")["ce"])
    inside = next(line for line in drawn.axes[1].lines if line.get_label() == "a voxel inside")
    distances, slopes = inside.get_data()
    assert slopes == pytest.approx(-1 / (1 + np.exp(distances)), abs=1e-5)
