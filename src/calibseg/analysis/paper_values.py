"""The numbers printed in the three papers, in this package's words, to stand beside one's own.

`paper_values("nacl-table1")` is a tidy table: dataset, loss, calibrator, class and metric are named as in the grids of
recipes/paper and in score tables (`ece@truth` is ECE on the truth's foreground); `value` is what the paper prints.
`class` is `(mean)` where the paper averages the foreground classes and `all` for a metric of all classes together.
Tables that the papers' texts do not hold (MbLS 1 and 2, CRaC 2) are there and empty.

>>> table = paper_values("nacl-table1")
>>> table[(table["dataset"] == "acdc") & (table["loss"] == "nacl")][["metric", "class", "value"]].values.tolist()
[['dsc', '(mean)', 0.854], ['hd95', '(mean)', 2.55], ['ece@truth', 'all', 0.048], ['cece@truth', 'all', 0.061]]
>>> len(paper_values("crac-table2"))
0
"""

import re
from typing import Any

import pandas as pd

from calibseg.analysis.columns import ALL, MEAN
from calibseg.core import registry
from calibseg.core.types import BadInput

TABLES = registry.PACKAGE / "analysis" / "paper_tables"
COLUMNS = ("dataset", "loss", "calibrator", "class", "metric", "value")

DATASETS = {
    "ACDC": "acdc",
    "FLARE": "flare",
    "BraTS": "brats19",
    "BRATS": "brats19",
    "PROMISE": "prostate",  # three classes and 32 patients: the Decathlon's prostate, see datasets/prostate.py
    "HPC": "hippocampus",
    "BUSI": "busi",
}
LOSSES = {
    "CE": "ce",
    "CE+DSC": "ce_dice",
    "FL": "focal",
    "ECP": "ecp",
    "LS": "ls",
    "SVLS": "svls",
    "MbLS": "mbls",
    "NACL": "nacl",
    "BWCR": "bwcr",
    "CRaC": "crac",
    "L1": "mbls-l1",  # MbLS Table 4
    "L2": "mbls-l2",
    "constraint-on-softmax": "nacl-softmax",  # NACL Table 2
    "L2-penalty": "nacl-l2",
    "patch-5x5": "nacl-5x5",
}
PRIORS = ("mean", "gaussian", "max", "min", "median", "mode")  # NACL Table 3: nacl-mean, ...
LOSSES |= {prior: f"nacl-{prior}" for prior in PRIORS}
CALIBRATORS = {"none": "none", "TS": "temperature", "LTS": "local_temperature"}
METRICS = {
    "DSC": "dsc",
    "HD95": "hd95",
    "ASD": "asd",
    "ECE": "ece@truth",
    "CECE": "cece@truth",
    "TACE": "tcece@truth",
    "friedman_rank": "friedman_rank",
    "final_rank": "final_rank",
}
PER_CLASS = ("DSC", "HD95", "ASD")  # averaged over the foreground classes; the others see all classes together


def known_papers() -> list[str]:
    """The tables of the papers, by name."""
    return sorted(path.stem for path in TABLES.glob("*.csv"))


def printed(name: str) -> Any:
    """A paper's table as it prints it: the authors' words, and numbers as text."""
    if name not in known_papers():
        raise BadInput(registry.unknown("paper table", name, known_papers()))
    return pd.read_csv(TABLES / f"{name}.csv", dtype=str, keep_default_na=False)


def paper_values(name: str) -> Any:
    """A paper's table in this package's words: one row per dataset, loss, calibrator, class and metric."""
    table = printed(name)
    rows = []
    for _, row in table.iterrows():
        method = next(row[column] for column in ("method", "variant", "penalty", "prior") if column in row)
        names = {"loss": LOSSES[method], "calibrator": CALIBRATORS[row.get("posthoc", "none")]}
        for metric in (column for column in table.columns if column in METRICS and row[column]):
            mean = row.get("class", MEAN)
            label = (MEAN if mean == "Mean" else _own_case(mean)) if metric in PER_CLASS else ALL
            dataset = "" if metric.endswith("_rank") else DATASETS[row["dataset"]]  # a rank over all datasets
            entry = {"class": label, "metric": METRICS[metric], "value": float(row[metric])}
            rows.append({"dataset": dataset, **names, **entry})
    return pd.DataFrame(rows, columns=list(COLUMNS)).drop_duplicates(ignore_index=True)


def plain_method(method: str) -> str:
    """The method that a variation belongs to, whose printed numbers it may stand beside.

    >>> plain_method("mbls-m5+temperature"), plain_method("crac-paper"), plain_method("ce_dice")
    ('mbls+temperature', 'crac', 'ce_dice')
    """
    return re.sub(r"^(\w+)-[^+ ]+", r"\1", method)


def _own_case(organ: str) -> str:
    """The papers write Liver and RV; the datasets liver and RV."""
    return organ if organ.isupper() else organ.lower()
