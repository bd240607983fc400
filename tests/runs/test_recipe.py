"""Recipes: strict files, papers' defaults, names for folders."""

import math
import tomllib
from dataclasses import fields

import pytest

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.data.augmentation import Augmentation
from calibseg.runs.recipe import Recipe, Train, read_recipe

PHANTOM = {"data": {"dataset": "phantom"}}


def test_what_a_recipe_leaves_out_is_the_papers_protocol():
    recipe = read_recipe(PHANTOM)
    how = recipe.train
    assert (how.optimiser, how.learning_rate, how.weight_decay, how.batch_size, how.epochs) == (
        "adam",
        1e-3,
        0,
        16,
        100,
    )
    assert (how.select, how.precision, recipe.network.name, recipe.loss.name) == ("miou", "32", "unet", "ce")
    assert recipe.augmentation == Augmentation()
    rates = [how.rate(epoch) for epoch in range(100)]  # StepLR: step 50, gamma 0.1
    assert rates == pytest.approx([1e-3] * 50 + [1e-4] * 50)


@pytest.mark.parametrize(("epochs", "full"), [(1, 1), (2, 1), (3, 2), (75, 38)])
def test_the_learning_rate_drops_once_at_half(epochs, full):
    how = Train(epochs=epochs)
    assert [how.rate(epoch) == how.learning_rate for epoch in range(epochs)] == [True] * full + [False] * (
        epochs - full
    )


