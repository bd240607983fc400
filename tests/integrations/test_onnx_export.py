"""ONNX files in onnxruntime: what predict and calibrate give, at other sizes, with metadata; and what is refused."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibseg.api import calibrate, predict
from calibseg.calibrators import LocalTemperature, load
from calibseg.core.registry import members
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.data.slices import volume_batches
from calibseg.io.stored_logits import open_logits
from calibseg.runs.info import prepared_dir
from calibseg.runs.recipe import read_recipe
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import train
from support.calibrated_folders import run_cli
from support.calibration_cases import MEMBERS, SPACING, example, made

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from calibseg.integrations.onnx import export  # noqa: E402
from calibseg.integrations.onnx_graph import (  # noqa: E402
    CalibratedNetwork,
    FramedNetwork,
    Graph,
)
from support.real_data import DATA  # noqa: E402

SIGMOID = [key for key in sorted(MEMBERS) if "sigmoid" in MEMBERS[key].facts.get("activations", ())]
STEPS = ("histogram", "isotonic")  # a probability that rounding moves over an edge gets another step


def trained(root: Path, methods: list[str], sizes: tuple[int, int, int], **data) -> Path:
    make_splits(root / "work", sizes=sizes)
    wanted = {
        "data": {"work": str(root / "work"), **data},
        "network": {"name": "unet", "width": 4, "depth": 3, "norm": "batch"},
        "train": {"epochs": 1, "batch_size": 8},
        "loss": {"name": "ce"},
    }
    train(read_recipe(wanted), root / "run", device="cpu")
    for subset in ("validation", "test"):
        predict(root / "run", subset=subset)
    quick = {"local_temperature.epochs": 2} if "local_temperature" in methods else {}
    calibrate(root / "run", methods, options=quick)
    return root / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A phantom run, its slices coronal and narrower than the training frame in some cases."""
    root = tmp_path_factory.mktemp("onnx")
    options = {"cases": 8, "size": [6, 30, 20]}
    prepare("phantom", None, root / "work", options=options, protocol={"slice_axis": "coronal"})
    return trained(root, ["temperature", "region_temperature"], (3, 3, 2), dataset="phantom")


