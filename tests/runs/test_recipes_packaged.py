"""Every packaged recipe and grid: it plans, has the size one counts by hand, and says what its paper says."""

import re
from functools import cache
from pathlib import Path

import pytest

from calibseg.analysis.paper_values import known_papers, paper_values
from calibseg.benchmark.grid import read_grid
from calibseg.core import registry
from calibseg.runs.recipe import read_recipe
from calibseg.runs.recipe_files import find_recipe, known_recipes

planned = cache(read_grid)

SEARCHED = 2 + 3 + 3 + 3 + 1 + 3  # MbLS: CE and CE+Dice, FL, ECP, LS, SVLS, MbLS
SEVEN = 6 + 7  # six sets with one split, and seven subjects of MRBrainS18
CELLS = {
    "cpu/acdc": 12 + 6,  # losses, and a second seed of six
    "cpu/crac-steps": 2 * 7,  # datasets, numbers of steps an epoch with CE and CE + Dice
    "cpu/hippocampus": 13 + 4 * 2,  # losses, and two further seeds of four
    "cpu/hippocampus-ace": 6,
    "cpu/hippocampus-crac": 6,
    "cpu/lidc": 2 * 3 * 3,  # losses, targets, seeds
    "cpu/hippocampus-few": 9 * 4 * 3 * 3,  # losses, numbers of training cases, draws, seeds
    "cpu/hippocampus-noise": 4,
    "cpu/hippocampus-sensitivity": 5 * 3,
    "cpu/phantom": 3,
    "cpu/phantom-all": 16,
    "paper/crac-fig1": 3 * 2 * 2,  # lambdas x networks x datasets
    "paper/crac-table1": 8 * 2,
    "paper/crac-table2": 8 * 2,
    "paper/mbls-fig2": SEARCHED * SEVEN,
    "paper/mbls-fig3": SEARCHED * SEVEN,
    "paper/mbls-fig4": (1 + 3) * 2,
    "paper/mbls-fig5": SEARCHED * (1 + 7),
    "paper/mbls-fig6": 4 * 3 * 6,
    "paper/mbls-fig7": (1 + 3) * 4,
    "paper/mbls-fig8": SEARCHED * 7,
    "paper/mbls-fig9": (1 + 1 + 3 + 3) * 6,
    "paper/mbls-table1": SEARCHED * SEVEN,
    "paper/mbls-table2": SEARCHED * SEVEN,
    "paper/mbls-table3": SEARCHED * 6,
    "paper/mbls-table4": (3 + 3) * 6,
    "paper/nacl-fig1": 7 * 3,
    "paper/nacl-fig2": 3,
    "paper/nacl-search": (1 + 5 * 3 + 1) * 3,
    "paper/nacl-supplement-fig3": 7,
    "paper/nacl-supplement-table2": 7 * 3,
    "paper/nacl-table1": 7 * 3,
    "paper/nacl-table2": 3 * 3,
    "paper/nacl-table3": 6 * 3,
    "released/crac-table1": 8 * 2,
    "released/crac-table2": 8 * 2,
    "released/mbls-table1": 7 * SEVEN,
    "released/mbls-table4": 3 * 6,
    "released/nacl-table1": 7 * 3,
    "released/nacl-table2": 3 * 3,
    "released/nacl-table3": 6 * 3,
}


def candidates(name):
    """By method, the values that are tried."""
    found = {}
    for cell in planned(name).cells:
        for key, value in cell.choice.items():
            found.setdefault(cell.label, {}).setdefault(key, set()).add(value)
    return {label: {key: sorted(values) for key, values in tried.items()} for label, tried in found.items()}


def options(name):
    return {cell.label: dict(cell.recipe.loss.options) for cell in planned(name).cells}


def slugs(name):
    return {cell.slug for cell in planned(name).cells}


def test_every_grid_is_counted_here():
    assert sorted(CELLS) == known_recipes("grid")


@pytest.mark.parametrize("name", CELLS)
def test_a_grid_plans_as_many_runs_as_one_counts_by_hand(name):
    grid = planned(name)
    assert len(grid.cells) == len(slugs(name)) == CELLS[name]
    assert grid.title


