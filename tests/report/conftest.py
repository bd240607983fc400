"""A real browser for the pages of the report."""

import shutil

import pytest


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium)
        yield opened
        opened.close()
