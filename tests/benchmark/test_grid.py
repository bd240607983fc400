"""Grids: axes multiply, entries change what they say and nothing else, a mistake names its place."""

import json
import shlex
import tomllib

import pytest

from calibseg.benchmark import plan
from calibseg.benchmark.cell_stages import data_stages
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.selection import choose
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.runs.recipe import read_recipe
from calibseg.runs.recipe_files import find_recipe, known_recipes
from support.benches import CELLS, bench_of

PHANTOM = {"data": {"dataset": "phantom"}}


def grid(axes, changes=(), **tables):
    return read_grid(PHANTOM | tables | {"axes": axes}, changes)


def labels(found):
    return [cell.label for cell in found.cells]


def test_a_plain_recipe_is_a_grid_of_one_cell():
    (cell,) = read_grid("smoke").cells
    assert cell.recipe == read_recipe("smoke")
    assert cell.slug == read_recipe("smoke").slug
    assert (cell.calibrators, cell.noises, cell.choice) == (("none",), (0.0,), {})


def test_a_grid_is_no_recipe(tmp_path):
    path = tmp_path / "g.toml"
    path.write_text('[data]\ndataset = "phantom"\n[axes]\nseed = [0, 1]\n')
    with pytest.raises(BadInput, match="give it to   calibseg benchmark"):
        read_recipe(path)
    assert len(read_grid(path).cells) == 2


def test_axes_multiply_and_first_seeds_come_first():
    found = grid({"data": ["phantom", "acdc"], "loss": ["ce", "nacl"], "network": ["unet", "nnunet"], "seed": [3, 1]})
    assert len(found.cells) == 16
    assert [cell.recipe.seed for cell in found.cells] == [3] * 8 + [1] * 8
    assert len({(c.dataset, c.network, c.label, c.recipe.seed) for c in found.cells}) == 16


def test_an_entry_extends_the_same_method_and_replaces_another():
    found = grid(
        {"loss": [{"weight": 0.5}, "ls", {"name": "nacl", "weight": 0.2, "label": "n2"}]}, loss={"name": "nacl"}
    )
    assert [cell.recipe.loss.name for cell in found.cells] == ["nacl", "ls", "nacl"]
    assert [dict(cell.recipe.loss.options) for cell in found.cells] == [{"weight": 0.5}, {}, {"weight": 0.2}]


def test_a_dataset_keeps_the_common_choices_and_adds_its_own():
    entry = {"dataset": "acdc", "label": "heart", "target": "mean", "train": {"batch_size": 4}}
    found = grid({"data": ["phantom", entry]}, data={"dataset": "phantom", "keep": "foreground"}, train={"epochs": 9})
    one, two = found.cells
    assert (one.recipe.data.keep, one.recipe.train.batch_size, one.dataset) == ("foreground", 16, "phantom")
    assert (two.recipe.data.keep, two.recipe.data.target, two.dataset) == ("foreground", "mean", "heart")
    assert (two.recipe.train.batch_size, two.recipe.train.epochs) == (4, 9)


def test_an_option_axis_multiplies_only_what_has_the_option():
    found = grid({"loss": ["ce", "mbls"], "loss.margin": [5.0, 8.0]})
    assert labels(found) == ["ce", "mbls margin=5", "mbls margin=8"]
    with pytest.raises(BadInput, match=r"no key of the loss 'ce' named 'loss.margin'"):
        grid({"loss": ["ce"], "loss.margin": [5.0]})


def test_a_key_of_the_network_names_the_network_and_one_of_training_the_method():
    found = grid({"network.width": [4, 8], "train.epochs": [1, 2]})
    assert {cell.network for cell in found.cells} == {"unet width=4", "unet width=8"}
    assert set(labels(found)) == {"ce epochs=1", "ce epochs=2"}


def test_folds_share_one_name():
    found = grid({"data.split": ["fold-1-of-2", "fold-2-of-2"]})
    assert labels(found) == ["ce", "ce"]
    assert [cell.recipe.data.split for cell in found.cells] == ["fold-1-of-2", "fold-2-of-2"]


