"""TransUNet reads the public ImageNet-21k weights: names, layouts, what the encoder makes of them, and bad files."""

import re

import numpy as np
import pytest
import torch

from calibseg.core.types import BadInput
from calibseg.networks.transunet import SIZES, TransUNet

ATTENTION = "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1"
MLP = "Transformer/encoderblock_{}/MlpBlock_3"


def shapes(size: str) -> dict[str, tuple[int, ...]]:
    """Every array of the encoder as Google's file names it and lays it out."""
    s = SIZES[size]
    hidden, heads, each = s.hidden, s.heads, s.hidden // s.heads
    names = {"conv_root/kernel": (7, 7, 3, s.width), "gn_root/scale": (s.width,), "gn_root/bias": (s.width,)}
    into = s.width
    for i, units in enumerate(s.units):
        width = s.width * 2**i
        for j in range(units):
            kernels = {"1": (1, 1, into, width), "2": (3, 3, width, width), "3": (1, 1, width, 4 * width)}
            if j == 0:
                kernels["_proj"] = (1, 1, into, 4 * width)
            for part, shape in kernels.items():
                names[f"block{i + 1}/unit{j + 1}/conv{part}/kernel"] = shape
                names[f"block{i + 1}/unit{j + 1}/gn{part}/scale"] = shape[3:]
                names[f"block{i + 1}/unit{j + 1}/gn{part}/bias"] = shape[3:]
            into = 4 * width
    names |= {"embedding/kernel": (1, 1, into, hidden), "embedding/bias": (hidden,)}
    names |= {"Transformer/posembed_input/pos_embedding": (1, 1 + s.grid**2, hidden)}
    for i in range(s.layers):
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            names |= {f"Transformer/encoderblock_{i}/{norm}/{part}": (hidden,) for part in ("scale", "bias")}
        for one in ("query", "key", "value"):
            names[f"{ATTENTION.format(i)}/{one}/kernel"] = (hidden, heads, each)
            names[f"{ATTENTION.format(i)}/{one}/bias"] = (heads, each)
        names |= {
            f"{ATTENTION.format(i)}/out/kernel": (heads, each, hidden),
            f"{ATTENTION.format(i)}/out/bias": (hidden,),
        }
        names |= {f"{MLP.format(i)}/Dense_0/kernel": (hidden, s.mlp), f"{MLP.format(i)}/Dense_0/bias": (s.mlp,)}
        names |= {f"{MLP.format(i)}/Dense_1/kernel": (s.mlp, hidden), f"{MLP.format(i)}/Dense_1/bias": (hidden,)}
    return names | {"Transformer/encoder_norm/scale": (hidden,), "Transformer/encoder_norm/bias": (hidden,)}


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """The file's content for the tiny network, with the parts of a classifier that nobody reads."""
    rng = np.random.default_rng(0)
    made = {key: rng.normal(0, 0.3, shape) + key.endswith("scale") for key, shape in shapes("tiny").items()}
    made |= {"cls": np.zeros((1, 1, 32)), "head/kernel": np.zeros((32, 21843)), "head/bias": np.zeros(21843)}
    return {key: array.astype(np.float32) for key, array in made.items()}


@pytest.fixture
def write(tmp_path):
    def made(arrays: dict[str, np.ndarray]) -> str:
        path = tmp_path / "weights.npz"
        np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
        return str(path)

    return made


