"""The pages: every code block runs in order, as a reader would copy it, and every relative link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import calibseg
from support.pages import ROOT, blocks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

# What a reader cannot copy and run: each with its reason in a comment above the block.
NOT_RUN = {
    "README.md": 6,
    "CONTRIBUTING.md": 2,
    "add-a-member.md": 1,
    "benchmark.md": 2,
    "datasets.md": 1,
    "decisions.md": 2,
    "hosts.md": 1,
    "leaderboard.md": 1,
    "nnunet.md": 5,
    "raters.md": 2,
    "repair.md": 1,
    "view-a-scan.md": 1,
}


def test_the_blocks_that_are_not_run_are_known_and_say_why():
    marked = {page.name: [block["reason"] for block in blocks(page) if block["reason"]] for page in PAGES}
    assert {name: len(reasons) for name, reasons in marked.items() if reasons} == NOT_RUN, marked


@pytest.fixture
def reader(tmp_path):
    """The environment of somebody who installed the package, in an empty folder."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "calibseg"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m calibseg "$@"\n')
    command.chmod(0o755)
    source = str(Path(calibseg.__file__).parents[1])
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "work").mkdir()
    return tmp_path / "work", os.environ | {"PATH": path, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


@each_page
def test_every_code_block_runs_in_order(page, reader):
    folder, environment = reader
    told = [block for block in blocks(page) if not block["reason"]]
    script = "".join(block["code"] for block in told if block["language"] == "python")
    commands = "".join(block["code"] for block in told if block["language"] != "python")
    for program, text in (([sys.executable, "-c"], script), (["bash", "-ec"], commands)):
        if text:
            done = subprocess.run(
                [*program, text], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@each_page
def test_every_relative_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing
