"""The packaged numbers of the papers: against each other, and against the papers' texts where those are at hand."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from calibseg.analysis.evidence import gather
from calibseg.analysis.friedman import ranks as friedman_ranks
from calibseg.analysis.paper_values import COLUMNS, known_papers, paper_values, printed
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.report.html.groups import comparison_groups
from calibseg.report.html.tables import beside_paper
from support.reporting import scores

PAPERS = Path(os.environ.get("CALIBSEG_PAPERS") or Path(__file__).parents[3] / "shared" / "papers")

# How each table is laid out on paper: the text it stands in, what makes a row there, and what lies along the row.
LAYOUT = {
    "nacl-table1": ("nacl", ["method"], ["dataset"]),
    "nacl-table2": ("nacl", ["variant"], ["dataset"]),
    "nacl-table3": ("nacl", ["prior"], ["dataset"]),
    "nacl-supplement-table2": ("nacl", ["dataset", "class"], ["method"]),
    "crac-table1": ("crac", ["method"], ["dataset"]),
    "mbls-table3": ("mbls", ["dataset", "posthoc"], ["method"]),
    "mbls-table4": ("mbls", ["dataset"], ["penalty"]),
}


def value(table, **where):
    for column, wanted in where.items():
        table = table[table[column.rstrip("_")] == wanted]
    (found,) = table["value"]
    return found


@pytest.mark.parametrize("name", LAYOUT)
def test_every_printed_row_stands_in_the_papers_text(name):
    paper, down, along = LAYOUT[name]
    texts = sorted(PAPERS.glob(f"{paper}*.txt"))
    if not texts:
        pytest.skip(f"the papers' texts are not below {PAPERS}; CALIBSEG_PAPERS says where")
    lines = [" ".join(re.findall(r"\d+\.\d+", line)) for line in texts[0].read_text(encoding="utf-8").splitlines()]
    table = printed(name)
    numbers = [c for c in table.columns if c not in (*down, *along, "friedman_rank", "final_rank")]
    for key, row in table.groupby(down, sort=False):
        wanted = " ".join(row[numbers].to_numpy().ravel())
        assert any(wanted in line for line in lines), f"{name} {key}: {wanted}"


@pytest.mark.parametrize("name", known_papers())
def test_a_paper_is_told_in_the_packages_words(name):
    table = paper_values(name)
    assert tuple(table.columns) == COLUMNS
    assert not table.duplicated(list(COLUMNS[:-1])).any()
    assert table["value"].between(0, 20).all()
    for dataset, rows in table[table["dataset"] != ""].groupby("dataset"):
        about = registry.load("datasets", str(dataset))
        assert {*rows["class"]} <= {"all", "(mean)", *about.classes, *about.regions}
    for metric in set(table["metric"]) - {"friedman_rank", "final_rank"}:
        registry.find("metrics", metric.partition("@")[0])
    for loss in set(table["loss"]):
        registry.find("losses", loss.partition("-")[0])


def test_sizes_are_those_of_the_printed_tables():
    assert {name: len(paper_values(name)) for name in known_papers()} == {
        "crac-table1": 8 * 2 * 4
        + 8
        + 6,  # methods x datasets x metrics, a Friedman rank each, six final ranks that the text holds
        "crac-table2": 0,  # not in the text
        "mbls-table1": 0,
        "mbls-table2": 0,
        "mbls-table3": 7 * 6 * 3 * 2,  # methods x datasets x (none, TS, LTS) x (ECE, CECE)
        "mbls-table4": 2 * 6 * 2,
        "nacl-table1": 7 * 3 * 4,
        "nacl-table2": 3 * 3 * 4,
        "nacl-table3": 6 * 3 * 4,
        "nacl-supplement-table2": 7 * (4 + 3 + 3 + 3) * 2,  # the classes, and the row Mean of each dataset
    }


def test_the_classes_of_the_supplement_average_to_table_1():
    classes = paper_values("nacl-supplement-table2")
    printed_means = classes[classes["class"] == "(mean)"].set_index(["dataset", "loss", "metric"])["value"]
    means = classes[classes["class"] != "(mean)"].groupby(["dataset", "loss", "metric"])["value"].mean()
    whole = paper_values("nacl-table1").set_index(["dataset", "loss", "metric"])["value"]
    for metric, digit in (("dsc", 0.001), ("hd95", 0.01)):
        apart = (means - whole).dropna().xs(metric, level="metric").abs()
        assert len(apart) == 21
        assert (apart <= digit).all()  # half a digit from rounding the classes, half from rounding their mean
    assert len(printed_means) == 42
    assert (printed_means == whole.reindex(printed_means.index)).all()


def test_friedman_ranks_follow_from_the_eight_columns_of_crac():
    table = paper_values("crac-table1")
    wide = table[table["dataset"] != ""].pivot(index=["dataset", "metric"], columns="loss", values="value")
    losses = list(wide.columns)
    higher = np.array([metric == "dsc" for _, metric in wide.index])
    ranks = friedman_ranks(np.where(higher[:, None], -wide, wide), "min").mean(axis=0)
    for loss, rank in zip(losses, ranks, strict=True):
        assert rank == pytest.approx(value(table, loss=loss, metric="friedman_rank"), abs=0.0051)
    final = dict(zip(losses, friedman_ranks(ranks[None], "min")[0], strict=True))
    known = table[table["metric"] == "final_rank"].set_index("loss")["value"]  # ECP's and LS's are lost in the text
    assert {loss: final[loss] for loss in known.index} == known.to_dict()
    assert (final["ecp"], final["ls"]) == (7.0, 4.0)


def test_numbers_that_two_papers_share_are_the_same():
    nacl, crac = paper_values("nacl-table1"), paper_values("crac-table1")
    for loss in ("focal", "ecp", "ls", "svls", "mbls"):  # MbLS: m = 5 in one text, m = 10 in the other
        for dataset in ("acdc", "flare"):
            for metric in ("dsc", "hd95", "ece@truth"):
                where = {"loss": loss, "dataset": dataset, "metric": metric}
                assert value(nacl, **where) == value(crac, **where)
    penalty, post_hoc = paper_values("mbls-table4"), paper_values("mbls-table3")
    for dataset in ("acdc", "flare", "brats19", "prostate", "hippocampus", "busi"):
        ours = value(penalty, loss="mbls-l1", dataset=dataset, metric="ece@truth")
        theirs = value(post_hoc, loss="mbls", dataset=dataset, metric="ece@truth", calibrator="none")
        assert ours == (theirs if dataset != "hippocampus" else 0.033)


def test_a_variation_stands_beside_the_numbers_of_its_method(tmp_path):
    tables = [scores(tmp_path / f"{loss}.csv", loss, dataset="hippocampus") for loss in ("mbls-m5", "mbls-m10", "crac")]
    keys, rows = beside_paper(comparison_groups(gather(tables)), paper_values("mbls-table3"))
    assert keys == ["ece@truth", "cece@truth"]
    theirs = {row.method: [value for value, _ in row.pairs] for row in rows}
    assert theirs == {"mbls-m5": [0.034, 0.088], "mbls-m10": [0.034, 0.088]}  # CRaC is another paper's


def test_an_unknown_table_is_told_with_the_nearest():
    with pytest.raises(BadInput, match=r"no paper table named 'nacl-tabel1'. Did you mean 'nacl-table1'"):
        paper_values("nacl-tabel1")
