"""torch.compile takes every loss whole: no graph break, same value, same gradient."""

import shutil

import pytest
import torch

from calibseg.core import registry


@pytest.mark.parametrize("key", list(registry.members("losses")))
def test_every_loss_is_one_graph(key, batch):
    _compare(key, "aot_eager", batch)


@pytest.mark.skipif(shutil.which("c++") is None, reason="the default compiler backend needs a C++ compiler")
@pytest.mark.parametrize("key", ["nacl", "crac"])
def test_the_default_backend_gives_the_same_numbers(key, batch):
    _compare(key, "inductor", batch)


def _compare(key: str, backend: str, batch) -> None:
    logits, labels = batch(3, (6, 8), torch.float32)
    labels[:, 0, 0] = -100
    loss = registry.build("losses", key).setup(3)
    torch.compiler.reset()  # every loss runs the same forward(): without it the cache of the earlier ones is full
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    results = []
    for function in (loss, compiled):
        leaf = logits.clone().requires_grad_()
        value = function(torch.cat([leaf, 0.7 * leaf]) if loss.views == 2 else leaf, labels)
        value.backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("key", ["nacl", "svls", "bwcr"])
def test_labels_of_any_layout_compile(key):
    """The window sums are made contiguous, whatever the labels are: the compiler must be told so."""
    logits = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 3, (1 if key == "bwcr" else 2, 5, 6)).transpose(1, 2)
    loss = registry.build("losses", key).setup(3)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(loss, backend="aot_eager")(logits, labels), loss(logits, labels))