def in_onnxruntime(path: Path, *inputs: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {one.name: array for one, array in zip(session.get_inputs(), inputs, strict=True)}
    return np.asarray(session.run(None, given)[0])


def compare(run: Path, path: Path, calibrator: str, cases: int) -> float:
    """The largest difference between onnxruntime and our own probabilities over test cases."""
    fitted, apart = load(run / "calibrators" / calibrator), []
    for logits in sorted((run / "logits/test").glob("*.npz"))[:cases]:
        prediction = open_logits(logits)
        case = prepared.open_case(prepared_dir(run), prediction.case_id)
        image = next(volume_batches(case, case.shape[0])).numpy()
        picture = np.moveaxis(image, 0, 1 + case.axis) if fitted.uses_image else None
        expected = fitted.transform_prediction(replace(prediction, image=picture))
        apart.append(np.abs(np.moveaxis(in_onnxruntime(path, image), 0, 1 + case.axis) - expected).max())
    assert len(apart) == cases
    return float(max(apart))


def test_a_run_gives_in_onnxruntime_what_predict_and_calibrate_give(run, tmp_path):
    path = tmp_path / "new" / "model.onnx"
    spacing = open_logits(next((run / "logits/test").glob("*.npz"))).spacing_mm
    words = ["export", run, "--calibrator", "region_temperature", "-o", path]
    assert "say --spacing-mm Z Y X of the run's cases" in str(run_cli(words).exception)
    assert not path.parent.exists()
    done = run_cli([*words, "--spacing-mm", *map(str, spacing)])
    assert done.exit_code == 0, done.output
    assert "onnxruntime and torch differ by at most" in done.output
    assert compare(run, path, "region_temperature", 2) < 1e-5
    told = ort.InferenceSession(str(path)).get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"])[0] == "background"
    assert json.loads(told["preprocessing"])["slice_axis"] == "coronal"
    assert json.loads(told["fitted_on"]) == {"network": "train", "checkpoint": "validation", "calibrator": "validation"}
    assert "temperatures" in json.loads(told["calibrator_learnt"])
    assert told["calibrator"] == "region_temperature"
    assert "all slices of one case" in told["input"]
    assert "sliding windows" in told["not_contained"]


def test_padding_in_a_graph_is_what_predict_pads(run):
    from calibseg.stages.predict.ensemble import Ensemble

    ensemble = Ensemble.of([run], "cpu", 1)
    framed, (high, wide) = FramedNetwork(ensemble.networks[0], ensemble.frame), ensemble.frame
    for height, width in ((high, wide), (high - 1, wide + 5), (high + 9, 3), (2 * high, 2 * wide)):
        image = torch.rand(2, 1, height, width)
        frame = torch.zeros(2, 1, max(height, high), max(width, wide))
        frame[:, :, :height, :width] = image
        with torch.no_grad():
            expected = ensemble.networks[0](frame)[:, :, :height, :width]
            torch.testing.assert_close(framed(image), expected)


def test_a_frame_of_one_position_is_refused():
    network = members("networks")["unet"].load()(1, 3, width=4, depth=3, norm="batch")
    with pytest.raises(BadInput, match=r"slices of \[8, 7\] are too small to be exported"):
        FramedNetwork(network, (8, 7))
    FramedNetwork(network, (9, 7))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "model.pt"], "expected the name of a file that ends with .onnx"),
        (["--calibrator", "dirichlet", "-o", "m.onnx"], "dirichlet"),
        (["--calibrator", "temperature", "--spacing-mm", "1", "1", "1", "-o", "m.onnx"], "leave --spacing-mm out"),
        (["--dimensions", "2", "-o", "m.onnx"], "--dimensions is for a calibrator alone"),
        (["-o", "file/m.onnx"], "file is a file"),
    ],
    ids=["ending", "calibrator", "spacing", "dimensions", "folder"],
)
def test_what_cannot_be_exported_is_refused_before_any_work(words, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    done = run_cli(["export", run, *words])
    assert isinstance(done.exception, BadInput)
    assert message in str(done.exception)
    assert os.listdir() == ["file"]


def test_without_the_extra_one_sentence_names_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=r'onnx cannot be imported .*pip install "calibseg\[onnx\]"'):
        export(run, tmp_path / "m.onnx", calibrator="none")


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(MEMBERS))
def test_every_calibrator_alone_gives_in_onnxruntime_what_transform_gives(key, tmp_path):
    cases, new = example(dtype=np.float32), example(2, seed=7, dtype=np.float32)
    arrays = [[getattr(case, name) for case in cases] for name in ("scores", "labels", "image")]
    fitted = made(key).fit(arrays[0], arrays[1], kind="logits", images=arrays[2], spacing_mm=SPACING)
    fitted.save(tmp_path / key)
    spacing = SPACING if fitted.uses_spacing else None
    done = export(tmp_path / key, tmp_path / "c.onnx", spacing_mm=spacing)
    assert done.metadata["calibrator"] == key
    scores, images = (np.stack([getattr(case, name) for case in new]) for name in ("scores", "image"))
    expected = fitted.transform(scores, images, spacing_mm=SPACING, batch=True)
    found = in_onnxruntime(tmp_path / "c.onnx", scores, *([images] if fitted.uses_image else []))
    apart = np.abs(found - expected).max(1)
    assert ((apart > 1e-5).mean() < 1e-3) if key in STEPS else apart.max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("key", SIGMOID)
def test_sigmoid_channels_are_in_onnxruntime_what_transform_gives(key, tmp_path):
    cases, new = example(dtype=np.float32), example(2, seed=7, dtype=np.float32)
    targets = [np.stack([case.labels == 1, case.labels == 2]) for case in cases]
    images = [case.image for case in cases]
    given = {"kind": "logits", "activation": "sigmoid", "images": images, "spacing_mm": SPACING}
    fitted = made(key).fit([case.scores[1:] for case in cases], targets, **given)
    fitted.save(tmp_path / key)
    export(tmp_path / key, tmp_path / "c.onnx", spacing_mm=SPACING if fitted.uses_spacing else None)
    scores, images = np.stack([case.scores[1:] for case in new]), np.stack([case.image for case in new])
    expected = fitted.transform(scores, images, spacing_mm=SPACING, batch=True)
    found = in_onnxruntime(tmp_path / "c.onnx", scores, *([images] if fitted.uses_image else []))
    apart = np.abs(found - expected)
    assert ((apart > 1e-5).mean() < 1e-3) if key in STEPS else apart.max() < 1e-5


