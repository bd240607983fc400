"""The page about datasets says what the readers say, figures included."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("docs_datasets", DOCS / "datasets.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(writer):
    assert (DOCS / "datasets.md").read_text(encoding="utf-8") == writer.page(), "run python docs/datasets.py"


def test_the_table_in_the_readme_is_up_to_date(writer):
    readme = writer.README.read_text(encoding="utf-8")
    assert readme == writer.with_table(readme), "run python docs/datasets.py"


def test_a_readme_without_markers_is_left_alone_and_one_with_them_gets_the_table(writer):
    assert writer.with_table("# calibseg\n") == "# calibseg\n"
    filled = writer.with_table(f"a\n{writer.BEGIN}\nyesterday\n{writer.END}\nb\n")
    assert "yesterday" not in filled
    assert "`acdc`" in filled
    assert writer.with_table(filled) == filled
