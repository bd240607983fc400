"""Writes the tables of crac-steps.md from the kept score tables of `calibseg benchmark cpu/crac-steps`.

calibseg benchmark cpu/crac-steps --root hippocampus=... --root acdc=... --kept docs/results/steps    trains and keeps
python docs/results/crac_steps.py            writes the tables
python docs/results/crac_steps.py --check    only says whether they are up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import pandas as pd
import result_pages as pages

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "crac-steps.md", HERE / "steps"
COLUMNS = ("dsc", "worst class", "signed_gap@predicted", "ece@predicted", "nll@all")
AGAINST = "ce 330-steps"
KEYS = ["dataset", "method", "training", "patient", "case"]


def values() -> pd.DataFrame:
    """One row per dataset, method and test case; `worst class` is the DSC of the class with the smallest mean."""
    parts = []
    for cell, rows in pages.kept_cells("cpu/crac-steps", KEPT):
        rows = pages.with_worst_class(rows)
        parts.append(rows.assign(dataset=cell.dataset, method=cell.label, training=f"seed {cell.recipe.seed}"))
    return pages.by_case(pd.concat(parts), KEYS) if parts else pd.DataFrame(columns=[*KEYS, *COLUMNS])


def tables() -> dict[str, str]:
    """The tables of the page by their name."""
    scores = values()
    means, differences = ([["dataset", "method", "trainings", *COLUMNS]] for _ in range(2))
    for dataset, here in scores.groupby("dataset", sort=False):
        methods = {method: [str(dataset), method] for method in dict.fromkeys(here["method"])}
        means += pages.comparison(here, methods, COLUMNS)
        if methods.pop(AGAINST, None):
            differences += pages.comparison(here, methods, COLUMNS, AGAINST)
    return {"means": pages.markdown(means), "differences": pages.markdown(differences)}


def main(words: list[str]) -> int:
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
