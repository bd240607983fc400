"""The training loop: one for every loss, equal to a bare loop, reproducible, and honest about what it saw."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.nn.functional import cross_entropy, softmax

from calibseg.core import files, registry
from calibseg.core.types import BadInput, Split
from calibseg.data import prepared
from calibseg.data.slices import Slices
from calibseg.losses import Loss
from calibseg.runs import folders
from calibseg.runs.checkpoint import build_network, load_network
from calibseg.runs.info import read_run
from calibseg.stages.train.data import open_sources, training_slices, validation_slices
from calibseg.stages.train.loop import first_process, train
from calibseg.stages.train.validation import Validation
from support.training import phantom, recipe, rows, tiny

pytestmark = pytest.mark.filterwarnings("ignore:crac. inside organs")  # two epochs are too few to be confident

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return phantom(tmp_path_factory.mktemp("phantom"))


def weights(run):
    with safe_open(folders.RunFolder(Path(run)).weights, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a | b)


@pytest.mark.parametrize("loss", list(registry.members("losses")))
def test_every_loss_trains_two_epochs_through_the_same_loop(loss, work, tmp_path):
    done = train(recipe(work, loss={"name": loss}), tmp_path / "run")
    assert (done.status, done.epochs) == ("finished", 2)
    found = rows(tmp_path / "run")
    assert [row["epoch"] for row in found] == ["1", "2"]
    assert [float(row["learning_rate"]) for row in found] == [1e-3, pytest.approx(1e-4)]
    terms = [name for name in found[0] if name.startswith("train_")]
    assert terms
    assert all(math.isfinite(float(row[name])) for row in found for name in terms)
    for name in ("val_miou", "val_dsc", "val_dsc_core", "val_nll", "val_ece_truth", "val_ece_all"):
        assert math.isfinite(float(found[1][name]))
    info = read_run(tmp_path / "run")
    assert (info.status, info.epochs_done, info.best_epoch) == ("finished", 2, done.best_epoch)
    network = load_network(tmp_path / "run")
    assert network(torch.rand(1, 1, 21, 30)).shape == (1, 4, 21, 30)


def test_the_first_batch_of_every_epoch_is_checked_whatever_the_loss_does_by_itself(work, tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(Loss, "check", lambda _, logits, target: checked.append((len(logits), len(target))))
    train(recipe(work, "train.epochs=3", loss={"name": "bwcr", "value_check": "never"}), tmp_path / "run")
    assert checked == [(8, 4)] * 3  # two views of four slices


@pytest.mark.parametrize("network", list(registry.members("networks")))
def test_every_network_trains_two_epochs_with_a_plain_loss_and_with_multipliers(network, work, tmp_path):
    small = getattr(registry.load("networks", network), "small", {})
    for loss in ("ce", "crac"):
        wanted = recipe(
            work, "train.epochs=2", "train.batch_size=8", network={"name": network, **small}, loss={"name": loss}
        )
        assert train(wanted, tmp_path / loss).status == "finished"
        assert load_network(tmp_path / loss)(torch.rand(1, 1, 32, 32)).shape == (1, 4, 32, 32)


def test_the_loop_is_what_one_would_write_by_hand(work, tmp_path):
    wanted = recipe(work, "train.epochs=3", "train.select=last", "train.memory_format=contiguous", "seed=3")
    train(wanted, tmp_path / "run")

    torch.manual_seed(3)
    network = registry.build("networks", "unet", {"in_channels": 1, "num_classes": 4, "width": 4, "depth": 3})
    adam = torch.optim.Adam(network.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 2, 0.1)
    cases = [prepared.open_case(work, id) for id in prepared.read_split(work).train]
    slices, means = Slices(cases, 4, seed=3), []
    for epoch in range(3):
        losses = []
        for batch in slices.epoch(epoch):
            loss = cross_entropy(network(batch.image), batch.target)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        schedule.step()
        means.append(np.mean(losses))
    found = weights(tmp_path / "run")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    logged = [float(row["train_ce"]) for row in rows(tmp_path / "run")]
    assert logged == pytest.approx(means, rel=1e-5)


def test_validation_numbers_are_those_of_the_definitions(work, tmp_path):
    wanted = recipe(
        work, "train.epochs=8", "train.learning_rate=0.01", "train.select=last", network={"name": tiny(tmp_path)}
    )
    done = train(wanted, tmp_path / "run")
    last, network = done.log[-1], load_network(tmp_path / "run")
    case = prepared.open_case(work, prepared.read_split(work).validation[0])
    labels = case.read("labels")[:, 0].astype(int)
    with torch.no_grad():
        p = softmax(network(torch.from_numpy(case.read("image"))), 1).numpy().astype(np.float64)
    predicted, confidence = p.argmax(1), p.max(1)
    pairs = [((labels == k), (predicted == k)) for k in (1, 2, 3)]
    iou = [(t & q).sum() / (t | q).sum() for t, q in pairs]
    dsc = [2 * (t & q).sum() / (t.sum() + q.sum()) for t, q in pairs]
    assert last["val_miou"] == pytest.approx(np.mean(iou))
    assert last["val_dsc"] == pytest.approx(np.mean(dsc))  # one case: the mean over cases is its own
    assert last["val_dsc_organ"] == pytest.approx(dsc[0])
    assert last["val_dsc_organ"] > 0.2  # it has learnt something
    likelihood = np.take_along_axis(p, labels[:, None], 1)[:, 0]
    assert last["val_nll"] == pytest.approx(-np.log(likelihood).mean(), rel=1e-5)
    for voxels, chosen in (("truth", labels > 0), ("predicted", predicted > 0), ("all", labels >= 0)):
        bins = np.ceil(confidence[chosen] * 15).astype(int)
        gaps = [
            abs((confidence[chosen] - (predicted == labels)[chosen])[bins == b].sum()) / chosen.sum()
            for b in range(1, 16)
        ]
        assert last[f"val_ece_{voxels}"] == pytest.approx(sum(gaps), abs=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(work, tmp_path):
    fast = recipe(work, augmentation={"flip": 0.5, "noise": 0.1}, network={"name": tiny(tmp_path)})
    slow = recipe(work, "train.workers=0", augmentation={"flip": 0.5, "noise": 0.1}, network={"name": tiny(tmp_path)})
    other = recipe(work, "seed=1", augmentation={"flip": 0.5, "noise": 0.1}, network={"name": tiny(tmp_path)})
    for name, wanted in (("a", fast), ("b", slow), ("c", other)):
        torch.rand(5)  # what was drawn before has no part in it
        train(wanted, tmp_path / name)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_a_run_can_be_repeated_from_its_own_folder(work, tmp_path):
    train(recipe(work, loss={"name": "nacl", "weight": 0.3}), tmp_path / "a")
    from calibseg.runs.recipe import read_recipe

    train(read_recipe(tmp_path / "a"), tmp_path / "b")
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_the_multipliers_of_crac_move_and_are_logged(work, tmp_path):
    done = train(recipe(work, "train.epochs=3", loss={"name": "crac", "rho_every": 1}), tmp_path / "run")
    for name in ("lambda_inner_1", "lambda_outer_1"):
        first, second, third = (row[name] for row in done.log)
        assert 1e-6 < first < second < third
    assert done.log[-1]["rho_inner_1"] > 0.1
    assert 0 < done.log[-1]["interior_confidence"] < 1


def test_a_loss_that_compares_views_is_given_two_and_their_way_back(work, tmp_path):
    still = {"flip": 0.0, "rotate_deg": 0.0, "scale": 0.0, "gamma": 0.0, "noise": 0.0}
    moved = train(recipe(work, loss={"name": "bwcr", "weight": 100.0}), tmp_path / "moved")
    equal = train(recipe(work, loss={"name": "bwcr", "weight": 100.0}, views=still), tmp_path / "equal")
    assert moved.log[0]["train_consistency"] > 0
    assert equal.log[0]["train_consistency"] == pytest.approx(0, abs=1e-9)  # two equal views agree
    plain = train(recipe(work), tmp_path / "plain")
    assert equal.log[0]["train_ce"] == pytest.approx(plain.log[0]["train_ce"], rel=1e-4)


@pytest.mark.parametrize(("select", "best"), [("miou", max), ("dsc", max), ("nll", min), ("last", None)])
def test_the_chosen_epoch_is_the_best_one_by_the_rule_asked_for(select, best, work, tmp_path):
    wanted = recipe(
        work, "train.epochs=6", "train.learning_rate=0.05", f"train.select={select}", network={"name": tiny(tmp_path)}
    )
    done = train(wanted, tmp_path / "run")
    values = [row["epoch"] if best is None else row[f"val_{select}"] for row in done.log]
    chosen = 6 if best is None else values.index(best(values)) + 1  # the first of equals
    assert done.best_epoch == chosen
    with safe_open(folders.RunFolder(tmp_path / "run").weights, "pt") as file:
        assert json.loads(file.metadata()["about"])["epoch"] == chosen
    found = validated(wanted, tmp_path / "run")
    assert {f"val_{name}": value for name, value in found.items()} == {
        name: value for name, value in done.log[chosen - 1].items() if name.startswith("val_")
    }


def validated(wanted, run):
    """What one process finds with the weights that a run has chosen."""
    sources = open_sources(wanted)
    network = load_network(run)
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    statistics = Validation([case.id for case in sources.validation], sources.classes)
    with torch.no_grad():
        for batch in validation_slices(wanted, sources).epoch(0):
            logits = network(batch.image.to(memory_format=torch.channels_last))
            statistics.update(logits, batch.target, batch.case_ids)
    return statistics.summary()


def test_two_processes_see_the_validation_slices_as_one_process_does(tmp_path):
    work = phantom(tmp_path / "work")
    split = prepared.read_split(work)
    # Three validation cases of four slices in batches of 8: one process has a batch more than the other.
    parts = Split(split.train[:2], (*split.validation, *split.train[2:]), split.test, 0)
    prepared.write_split(work, "three", parts)
    changes = ("data.split=three", "train.batch_size=8", "train.epochs=3", "train.learning_rate=0.01")
    tables = {"network": {"name": tiny(tmp_path)}, "loss": {"name": "crac", "rho_every": 1}}
    wanted = recipe(work, *changes, **tables)  # batch normalisation: each process has running means of its own
    (tmp_path / "recipe.toml").write_text(wanted.toml())
    script = tmp_path / "calibseg.py"
    script.write_text("import sys; sys.path.remove(sys.path[0])\nfrom calibseg.cli import main\nmain()\n")
    command = [sys.executable, str(script), "train", str(tmp_path / "recipe.toml"), "-o", str(tmp_path / "run"), "-q"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--devices", "2", "--device", "cpu"], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    info = read_run(tmp_path / "run")
    assert info.provenance["processes"] == 2
    logged = rows(tmp_path / "run")[info.best_epoch - 1]
    for name, value in validated(wanted, tmp_path / "run").items():
        assert logged[f"val_{name}"] == str(value)
    # Training shares each batch of 8 among both: two halves, whose gradients are averaged.
    assert len(training_slices(wanted, open_sources(wanted), rank=1, world=2)) == 1


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "3"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1", "NODE_RANK": "0"}, False),  # started by Fabric in a job script
        ({"SLURM_PROCID": "1", "RANK": "0", "LOCAL_RANK": "0"}, True),  # torchrun counts as it likes
    ],
)
def test_one_process_writes_whoever_started_them(monkeypatch, environment, first):
    for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert first_process() == first


def test_every_rank_takes_other_validation_batches_and_none_twice(work):
    slices = validation_slices(recipe(work, "train.batch_size=1"), open_sources(recipe(work)))
    shares = [[batch.slices for batch in slices.epoch(0, start=rank, step=3)] for rank in range(3)]
    assert [len(share) for share in shares] == [2, 1, 1]
    assert sorted(index for share in shares for part in share for index in part) == [0, 1, 2, 3]


def test_statistics_of_parts_are_those_of_the_whole(work):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, 9, 8, generator=generator)
    target = torch.randint(0, 4, (6, 9, 8), generator=generator)
    target[0, :3] = -100
    ids = ("a", "a", "b", "b", "b", "c")
    whole, first, second = (Validation("abc", ("x", "1", "2", "3")) for _ in range(3))
    whole.update(logits, target, ids)
    for number in range(6):
        part = first if number % 2 else second
        part.update(logits[number : number + 1], target[number : number + 1], ids[number : number + 1])
    first.counts = first.counts + second.counts
    first.monitor.merge_state([second.monitor])
    assert first.summary() == whole.summary()


def test_soft_targets_count_by_their_largest_share(work, tmp_path):
    for target in ("mean", "truth", "random"):
        done = train(recipe(work, f"data.target={target}"), tmp_path / target)
        assert math.isfinite(done.log[-1]["val_nll"])


@pytest.mark.parametrize(
    "change", ["train.precision=bf16-mixed", "train.optimiser=sgd", "train.weight_decay=0.1", "train.clip_norm=0.1"]
)
def test_options_of_the_loop_change_the_result(change, work, tmp_path):
    train(recipe(work), tmp_path / "plain")
    train(recipe(work, change), tmp_path / "other")
    assert not same(weights(tmp_path / "plain"), weights(tmp_path / "other"))


@pytest.mark.slow
def test_a_compiled_network_learns_the_same(work, tmp_path):
    plain = train(recipe(work), tmp_path / "plain")
    compiled = train(recipe(work, "train.compile=default"), tmp_path / "compiled")
    assert compiled.log[-1]["val_nll"] == pytest.approx(plain.log[-1]["val_nll"], rel=1e-3)
    assert weights(tmp_path / "plain").keys() == weights(tmp_path / "compiled").keys()


def test_tensorboard_gets_what_the_log_gets(work, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from calibseg.stages.train.progress import Bar

    with Bar(None, tmp_path / "tensorboard") as bar:
        done = train(recipe(work), tmp_path / "run", watcher=bar)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    written = [event.value for event in events.Scalars("val/nll")]
    assert written == pytest.approx([row["val_nll"] for row in done.log], rel=1e-6)


def test_the_command_shows_every_epoch_and_notes_as_sentences(work, tmp_path):
    import warnings

    from rich.console import Console

    from calibseg.stages.train.progress import Bar

    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    with Bar(console) as bar:
        train(recipe(work), tmp_path / "run", watcher=bar)
        warnings.warn("mind the gap", stacklevel=1)
    said = console.export_text()
    assert "epoch   1/2  ce " in said
    assert "epoch   2/2  ce " in said
    assert "note: mind the gap\n" in said


def test_a_gpu_that_is_not_there_is_refused(work, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="torch finds no GPU here"):
        train(recipe(work), tmp_path / "run", device="cuda")


def test_a_split_without_validation_trains_to_the_last_epoch(tmp_path):
    work = phantom(tmp_path / "work")
    split = prepared.read_split(work)
    prepared.write_split(work, "none", Split(split.train, (), split.test, 0))
    with pytest.raises(BadInput, match=r"train\.select = 'miou' needs validation cases"):
        train(recipe(work, "data.split=none"), tmp_path / "a")
    done = train(recipe(work, "data.split=none", "train.select=last"), tmp_path / "b")
    assert (done.best_epoch, [name for name in done.log[0] if name.startswith("val_")]) == (2, [])
    with pytest.raises(BadInput, match="the loss 'crac', which learns from them, needs validation cases"):
        train(recipe(work, "data.split=none", "train.select=last", loss={"name": "crac"}), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_record_of_a_run_states_its_provenance(work, tmp_path):
    wanted = recipe(work, loss={"name": "nacl"})
    train(wanted, tmp_path / "run")
    about = files.read_json(tmp_path / "run" / "run.json", "run")
    assert about["recipe"]["loss"]["weight"] == 0.1
    assert about["hash"] == wanted.fingerprint
    assert about["split"]["train"] == list(prepared.read_split(work).train)
    assert about["data_hash"] == open_sources(wanted).fingerprint
    assert about["versions"]["torch"] == torch.__version__
    assert about["threads"]["torch"] == torch.get_num_threads()
    assert about["wall_time_s"] > 0
    assert about["peak_memory_mib"]["process"] > 50
    assert about["device"] == "cpu"
    assert about["classes"] == ["background", "organ", "core", "neighbour"]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["last", "log.csv", "recipe.toml", "run.json", "weights.safetensors"]
    with (tmp_path / "run" / "log.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["epoch_s"]) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["data.work=nowhere"],
            "nowhere: no prepared data; run   calibseg prepare --dataset phantom -o nowhere && ",
        ),
        (["data.dataset=acdc"], "holds the dataset 'phantom', the recipe asks for 'acdc'"),
        (["data.options={cases=7}"], "was prepared with cases = 6, the recipe's data.options has 7; prepare it again:"),
        (["data.split=b"], "no split named 'b'. Known: default"),
        (["train.batch_size=3", "seed=2"], "train.batch_size = 3 cannot be shared by 2 processes"),
    ],
)
def test_data_that_are_not_what_the_recipe_asks_for_are_refused(changes, message, work, tmp_path):
    with pytest.raises(BadInput) as error:
        train(recipe(work, *changes), tmp_path / "run", devices=2 if "seed=2" in changes else 1)
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(work, tmp_path):
    train(recipe(work), tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(BadInput, match="holds a run already; add --resume"):
        train(recipe(work), tmp_path / "run")
    with pytest.raises(BadInput, match="its recipe is another one"):
        train(recipe(work, "seed=1"), tmp_path / "run", resume=True)
    assert train(recipe(work), tmp_path / "run", resume=True).status == "finished"
    assert same(before, weights(tmp_path / "run"))


def test_weights_of_another_kind_are_refused_and_never_unpickled(work, tmp_path):
    train(recipe(work), tmp_path / "run")
    folder = folders.RunFolder(tmp_path / "run")
    good = folder.weights.read_bytes()
    torch.save({"a": torch.zeros(1)}, folder.weights)
    with pytest.raises(BadInput, match=r"weights\.safetensors: cannot be read as safetensors"):
        load_network(tmp_path / "run")
    folder.weights.write_bytes(folder.state.read_bytes())
    with pytest.raises(BadInput, match="its format is 'calibseg-state/1', this version reads 'calibseg-weights/1'"):
        load_network(tmp_path / "run")
    folder.weights.write_bytes(good)
    network = build_network({"name": "unet", "width": 8, "depth": 3}, ["a"], ["b", "c"])
    from calibseg.runs.checkpoint import load_named

    with pytest.raises(BadInput, match="does not belong to this UNet"):
        load_named(network, weights(tmp_path / "run"), folder.weights)