@pytest.mark.slow
def test_a_temperature_at_its_floor_survives_onnxruntime(tmp_path):
    """A tree that says -1000 everywhere: T is 0.05, and what comes out the softmax of 20 times the scores."""
    cases = example(dtype=np.float32)
    fitted = made("local_temperature").fit(
        [case.scores for case in cases], [case.labels for case in cases], kind="logits", images=None
    )
    facts, arrays = fitted.state()
    low = arrays | {"leaf_weight": 0 * arrays["leaf_weight"], "leaf_bias": np.full_like(arrays["leaf_bias"], -1000)}
    fitted.load_state(facts, low).save(tmp_path / "low")
    export(tmp_path / "low", tmp_path / "low.onnx")
    scores = np.random.default_rng(0).normal(size=(2, 3, 4, 9, 7)).astype(np.float32)
    scores[0] *= 1000
    powers = np.exp(20.0 * (scores - scores.max(1, keepdims=True)).astype(float))
    found = in_onnxruntime(tmp_path / "low.onnx", scores)
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(members("networks")))
def test_every_network_exports_with_free_sizes(key, tmp_path):
    kind = members("networks")[key].load()
    torch.manual_seed(0)
    network = FramedNetwork(kind(1, 3, **kind.small).eval(), (40, 33))
    free = {"image": {0: ("slices", 1), 2: ("height", 1), 3: ("width", 1)}}
    graph = Graph(torch.nn.Sequential(network, torch.nn.Softmax(1)), free, {})
    assert graph.write([(2, 1, 41, 37)], [(3, 1, 50, 20)], tmp_path / "n.onnx") < 1e-4
    image = np.random.default_rng(0).random((1, 1, 64, 64), np.float32)
    with torch.no_grad():
        expected = graph.module(torch.from_numpy(image)).numpy()
    assert np.abs(in_onnxruntime(tmp_path / "n.onnx", image) - expected).max() < 1e-4


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "Task04_Hippocampus").is_dir(), reason="the hippocampus data are not there")
def test_three_hippocampi_are_in_onnxruntime_what_they_are_here(tmp_path):
    source, root = DATA / "Task04_Hippocampus", tmp_path / "Task04_Hippocampus"
    names = sorted(path.name for path in (source / "labelsTr").glob("hippocampus_*.nii.gz"))[:12]
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(source / folder / name, root / folder)
    facts = json.loads((source / "dataset.json").read_text())
    known = {f"./{folder}Tr/{name}" for folder in ("images", "labels") for name in names}
    facts["training"] = [pair for pair in facts["training"] if pair["image"] in known]
    (root / "dataset.json").write_text(json.dumps(facts | {"numTraining": len(names)}))
    prepare("hippocampus", root, tmp_path / "work")
    methods = ["temperature", "local_temperature", "region_temperature", "image_temperature"]
    run = trained(tmp_path, methods, (6, 3, 3), dataset="hippocampus")
    for method in methods:
        spacing = (1.0, 1.0, 1.0) if method == "region_temperature" else None
        export(run, tmp_path / "m.onnx", calibrator=method, spacing_mm=spacing)
        assert compare(run, tmp_path / "m.onnx", method, 3) <= 1e-5, method


def test_a_tree_of_volumes_sees_the_volume_as_it_lies_whatever_axis_slices_have():
    """Coronal slices are stacked along y before a calibrator that learnt on (z, y, x) looks at them."""
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=(2, 6, 12, 10)).astype(np.float32)
    fitted = LocalTemperature(dimensions=3, epochs=1).fit([scores, 2 * scores], [scores.argmax(0)] * 2, kind="logits")
    with torch.no_grad():
        for number, weight in enumerate(fitted.trees[0].parameters()):
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    module = CalibratedNetwork(
        FramedNetwork(torch.nn.Identity(), (1, 1)), fitted.as_module(kind="logits"), True, False, axis=1
    )
    found = module(torch.from_numpy(np.moveaxis(scores, 2, 0).copy())).numpy()
    np.testing.assert_allclose(np.moveaxis(found, 0, 2), fitted.transform(scores), atol=1e-6)
