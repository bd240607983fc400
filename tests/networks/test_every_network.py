"""The contract: what every network in the folder must do, found by the registry and named nowhere."""

import re

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.networks import Network

KEYS = list(registry.members("networks"))
IN_3D = [key for key in KEYS if "dimensions" in {option.name for option in registry.find("networks", key).options}]
every_network = pytest.mark.parametrize("key", KEYS)


def small(key: str, in_channels: int = 1, num_classes: int = 3, **options) -> Network:
    """The small variant that the network itself declares, with weights that depend on nothing."""
    torch.manual_seed(0)
    shape = {"in_channels": in_channels, "num_classes": num_classes}
    return registry.build("networks", key, {**shape, **registry.load("networks", key).small, **options})


def picture(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def count(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@every_network
def test_the_parameter_count_in_the_docstring_is_true(key):
    stated = re.search(r"^Parameters: ([\d,]+) \(1 channel, 4 classes\)", registry.find("networks", key).doc, re.M)
    assert stated, "the docstring has a line 'Parameters: N (1 channel, 4 classes)'"
    with torch.device("meta"):
        network = registry.build("networks", key, {"in_channels": 1, "num_classes": 4})
    assert count(network) == int(stated[1].replace(",", ""))


@every_network
def test_the_docstring_names_the_paper_and_what_differs(key):
    doc = registry.find("networks", key).doc
    assert re.search(r"^Paper: \w", doc, re.M)
    assert re.search(r"^Differs: \w", doc, re.M)


@every_network
def test_every_option_has_a_type_and_a_note(key):
    for option in registry.find("networks", key).options:
        assert option.type, option.name
        assert option.note, option.name


@every_network
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("space", [(37, 53), (32, 16), (1, 1), (5, 70)], ids=str)
def test_the_logits_have_the_size_of_the_image(key, channels, space):
    logits = small(key, channels)(picture(1, channels, *space))
    assert logits.shape == (1, 3, *space)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("key", IN_3D)
@pytest.mark.parametrize("space", [(9, 20, 17), (1, 1, 1)], ids=str)
def test_volumes_come_back_in_their_size_too(key, space):
    logits = small(key, 2, dimensions=3)(picture(1, 2, *space))
    assert logits.shape == (1, 3, *space)
    assert torch.isfinite(logits).all()


@every_network
def test_padding_changes_nothing_for_an_image_that_is_already_padded_that_way(key):
    network, image = small(key).eval(), picture(2, 1, 37, 53)
    height, width = network.padded((37, 53))
    by_hand = torch.nn.functional.pad(image, (0, width - 53, 0, height - 37), mode="replicate")
    with torch.no_grad():
        assert torch.equal(network(image), network.segment(by_hand)[..., :37, :53])
        assert torch.equal(network(by_hand), network.segment(by_hand))


@every_network
def test_the_answer_depends_on_the_whole_image_and_on_each_channel(key):
    network = small(key, 2).eval()
    image = picture(1, 2, 32, 32).requires_grad_()
    network(image)[0, :, 16, 16].square().sum().backward()
    assert image.grad is not None
    reached = (image.grad[0] != 0).flatten(1).float().mean(1)
    assert (reached > 0.25).all(), "a small variant with three levels sees well beyond the neighbours"


@every_network
def test_gradients_reach_every_parameter(key):
    network = small(key)
    logits = network(picture(2, 1, 33, 40))
    torch.nn.functional.cross_entropy(logits, logits.detach().argmin(1)).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, f"{name} takes no part: data-parallel training would wait for it"
        assert torch.isfinite(parameter.grad).all(), name
        if parameter.ndim > 1:  # a bias before a normalisation has no influence
            assert parameter.grad.abs().sum() > 0, name


@every_network
def test_a_few_steps_lower_the_loss(key):
    network, image = small(key), picture(2, 1, 32, 32)
    target = (image[:, 0] > 0).long()
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(image), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0], losses


@every_network
def test_in_evaluation_the_answer_is_the_same_every_time_and_for_every_batch(key):
    network, image = small(key).eval(), picture(3, 1, 37, 40)
    with torch.no_grad():
        together = network(image)
        assert torch.equal(together, network(image))
        for i in range(3):
            torch.testing.assert_close(network(image[i : i + 1]), together[i : i + 1])


@every_network
def test_the_same_seed_gives_the_same_network_and_listing_draws_no_random_numbers(key):
    first, second = small(key).state_dict(), small(key).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@every_network
def test_channels_last_gives_the_same_logits_and_gradients(key):
    image = picture(2, 1, 37, 40)
    plain, last = small(key).eval(), small(key).eval()
    last.to(memory_format=torch.channels_last)  # pyright: ignore
    expected, found = plain(image), last(image.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for logits in (expected, found):
        logits.square().mean().backward()
    for (name, a), b in zip(plain.named_parameters(), last.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5, msg=name)


@every_network
def test_bfloat16_autocast_runs_forward_and_backward(key):
    network, image = small(key).eval(), picture(2, 1, 37, 40)
    expected = network(image)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(image)
    assert (logits.float() - expected).abs().max() < 0.1 * expected.std() + 0.1 * expected.abs().max()
    logits.float().square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())


@every_network
def test_the_weights_survive_a_safetensors_file(key):
    network, image = small(key), picture(2, 1, 37, 40)
    network(image)  # moves running statistics, if any
    data = save(network.state_dict())  # refuses two names for one tensor
    torch.manual_seed(7)
    other = type(network)(1, 3, **network.small)
    other.load_state_dict(load(data))
    with torch.no_grad():
        assert torch.equal(other.eval()(image), network.eval()(image))


@every_network
def test_an_image_of_the_wrong_kind_is_refused_with_its_shape(key):
    network = small(key, 2)
    for wrong in [(1, 3, 8, 8), (2, 8, 8), (1, 2, 8, 8, 8), (1, 2, 0, 8)]:
        with pytest.raises(BadInput, match=re.escape(str(list(wrong)))):
            network(torch.zeros(wrong))


@every_network
@pytest.mark.parametrize(("name", "value"), [("in_channels", 0), ("num_classes", 1), ("num_classes", 2.0)])
def test_impossible_numbers_are_refused_by_name(key, name, value):
    with pytest.raises(BadInput, match=f"{name}( = 2.0)? must be a whole number"):
        small(key, **{name: value})


@pytest.mark.parametrize("key", IN_3D)
def test_other_than_two_or_three_dimensions_are_refused(key):
    with pytest.raises(BadInput, match=r"dimensions( = 4)? must be one of 2, 3"):
        small(key, dimensions=4)