def test_choices_are_candidates_under_one_label_where_one_is_selected():
    axes = {"loss": ["ce", {"name": "focal", "choices": {"gamma": [1.0, 2.0, 3.0]}}]}
    chosen = grid(axes, select={"by": "dsc", "scope": "all"})
    assert labels(chosen) == ["ce", "focal", "focal", "focal"]
    assert [dict(cell.choice) for cell in chosen.cells] == [{}, *({"loss.gamma": g} for g in (1.0, 2.0, 3.0))]
    assert [cell.recipe.loss.options.get("gamma") for cell in chosen.cells] == [None, 1.0, 2.0, 3.0]
    shown = grid(axes)
    assert labels(shown) == ["ce", "focal gamma=1", "focal gamma=2", "focal gamma=3"]
    assert all(not cell.choice for cell in shown.cells)
    assert {cell.slug for cell in shown.cells} == {cell.slug for cell in chosen.cells}


def test_a_selected_axis_makes_candidates():
    axes = {"loss": ["ce", "mbls"], "loss.margin": [5.0, 8.0]}
    found = grid(axes, select={"axis": "loss.margin"})
    assert labels(found) == ["ce", "mbls", "mbls"]
    with pytest.raises(BadInput, match=r"'loss.gamma' is neither an axis nor among the choices"):
        grid(axes, select={"axis": "loss.gamma"})


def test_draws_with_seeds_or_labels_of_their_own_make_one_grid():
    draws = [{"dataset": "phantom", "split": f"train4-draw{seed}", "seeds": [seed], "label": "four"} for seed in (0, 1)]
    labelled = [{"dataset": "phantom", "split": f"train{size}-draw0", "label": f"of {size}"} for size in (2, 8)]
    assert [cell.recipe.seed for cell in grid({"data": [*draws, *labelled]}).cells] == [0, 1, 0, 0]


def test_an_entry_may_have_its_own_seeds():
    found = grid({"loss": [{"name": "ce", "seeds": [0, 1, 2]}, "ls"]})
    assert [(cell.label, cell.recipe.seed) for cell in found.cells] == [("ce", 0), ("ls", 0), ("ce", 1), ("ce", 2)]


def test_changes_win_over_entries_and_may_change_axes():
    axes = {"loss": ["ce", {"name": "nacl", "train": {"epochs": 7}}], "seed": [0, 1]}
    found = grid(axes, ["train.epochs=2", "axes.seed=[5]"])
    assert [(cell.recipe.train.epochs, cell.recipe.seed) for cell in found.cells] == [(2, 5), (2, 5)]


def test_a_grid_is_written_and_read_back():
    axes = {"loss": ["ce", {"name": "mbls", "choices": {"margin": [5.0, 8.0]}}], "train.learning_rate": [1e-3, 1e-4]}
    found = grid(axes, ["network.width=4"], select={"by": "nll"}, title="A title", score={"units": "voxel"})
    again = read_grid(tomllib.loads(found.toml()))
    assert again.cells == found.cells
    assert (again.title, again.select, again.score) == (found.title, found.select, found.score)


def test_a_label_changes_no_run():
    one, two = (grid({"loss": [{"name": "nacl", "label": label}]}).cells[0] for label in ("a", "b"))
    assert one.slug == two.slug