@pytest.mark.parametrize("name", CELLS)
def test_a_grid_tells_what_it_is_and_the_command_that_runs_it(name):
    text = find_recipe(name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"\n#   calibseg benchmark {name}" in text
    roots = {cell.recipe.data.dataset for cell in planned(name).cells} - {"phantom"}
    assert {*re.findall(r"--root (\w+)=", text)} == roots


def test_every_loss_of_every_grid_can_be_built():
    losses = {
        (cell.recipe.loss.name, tuple(sorted(cell.recipe.loss.options.items())))
        for name in CELLS
        for cell in planned(name).cells
    }
    assert {name for name, _ in losses} == set(registry.members("losses"))
    for name, given in losses:
        registry.build("losses", name, dict(given))


@pytest.mark.parametrize("name", [name for name in CELLS if not name.startswith("cpu/")])
def test_what_a_paper_prints_has_a_run_to_stand_beside(name):
    grid = planned(name)
    if not grid.report.paper:
        return
    assert grid.report.paper in known_papers()
    values = paper_values(grid.report.paper)
    if "-table" in name and len(values):
        assert {*values["loss"]} <= {cell.label for cell in grid.cells}
        assert {*values["dataset"]} - {""} <= {cell.dataset for cell in grid.cells}
        assert {*values["calibrator"]} <= {*grid.cells[0].calibrators}
        assert {*values["metric"]} - {"friedman_rank", "final_rank"} <= {*grid.report.metrics}


@pytest.mark.parametrize("name", [name for name in CELLS if not name.startswith("cpu/")])
def test_results_of_papers_are_scored_by_their_rules_and_by_honest_ones(name):
    rules = planned(name).score
    assert (rules.units, rules.empty, rules.bins) == ("voxel", "released", 15)
    assert rules.options == {"cece.classes": "released", "tcece.classes": "released"}
    assert rules.voxels == ("truth", "predicted", "all")


@pytest.mark.parametrize("name", [name for name in CELLS if name.startswith("paper/")])
def test_training_follows_the_text(name):
    """100 epochs of Adam, 1e-3 for the first 50 and then 1e-4; batch 4 (MbLS) or 16 (NACL, CRaC)."""
    for cell in planned(name).cells:
        train = cell.recipe.train
        assert (train.epochs, train.optimiser, train.batch_size) == (100, "adam", 4 if "mbls" in name else 16)
        assert [train.rate(epoch) for epoch in (0, 49, 50, 99)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])
        assert cell.recipe.augmentation == read_recipe({"data": {"dataset": "acdc"}}).augmentation
        if cell.dataset == "acdc":
            assert cell.recipe.data.protocol == {"crop": [0, 224, 224]}


@pytest.mark.parametrize("name", [name for name in CELLS if name.startswith("released/")])
def test_training_follows_the_released_scripts(name):
    batches = {"acdc": 4, "flare": 16, "brats19": 64, "mrbrains18": 4, "prostate": 4, "hippocampus": 8, "busi": 4}
    for cell in planned(name).cells:
        train = cell.recipe.train
        assert (train.epochs, train.batch_size) == (75 if "crac" in name else 100, batches[cell.dataset])
        first = 1e-4 if cell.dataset == "busi" else 1e-3
        assert [train.rate(epoch) for epoch in (0, 49, 50)] == pytest.approx([first, first, first / 10])
        assert cell.recipe.seed == 1
        assert not cell.recipe.data.protocol  # the datasets' own protocols are the loaders'
        if cell.recipe.loss.name == "crac" or cell.label == "nacl":
            assert cell.recipe.loss.options["border"] == "background"


def test_hyper_parameters_are_searched_as_in_mbls():
    assert candidates("paper/mbls-table1") == {
        "focal": {"loss.gamma": [1, 2, 3]},
        "ecp": {"loss.weight": [0.1, 0.2, 0.3]},
        "ls": {"loss.smoothing": [0.1, 0.2, 0.3]},
        "mbls": {"loss.margin": [5, 8, 10]},
    }
    assert candidates("paper/mbls-table4") == {label: {"loss.margin": [5, 8, 10]} for label in ("mbls-l1", "mbls-l2")}
    select = planned("paper/mbls-table1").select
    assert select is not None
    assert (select.by, select.scope) == ("dsc", "dataset")


def test_hyper_parameters_are_searched_as_in_nacl():
    assert candidates("paper/nacl-search") == {
        "focal": {"loss.gamma": [1, 2, 3]},
        "ecp": {"loss.weight": [0.1, 0.2, 0.3]},
        "ls": {"loss.smoothing": [0.1, 0.2, 0.3]},
        "svls": {"loss.sigma": [0.5, 1, 2]},
        "mbls": {"loss.margin": [3, 5, 10]},
    }
    select = planned("paper/nacl-search").select
    assert select is not None
    assert (select.by, select.scope) == ("dsc", "all")


def test_the_named_values_of_nacl_and_crac():
    chosen = {
        "focal": {"gamma": 3},
        "ecp": {"weight": 0.1},
        "ls": {"smoothing": 0.1},
        "svls": {"sigma": 2},
        "nacl": {"weight": 0.1},
    }
    nacl, crac = options("paper/nacl-table1"), options("paper/crac-table1")
    assert nacl == chosen | {"ce_dice": {}, "mbls": {"margin": 5, "weight": 0.1}}
    consistency = {"min_weight": 0.01, "max_weight": 1.0}
    text = {"schedule": "released", "inner_scale": 1.0, "average": "region", "scale": "k"}
    assert crac == chosen | {"mbls": {"margin": 10, "weight": 0.1}, "bwcr": consistency, "crac": text}
    assert options("released/crac-table1")["crac"]["inner_scale"] == 5.0
    assert options("released/crac-table1")["crac"]["schedule"] == "released"
    assert options("released/mbls-table4")["mbls-l2"]["penalty"] == "l2_released"
    assert options("released/nacl-table3")["nacl-gaussian"]["border"] == "replicate"


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("paper/nacl-fig1", "paper/nacl-table1"),
        ("paper/nacl-fig2", "paper/nacl-table1"),
        ("paper/nacl-supplement-fig3", "paper/nacl-table1"),
        ("paper/nacl-supplement-table2", "paper/nacl-table1"),
        ("paper/nacl-table1", "paper/nacl-search"),
        ("paper/mbls-table2", "paper/mbls-table1"),
        ("paper/mbls-table3", "paper/mbls-table1"),
        ("paper/mbls-fig2", "paper/mbls-table1"),
        ("paper/mbls-fig3", "paper/mbls-table1"),
        ("paper/mbls-fig4", "paper/mbls-table1"),
        ("paper/mbls-fig5", "paper/mbls-table1"),
        ("paper/mbls-fig6", "paper/mbls-table1"),
        ("paper/mbls-fig8", "paper/mbls-fig5"),
        ("cpu/hippocampus-noise", "cpu/hippocampus"),
        ("cpu/phantom", "cpu/phantom-all"),
    ],
)
def test_a_figure_is_made_of_the_runs_of_its_table(part, whole):
    assert slugs(part) <= slugs(whole)