@pytest.mark.parametrize(
    ("tables", "changes", "message"),
    [
        ({"train": {"epoch": 5}}, [], "no key named 'train.epoch'. Did you mean 'train.epochs'? Known: train.epochs, "),
        ({"trian": {}}, [], "no key named 'trian'. Did you mean 'train'? Known: data, network, loss, train, "),
        ({"train": {"epochs": "5"}}, [], "train.epochs = '5' must be a whole number"),
        ({"train": {"epochs": 5.0}}, [], "train.epochs = 5.0 must be a whole number"),
        ({"train": {"epochs": True}}, [], "train.epochs = True must be a whole number"),
        ({"train": {"learning_rate": "fast"}}, [], "train.learning_rate = 'fast' must be a number"),
        ({"train": {"select": "iou"}}, [], "train.select = 'iou' must be one of 'miou', 'dsc', 'nll', 'last'"),
        ({"train": {"epochs": 0}}, [], "train.epochs must be a whole number of at least 1, not 0"),
        ({"train": {"learning_rate": -1.0}}, [], "train.learning_rate must be at least 0, not -1.0"),
        ({"train": 5}, [], "train = 5 must be a table: [train]"),
        ({"seed": -1}, [], "seed must be a whole number of at least 0, not -1"),
        ({"seed": "one"}, [], "seed = 'one' must be a whole number"),
        ({"loss": {"name": "nakl"}}, [], "no loss named 'nakl'. Did you mean 'nacl'?"),
        ({"loss": {"name": "nacl", "wieght": 1}}, [], "no key of the loss 'nacl' named 'loss.wieght'. Did you mean "),
        ({"loss": {"name": "nacl", "weight": "big"}}, [], "loss.weight = 'big' must be a number"),
        ({"loss": {"name": "crac", "penalty": "p9"}}, [], "loss.penalty = 'p9' must be one of 'phr', 'p2', 'p3'"),
        ({"loss": {"name": "ce", "ignore_index": 3}}, [], "no key of the loss 'ce' named 'loss.ignore_index'"),
        ({"network": {"name": "unet", "width": 1.5}}, [], "network.width = 1.5 must be a whole number"),
        ({"network": {"num_classes": 3}}, [], "no key of the network 'unet' named 'network.num_classes'"),
        (
            {"augmentation": {"rotate": 5}},
            [],
            "'augmentation.rotate'. Did you mean 'augmentation.rotate_deg'?",
        ),
        ({"axes": {"loss.weight": [1, 2]}}, [], "is a grid of several runs: give it to   calibseg benchmark"),
        ({}, ["train.epochs"], "--set 'train.epochs' is not KEY=VALUE"),
        ({}, ["a.b.c=1"], "--set 'a.b.c=1' is not KEY=VALUE"),
        ({}, ["train.epochs=many"], "train.epochs = 'many' must be a whole number"),
        ({"data": {"dataset": "fantom"}}, [], "no dataset named 'fantom'. Did you mean 'phantom'?"),
        ({"data": {"split": "default"}}, [], "data.dataset is missing"),
        ({"data": {"dataset": "phantom", "target": "all"}}, [], "data.target = 'all' must be one of 'first', 'random'"),
    ],
)
def test_a_mistake_is_named_with_its_place_its_value_and_the_choices(tables, changes, message):
    with pytest.raises(BadInput) as error:
        read_recipe(PHANTOM | tables, changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[data\n")
    with pytest.raises(BadInput, match=r"mine\.toml: not TOML: .*line 1"):
        read_recipe(path)
    path.write_text('[data]\ndataset = "phantom"\n[train]\nepochs = "3"\n')
    with pytest.raises(BadInput, match=r"mine\.toml: train\.epochs = '3'"):
        read_recipe(path)
    with pytest.raises(BadInput, match=r"no file .*other\.toml"):
        read_recipe(tmp_path / "other.toml")
    with pytest.raises(BadInput, match=r"no recipe named 'cpu/hippocampus-nakl'. Did you mean 'cpu/hippocampus-nacl'"):
        read_recipe("cpu/hippocampus-nakl")


def test_single_values_are_set_from_the_command_line():
    changes = ["loss.name=nacl", "loss.weight=0.3", "train.precision=32", "train.epochs=3", "seed=7", "data.work=0815"]
    recipe = read_recipe(PHANTOM, changes)
    assert (recipe.loss.name, dict(recipe.loss.options)) == ("nacl", {"weight": 0.3})
    assert (recipe.train.precision, recipe.train.epochs, recipe.seed, recipe.data.work) == ("32", 3, 7, "0815")
    assert read_recipe(PHANTOM, ["loss.name=crac", "loss.kernel_size=[1,3]"]).loss.options["kernel_size"] == [1, 3]
    assert read_recipe(PHANTOM, ["views.flip=0.5"]).views == Augmentation(0.5, 15.0, 0.1, 0.3, 0.02)


def test_a_written_recipe_reads_back_as_the_same():
    odd = {"data": {"dataset": "phantom", "work": 'a "b"\\c é', "options": {"cases": 6, "size": [4, 8, 8]}}, "seed": 3}
    odd |= {"loss": {"name": "ce", "class_weight": [1.0, 0.5], "include_background": False}}
    recipe = read_recipe(odd)
    assert read_recipe(tomllib.loads(recipe.toml())) == recipe


def test_a_number_may_be_written_without_a_point():
    assert (
        read_recipe(PHANTOM | {"train": {"learning_rate": 1}}).fingerprint
        == read_recipe(PHANTOM, ["train.learning_rate=1.0"]).fingerprint
    )


def test_the_hash_knows_what_decides_a_result_and_nothing_else():
    recipe = read_recipe(PHANTOM)
    same = ["data.work=elsewhere", "train.workers=4", "train.save_minutes=1"]
    assert read_recipe(PHANTOM, same).fingerprint == recipe.fingerprint
    other = [
        "seed=1",
        "loss.name=nacl",
        "train.epochs=99",
        "train.precision=bf16-mixed",
        "data.split=b",
        "views.flip=0.5",
    ]
    hashes = [read_recipe(PHANTOM, [change]).fingerprint for change in other]
    assert len({recipe.fingerprint, *hashes}) == 1 + len(other)
    assert recipe.slug == f"phantom-unet-ce-s0-{recipe.fingerprint}"


def test_the_hash_knows_pretrained_weights_by_their_content(tmp_path):
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    first.write_bytes(b"one")
    second.write_bytes(b"one")
    tables = PHANTOM | {"network": {"name": "transunet", "weights": str(first)}}
    before = read_recipe(tables).fingerprint
    assert read_recipe(tables, [f"network.weights={second}"]).fingerprint == before
    first.write_bytes(b"another")
    assert read_recipe(tables).fingerprint != before
    assert read_recipe(PHANTOM | {"network": {"name": "transunet"}}).fingerprint == "9268b3aa"


def test_a_resolved_recipe_states_every_option():
    recipe = read_recipe(PHANTOM | {"loss": {"name": "nacl", "weight": 0.3}})
    loss = recipe.resolved()["loss"]
    stated = {option.name for option in registry.find("losses", "nacl").options} - {"ignore_index"}
    assert set(loss) == {"name", *stated}
    assert loss["weight"] == 0.3
    assert loss["dice_weight"] == 0.0
    assert recipe.resolved()["network"]["width"] == 32


def test_an_impossible_augmentation_is_refused_when_the_recipe_is_read():
    with pytest.raises(BadInput, match="augmentation flip is a probability, found 2"):
        read_recipe(PHANTOM, ["augmentation.flip=2"])
    assert {item.name for item in fields(Recipe)} >= {"data", "network", "loss", "train"}
    assert math.isfinite(Train().rate(0))


@pytest.mark.parametrize(("drop_at", "epochs"), [(0.55, 100), (0.28, 100), (0.6, 5), (0.67, 30)])
def test_the_learning_rate_drops_after_the_stated_share_of_the_epochs(drop_at, epochs):
    how = Train(epochs=epochs, drop_at=drop_at, learning_rate=1.0, drop_by=0.1)
    high = sum(how.rate(epoch) == 1 for epoch in range(epochs))
    assert high == -(-round(100 * drop_at) * epochs // 100)  # 0.55 * 100 is 55.00000000000001 in floating point


@pytest.mark.parametrize(
    "tables",
    [{"network": {"name": "nnunet", "patch_size": None}}, {"data": PHANTOM["data"] | {"options": {"size": None}}}],
)
def test_a_recipe_of_python_that_toml_cannot_say_is_refused_in_one_sentence(tables):
    with pytest.raises(BadInput, match=r"written as TOML: .*NoneType.*leave None out"):
        read_recipe(PHANTOM | tables).toml()


def test_a_loss_of_sigmoid_channels_is_refused_because_predictions_are_a_softmax():
    for target in ("first", "mean"):  # soft labels have the shape of channels, and were taken for them
        with pytest.raises(BadInput, match=r"loss\.activation = 'sigmoid' is for channels that overlap"):
            read_recipe(PHANTOM | {"loss": {"name": "ce", "activation": "sigmoid"}}, [f"data.target={target}"])
    assert read_recipe(PHANTOM | {"loss": {"name": "ce", "activation": "softmax"}}).loss.name == "ce"


def test_an_edited_prior_file_of_a_loss_is_another_recipe(tmp_path):
    prior = tmp_path / "mine.py"
    loss = {"name": "nacl", "prior": str(prior)}
    names = []
    for text in ("first", "second, longer"):
        prior.write_text(f"# {text}\n")
        names.append(read_recipe(PHANTOM | {"loss": loss}).fingerprint)
    assert names[0] != names[1]


def test_an_edited_loss_file_is_another_recipe_and_a_moved_one_is_the_same(tmp_path):
    """A run resumed with a file that was edited since would be neither the one nor the other."""
    first, moved = tmp_path / "mine.py", tmp_path / "elsewhere" / "mine.py"
    moved.parent.mkdir()
    for path in (first, moved):
        path.write_text(registry.find("losses", "ce").path.read_text())
    names = [read_recipe(PHANTOM | {"loss": {"name": str(path)}}).slug for path in (first, moved)]
    assert names[0] == names[1]
    first.write_text(first.read_text() + "# edited\n")
    assert read_recipe(PHANTOM | {"loss": {"name": str(first)}}).slug != names[0]