@pytest.mark.parametrize(
    ("axes", "tables", "message"),
    [
        ({"los": ["ce"]}, {}, "no key named 'axes.los'. Did you mean 'axes.loss'?"),
        ({"loss": "ce"}, {}, "axes.loss = 'ce' must be a list with at least one entry"),
        ({"loss": []}, {}, "axes.loss = [] must be a list"),
        ({"loss": [3]}, {}, "axes.loss[0] = 3 must be a name or a table"),
        ({"train": ["fast"]}, {}, "axes.train[0] = 'fast' must be a table"),
        ({"loss": ["nakl"]}, {}, "no loss named 'nakl'. Did you mean 'nacl'?"),
        ({"loss": [{"name": "nacl", "wieght": 1.0}]}, {}, "no key of the loss 'nacl' named 'loss.wieght'"),
        (
            {"loss": [{"name": "ls", "choices": {"smoothing": 0.1}}]},
            {},
            "axes.loss[0].choices.smoothing = 0.1 must be a list",
        ),
        ({"loss": [{"name": "ls", "label": 3}]}, {}, "axes.loss[0].label = 3 must be text in quotes"),
        ({"loss": [{"name": "ls", "seeds": 3}]}, {}, "axes.loss[0].seeds = 3 must be a list of a whole number"),
        ({"loss": [{"name": "ls", "seeds": []}]}, {}, "axes.loss[0].seeds = [] must be a list with at least one entry"),
        ({"data": [{"dataset": "phantom", "splits": []}]}, {}, "axes.data[0].splits = [] must be a list with at least"),
        ({"train.epoch": [1]}, {}, "no key named 'train.epoch'. Did you mean 'train.epochs'?"),
        ({"seed": ["one"]}, {}, "axes.seed = 'one' must be a whole number"),
        ({"seed": [1, 1]}, {}, "axes.seed names 1 twice"),
        ({"noise": [-0.1]}, {}, "axes.noise = [-0.1] must be numbers of at least 0"),
        ({"calibrator": ["temprature"]}, {}, "no calibrator named 'temprature'."),
        ({"loss": ["ce", "ce"]}, {}, "two cells are the same run: 'phantom unet ce s0' and"),
        (
            {"loss": [{"name": "ls", "label": "a"}, {"name": "nacl", "label": "a"}]},
            {},
            "two different cells are called 'phantom unet a s0': give their entries a `label`",
        ),
        (
            {"data": [{"dataset": "phantom", "label": "a"}, {"dataset": "acdc", "label": "a"}]},
            {},
            "two different cells are called 'a unet ce s0'",
        ),
        (
            {"data": [{"dataset": "phantom", "splits": ["train4-draw0", "train4-draw1"]}]},
            {},
            "'phantom unet ce s0 train4-draw0' and 'phantom unet ce s0 train4-draw1' test the same cases",
        ),
        ({"data.split": ["default", "train4-draw0"]}, {}, "give the entry of each draw `seeds` of its own"),
        ({}, {"select": {"scope": "each"}}, "select.scope = 'each' must be one of 'dataset', 'all'"),
        ({}, {"score": {"unit": "mm"}}, "no key named 'score.unit'. Did you mean 'score.units'?"),
        ({}, {"report": {"papers": "x"}}, "no key named 'report.papers'. Did you mean 'report.paper'?"),
        ({}, {"split": {"fold": 3}}, "no key named 'split.fold'. Did you mean 'split.folds'?"),
        ({}, {"axes": 3}, "axes = 3 must be a table"),
        ({}, {"lose": {}}, "no key named 'lose'. Did you mean 'loss'?"),
    ],
)
def test_a_mistake_is_named_with_its_place_its_value_and_the_choices(axes, tables, message):
    with pytest.raises(BadInput) as error:
        read_grid(PHANTOM | {"axes": axes} | tables)
    assert message in str(error.value)


@pytest.mark.parametrize("name", known_recipes("grid"))
def test_every_packaged_grid_reads_and_says_how_to_run_it(name):
    assert read_grid(name).cells
    assert f"calibseg benchmark {name}" in find_recipe(name).read_text()


def test_a_grid_may_extend_another_key_by_key(tmp_path):
    (tmp_path / "a.toml").write_text(
        'title = "a"\n[data]\ndataset = "phantom"\n[train]\nepochs = 7\n[axes]\nloss = ["ce", "ls"]\nseed = [1, 2]\n'
        '[score]\nunits = "voxel"\nempty = "worst"\n'
    )
    (tmp_path / "b.toml").write_text(
        f'extends = "{tmp_path / "a.toml"}"\n[train]\nbatch_size = 2\n[axes]\nloss = ["nacl"]\n[score]\nempty = "nan"\n'
    )
    (tmp_path / "c.toml").write_text(f'extends = "{tmp_path / "b.toml"}"\ntitle = "c"\n')
    found = read_grid(tmp_path / "c.toml")
    assert (found.title, found.score.units, found.score.empty) == ("c", "voxel", "nan")
    assert [(cell.label, cell.recipe.seed) for cell in found.cells] == [("nacl", 1), ("nacl", 2)]
    assert {(cell.recipe.train.epochs, cell.recipe.train.batch_size) for cell in found.cells} == {(7, 2)}
    assert read_grid(tomllib.loads(found.toml())).cells == found.cells
    assert {cell.slug for cell in found.cells} == {cell.slug for cell in read_grid(tmp_path / "b.toml").cells}