@pytest.mark.parametrize(
    ("name", "other", "shared"),
    [
        ("paper/nacl-table3", "paper/nacl-table1", 3),  # the mean prior is NACL
        ("paper/mbls-table4", "paper/mbls-table1", 3 * 6),  # the linear penalty
        ("paper/mbls-fig7", "paper/mbls-table1", 1 + 3),  # the U-Net
        ("paper/mbls-fig9", "paper/mbls-table1", (1 + 1 + 3) * 6),
        ("paper/crac-fig1", "paper/crac-table1", 2),  # lambda = 0.1
        ("paper/crac-fig1", "paper/crac-table2", 2),
        ("paper/crac-table1", "paper/nacl-table1", 5 * 2),  # all but MbLS, BWCR and CRaC
        ("cpu/hippocampus-sensitivity", "cpu/hippocampus", 6),
    ],
)
def test_runs_that_two_grids_share(name, other, shared):
    assert len(slugs(name) & slugs(other)) == shared


def test_noise_goes_up_to_five_hundredths():
    for name in ("paper/mbls-fig5", "cpu/hippocampus-noise"):
        assert planned(name).cells[0].noises == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])


def test_the_folds_of_leave_one_out_are_one_dataset():
    cells = [cell for cell in planned("paper/mbls-fig8").cells if cell.label == "ce"]
    assert {cell.dataset for cell in cells} == {"mrbrains18"}
    assert len({cell.recipe.data.split for cell in cells}) == 7
    assert planned("paper/mbls-fig8").split.validation == 1


def test_runs_made_by_hand_belong_to_the_hippocampus_grid():
    base = {
        "data": {"dataset": "hippocampus", "work": "work/hippocampus"},
        "network": {"name": "unet", "width": 8, "norm": "batch"},
        "train": {"epochs": 10},
    }
    by_hand = {
        "ce": ["loss.name=ce"],
        "mbls-m5": ["loss.name=mbls", "loss.margin=5.0"],
        "mbls-m10": ["loss.name=mbls", "loss.margin=10.0"],
        "crac": ["loss.name=crac"],
        "crac-tolerance": ["loss.name=crac", "loss.tolerance=1.0"],
        "crac-paper": ["loss.name=crac", "loss.inner_scale=1.0", "loss.average=region", "loss.scale=k"],
    }
    by_hand |= {name: [f"loss.name={name}"] for name in ("ce_dice", "focal", "ecp", "ls", "svls", "nacl", "bwcr")}
    grid = {(cell.label, cell.recipe.seed): cell.recipe.fingerprint for cell in planned("cpu/hippocampus").cells}
    seeds = {label: (0, 1, 2) if label in ("ce", "mbls-m5", "nacl", "crac") else (0,) for label in by_hand}
    assert grid == {
        (label, seed): read_recipe(base, [*changes, f"seed={seed}"]).fingerprint
        for label, changes in by_hand.items()
        for seed in seeds[label]
    }


@pytest.mark.parametrize("name", known_recipes())
def test_every_packaged_recipe_is_valid_and_says_how_to_get_its_data(name):
    recipe = read_recipe(name)
    text = find_recipe(name).read_text(encoding="utf-8")
    assert text.startswith("#")
    assert f"calibseg prepare --dataset {recipe.data.dataset}" in text
    assert f"-o {recipe.data.folder} && calibseg split {recipe.data.folder}" in text


def test_the_page_on_papers_names_every_grid_with_its_number_of_runs():
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    told = {name: row[2] for row in rows for name in re.findall(r"`((?:paper|released|cpu)/[\w-]+)`", row[1])}
    assert sorted(told) == known_recipes("grid")
    for name, runs in told.items():
        number = re.match(r"\d+", runs)
        if number and name.startswith("paper/"):
            assert int(number.group()) == CELLS[name], name
    stated = {name for row in rows if len(row) == 5 for name in re.findall(r"`([\w-]+)`", row[4])}
    assert stated == {name for name in known_papers() if len(paper_values(name))}