def encoded(arrays: dict[str, np.ndarray], image: np.ndarray) -> np.ndarray:
    """The hybrid encoder in float64 from the file's arrays and layouts: image [y x c] -> tokens [y x hidden]."""
    w = {key: array.astype(np.float64) for key, array in arrays.items()}
    s = SIZES["tiny"]

    def windows(x, size, stride, fill):  # [y x size size c], padded as TensorFlow's SAME
        total = max(size - stride, 0)
        x = np.pad(x, [(total // 2, total - total // 2)] * 2 + [(0, 0)], constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (0, 1))[::stride, ::stride]
        return np.moveaxis(view, 2, -1)

    def convolution(name, x, stride=1):
        kernel = w[f"{name}/kernel"]
        kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
        return np.einsum("yxijc,ijco->yxo", windows(x, kernel.shape[0], stride, 0.0), kernel)

    def group_norm(name, x):
        parts = x.reshape(*x.shape[:2], s.groups, -1)
        mean, var = parts.mean((0, 1, 3), keepdims=True), parts.var((0, 1, 3), keepdims=True)
        return ((parts - mean) / np.sqrt(var + 1e-6)).reshape(x.shape) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def layer_norm(name, x):
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return normed * w[f"{name}/scale"] + w[f"{name}/bias"]

    def relu(x):
        return np.maximum(x, 0)

    x = relu(group_norm("gn_root", convolution("conv_root", image, 2)))
    x = windows(x, 3, 2, -np.inf).max((2, 3))
    for i, units in enumerate(s.units, 1):
        for j in range(1, units + 1):
            name, stride = f"block{i}/unit{j}", 2 if i > 1 and j == 1 else 1
            short = group_norm(f"{name}/gn_proj", convolution(f"{name}/conv_proj", x, stride)) if j == 1 else x
            x = relu(group_norm(f"{name}/gn1", convolution(f"{name}/conv1", x)))
            x = relu(group_norm(f"{name}/gn2", convolution(f"{name}/conv2", x, stride)))
            x = relu(short + group_norm(f"{name}/gn3", convolution(f"{name}/conv3", x)))
    space = x.shape[:2]
    x = x.reshape(-1, x.shape[-1]) @ w["embedding/kernel"][0, 0] + w["embedding/bias"]
    x = x + w["Transformer/posembed_input/pos_embedding"][0, 1:]
    for i in range(s.layers):
        name, attention, mlp = f"Transformer/encoderblock_{i}", ATTENTION.format(i), MLP.format(i)
        y = layer_norm(f"{name}/LayerNorm_0", x)
        q, k, v = (
            np.einsum("ti,ihd->htd", y, w[f"{attention}/{one}/kernel"]) + w[f"{attention}/{one}/bias"][:, None]
            for one in ("query", "key", "value")
        )
        scores = np.exp(np.einsum("htd,hsd->hts", q, k) / np.sqrt(q.shape[-1]))
        mixed = np.einsum("hts,hsd->thd", scores / scores.sum(-1, keepdims=True), v)
        x = x + np.einsum("thd,hdo->to", mixed, w[f"{attention}/out/kernel"]) + w[f"{attention}/out/bias"]
        y = layer_norm(f"{name}/LayerNorm_2", x) @ w[f"{mlp}/Dense_0/kernel"] + w[f"{mlp}/Dense_0/bias"]
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ w[f"{mlp}/Dense_1/kernel"] + w[f"{mlp}/Dense_1/bias"]
    return layer_norm("Transformer/encoder_norm", x).reshape(*space, -1)


def test_the_encoder_computes_what_the_file_means(arrays, write):
    network = TransUNet(3, 2, size="tiny", weights=write(arrays)).eval().double()
    seen = []
    network.bridge.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image = np.random.default_rng(1).normal(size=(64, 64, 3))
    with torch.no_grad():
        network(torch.from_numpy(image).permute(2, 0, 1)[None])
    np.testing.assert_allclose(seen[0][0].permute(1, 2, 0).numpy(), encoded(arrays, image), rtol=1e-6, atol=1e-8)


def test_one_channel_is_seen_as_a_grey_photograph(arrays, write):
    path = write(arrays)
    torch.manual_seed(0)
    grey = TransUNet(1, 2, size="tiny", weights=path).eval()
    torch.manual_seed(0)
    colour = TransUNet(3, 2, size="tiny", weights=path).eval()
    image = torch.randn(1, 1, 33, 40)
    with torch.no_grad():
        torch.testing.assert_close(grey(image), colour(image.repeat(1, 3, 1, 1)))


def test_four_channels_take_the_three_kernels_in_turn(arrays, write):
    kernel = TransUNet(4, 2, size="tiny", weights=write(arrays)).conv_root.weight.detach().numpy()
    np.testing.assert_array_equal(kernel, arrays["conv_root/kernel"][:, :, [0, 1, 2, 0]].transpose(3, 2, 0, 1))


def test_the_whole_encoder_and_nothing_else_comes_from_the_file(arrays, write):
    torch.manual_seed(0)
    fresh = TransUNet(3, 2, size="tiny")
    torch.manual_seed(0)
    filled = TransUNet(3, 2, size="tiny", weights=write(arrays))
    for (name, before), after in zip(fresh.named_parameters(), filled.parameters(), strict=True):
        assert torch.equal(before, after) == name.startswith(("bridge", "up", "head")), name


def test_the_public_file_of_the_full_size_has_the_known_shapes():
    names = shapes("base")
    assert names["conv_root/kernel"] == (7, 7, 3, 64)
    assert names["block1/unit1/conv_proj/kernel"] == (1, 1, 64, 256)
    assert names["block3/unit9/conv3/kernel"] == (1, 1, 256, 1024)
    assert names["embedding/kernel"] == (1, 1, 1024, 768)
    assert names["Transformer/posembed_input/pos_embedding"] == (1, 197, 768)
    assert names[f"{ATTENTION.format(11)}/query/kernel"] == (768, 12, 64)
    with torch.device("meta"):
        network = TransUNet(3, 4)
    encoder = [p for name, p in network.named_parameters() if not name.startswith(("bridge", "up", "head"))]
    class_token_position = 768  # in the file's positions, of no use here
    assert sum(p.numel() for p in encoder) == sum(np.prod(s) for s in names.values()) - class_token_position


def test_group_normalisations_may_be_stored_with_leading_axes_of_one(arrays, write):
    changed = {key: a.reshape(1, 1, 1, -1) if "/gn" in key or key.startswith("gn") else a for key, a in arrays.items()}
    network = TransUNet(3, 2, size="tiny", weights=write(changed))
    np.testing.assert_array_equal(network.gn_root.weight.detach().numpy(), arrays["gn_root/scale"])


def test_positions_of_another_grid_are_interpolated(arrays, write):
    ramp = np.linspace(0, 1, 8, dtype=np.float32)  # the same at every y; halving takes the mean of neighbours
    grid = np.broadcast_to(ramp[None, :, None], (8, 8, 32)).reshape(1, 64, 32)
    arrays["Transformer/posembed_input/pos_embedding"] = np.concatenate([np.zeros((1, 1, 32), np.float32), grid], 1)
    position = TransUNet(3, 2, size="tiny", weights=write(arrays)).position.detach()
    np.testing.assert_allclose(position[0, 5, 2].numpy(), (ramp[::2] + ramp[1::2]) / 2, rtol=1e-6)


@pytest.mark.parametrize("key", shapes("tiny"))
def test_each_missing_and_each_misshaped_array_is_named(key, arrays, write):
    shape, short = arrays[key].shape, arrays[key][..., :-1]
    for wrong, message in [
        ({k: a for k, a in arrays.items() if k != key}, "is missing"),
        (arrays | {key: short}, f"is float32 {short.shape} instead of float {shape}"),
    ]:
        path = write(wrong)
        with pytest.raises(BadInput, match=re.escape(f"{path} does not fit this network: {key} {message}") + "$"):
            TransUNet(3, 2, size="tiny", weights=path)


def test_all_that_is_wrong_is_said_at_once(arrays, write):
    del arrays["embedding/bias"]
    arrays["gn_root/scale"] = arrays["gn_root/scale"].astype(int)
    arrays["Transformer/posembed_input/pos_embedding"] = np.zeros((1, 1 + 15, 32), np.float32)
    with pytest.raises(BadInput) as error:
        TransUNet(4, 2, size="tiny", weights=write(arrays))
    assert str(error.value).split(": ", 1)[1].split("; ") == [
        "gn_root/scale is int64 (16,) instead of float (16,)",
        "embedding/bias is missing",
        "Transformer/posembed_input/pos_embedding is float32 (1, 16, 32) instead of float (1, 17, 32)",
    ]


def test_nothing_is_ever_unpickled(arrays, write):
    arrays["gn_root/bias"] = np.array([print] * 16, dtype=object)
    with pytest.raises(BadInput, match=r"gn_root/bias cannot be read: Object arrays cannot be loaded"):
        TransUNet(3, 2, size="tiny", weights=write(arrays))


def test_files_that_are_no_weights_are_refused_in_a_sentence(arrays, write, tmp_path):
    whole = write(arrays)
    with open(whole, "rb") as file:
        start = file.read(5000)
    (tmp_path / "cut.npz").write_bytes(start)
    (tmp_path / "text.npz").write_text("version https://git-lfs.github.com/spec/v1")
    (tmp_path / "empty.npz").touch()
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name, message in {
        "cut.npz": "not a .npz file of arrays",
        "text.npz": "not a .npz file of arrays",
        "empty.npz": "not a .npz file of arrays",
        "one.npy": "one array, not a .npz file of named arrays",
        "": "not a .npz file of arrays",
        "absent.npz": "weights is the path of R50+ViT-B_16.npz, or is left out",
    }.items():
        with pytest.raises(BadInput, match=re.escape(message)):
            TransUNet(3, 2, size="tiny", weights=str(tmp_path / name))


def test_dropout_acts_in_training_only_and_its_range_is_checked():
    torch.manual_seed(0)
    network, image = TransUNet(1, 2, size="tiny", dropout=0.5), torch.randn(1, 1, 32, 32)
    with torch.no_grad():
        assert not torch.equal(network(image), network(image))
        network.eval()
        assert torch.equal(network(image), network(image))
    with pytest.raises(BadInput, match=r"dropout must be at least 0 and less than 1, not 1\.0"):
        TransUNet(1, 2, size="tiny", dropout=1.0)


@pytest.mark.parametrize("side", [48, 64, 96])
def test_positions_matter_at_any_size(side):
    network, image = TransUNet(1, 2, size="tiny").eval(), torch.zeros(1, 1, side, side)
    with torch.no_grad():
        before = network(image)
        network.position[0, :, 0, 0] += 5
        assert not torch.equal(network(image), before)