def test_a_grid_that_extends_itself_or_nothing_is_told(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(f'extends = "{two}"\n')
    two.write_text(f'extends = "{one}"\n')
    with pytest.raises(BadInput, match="extends goes round in a circle"):
        read_grid(one)
    two.write_text('extends = "paper/nacl-tabel1"\n')
    wrong = r"two.toml: no recipe named .paper/nacl-tabel1.. Did you mean .paper/nacl-table1."
    with pytest.raises(BadInput, match=wrong):
        read_grid(two)
    with pytest.raises(BadInput, match="extends a grid, so it is a grid of several runs"):
        read_recipe(two)


def test_folds_of_a_dataset_are_cells_of_one_name():
    found = grid({"data": [{"dataset": "acdc", "splits": ["fold-1-of-2", "fold-2-of-2"]}, "phantom"]})
    told = [(cell.dataset, cell.recipe.data.split) for cell in found.cells]
    assert told == [("acdc", "fold-1-of-2"), ("acdc", "fold-2-of-2"), ("phantom", "default")]
    with pytest.raises(BadInput, match=r"axes.data\[0\].splits = 'a' must be a list of text in quotes"):
        grid({"data": [{"dataset": "acdc", "splits": "a"}]})


def chosen(found, values, higher_is_better=True):
    """(dataset, choice) of what is chosen, values given by position."""
    slugs = {cell.slug: value for cell, value in zip(found.cells, values, strict=True) if value is not None}
    assert found.select is not None
    candidates = choose(found.cells, found.select, slugs, higher_is_better)
    return [(one.dataset, *json.loads(one.choice).values()) for one in candidates if one.chosen]


def two_datasets(scope):
    loss = [{"name": "mbls", "choices": {"margin": [5.0, 8.0]}}]
    return grid({"data": ["phantom", "acdc"], "loss": loss}, select={"scope": scope})


def test_each_dataset_has_its_own_choice_or_all_have_one():
    """Phantom: 0.80 and 0.78; ACDC: 0.60 and 0.70. Means over both: 0.70 and 0.74."""
    values = [0.80, 0.78, 0.60, 0.70]
    assert chosen(two_datasets("dataset"), values) == [("phantom", 5.0), ("acdc", 8.0)]
    assert chosen(two_datasets("all"), values) == [("", 8.0)]
    assert chosen(two_datasets("all"), values, higher_is_better=False) == [("", 5.0)]


def test_a_fold_chooses_by_its_own_validation_as_another_s_holds_the_case_it_tests():
    """Fold 1: 0.9 against 0.5, fold 2: 0.1 against 0.4; the mean over both folds would take margin 5 for both."""
    loss = [{"name": "mbls", "choices": {"margin": [5.0, 8.0]}}]
    folds = {"dataset": "acdc", "splits": ["leave-1", "leave-2"]}
    found = grid({"data": [folds], "loss": loss}, select={})
    order = [(cell.recipe.data.split, cell.choice["loss.margin"]) for cell in found.cells]
    assert order == [("leave-1", 5), ("leave-1", 8), ("leave-2", 5), ("leave-2", 8)]
    values = dict(zip((cell.slug for cell in found.cells), [0.9, 0.5, 0.1, 0.4], strict=True))
    taken = [one for one in choose(found.cells, found.select, values, True) if one.chosen]
    assert [(one.split, json.loads(one.choice)["loss.margin"], one.value) for one in taken] == [
        ("leave-1", 5.0, 0.9),
        ("leave-2", 8.0, 0.4),
    ]
    assert [one.cells for one in taken] == [(found.cells[0].slug,), (found.cells[3].slug,)]
    # one value for all datasets: phantom 0.2 and 0.8 votes in both folds, each fold of ACDC in its own
    found = grid({"data": [folds, "phantom"], "loss": loss}, select={"scope": "all"})
    values = dict(zip((cell.slug for cell in found.cells), [0.9, 0.1, 0.1, 0.4, 0.2, 0.8], strict=True))
    taken = [one for one in choose(found.cells, found.select, values, True) if one.chosen]
    # leave-1: (0.9 + 0.2) / 2 against (0.1 + 0.8) / 2; leave-2: 0.15 against 0.6; default: 0.35 against 0.525
    assert [(one.split, json.loads(one.choice)["loss.margin"]) for one in taken] == [
        ("leave-1", 5.0),
        ("leave-2", 8.0),
        ("default", 8.0),
    ]
    assert [round(one.value, 9) for one in taken] == [0.55, 0.6, 0.525]


def test_seeds_are_averaged_before_datasets():
    """Margin 5: seeds 0.9 and 0.5 make 0.7; margin 8: 0.75 and 0.71 make 0.73."""
    loss = [{"name": "mbls", "choices": {"margin": [5.0, 8.0]}}]
    found = grid({"loss": loss, "seed": [0, 1]}, select={})
    assert [(cell.recipe.seed, cell.choice["loss.margin"]) for cell in found.cells] == [(0, 5), (0, 8), (1, 5), (1, 8)]
    assert chosen(found, [0.9, 0.75, 0.5, 0.71]) == [("phantom", 8.0)]


def test_a_candidate_that_lacks_a_run_is_not_chosen():
    assert chosen(two_datasets("all"), [0.9, 0.5, None, 0.5]) == [("", 8.0)]
    assert chosen(two_datasets("dataset"), [None, None, 0.6, 0.7]) == [("acdc", 8.0)]


def test_of_equals_the_first_is_chosen():
    assert chosen(two_datasets("all"), [0.5, 0.5, 0.5, 0.5]) == [("", 5.0)]


def test_a_changed_split_is_told_before_anything_runs(tmp_path):
    bench = bench_of(tmp_path / "out")
    for stage in data_stages(bench, bench.grid.cells[0]):
        stage.command()
    bench_of(tmp_path / "out")  # as it was
    for other in ({"sizes": [5.0, 1.0, 2.0]}, {"sizes": [4.0, 2.0, 2.0], "split_seed": 1}, {}):
        with pytest.raises(BadInput, match=r"splits/default\.json: is not what the grid's \[split\] asks for"):
            bench_of(tmp_path / "out", split=other)
    bench_of(tmp_path / "out", split={"folds": 2})  # splits of other names: these are made beside it
    mine = CELLS["data"] | {"work": str(bench.work(bench.grid.cells[0]))}
    bench_of(tmp_path / "other", data=mine, split={})  # a folder of the user's, and nothing said: it is taken as it is
    with pytest.raises(BadInput, match="is not what the grid's"):
        bench_of(tmp_path / "other", data=mine, split={"sizes": [5.0, 1.0, 2.0]})


def test_the_lines_of_a_plan_name_the_files_that_may_be_run(tmp_path):
    source = tmp_path / "my loss.py"
    source.write_text(registry.find("losses", "ce").path.read_text())
    bench = bench_of(tmp_path / "out", loss={"name": str(source)})
    lines = [line for line in plan(bench, bench.grid.cells, {}) if line[:8] == "calibseg"]
    assert len(lines) > 3
    assert all(shlex.split(line)[1:3] == ["--plugin", str(source)] for line in lines)


def test_a_grid_names_its_calibrators():
    with pytest.raises(BadInput, match=r"calibseg score RUN --calibrator chosen .* Known: none, "):
        read_grid(CELLS | {"axes": {"calibrator": ["none", "chosen"]}})


def test_labels_that_one_folder_would_stand_for_are_refused_where_they_are_prepared_otherwise():
    def entry(label: str, cases: int, **more):
        return {"dataset": "phantom", "label": label, "options": {"cases": cases}, **more}

    for labels in (("胃", "肝"), ("set A", "set_A")):
        entries = [entry(label, cases) for cases, label in enumerate(labels, 4)]
        with pytest.raises(BadInput, match=rf"'{labels[0]}' and '{labels[1]}' would be prepared in one folder"):
            read_grid({"axes": {"data": entries}})
    entries = [entry("set A", 4, work="work/a"), entry("set_A", 5), entry("set-A", 5, keep="foreground")]
    assert len(read_grid({"axes": {"data": entries}}).cells) == 3
