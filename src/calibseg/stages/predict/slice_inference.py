r"""Inference on the slices of a case, batch by batch: an ensemble of networks, with test-time augmentation by flips.

M networks that each see V views give MV predictions of a slice. Their mean is one of

$$ \text{probabilities:} \; \log \frac{1}{MV} \sum_m \mathrm{softmax}(l_m) \qquad
   \text{logits:} \; \frac{1}{MV} \sum_m l_m $$

the first of which (a mixture) is at most as confident as its members are on average; the second (a normalised
geometric mean) is sharper. Both are scores whose softmax are the probabilities.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from calibseg.core.types import BadInput
from calibseg.data.slices import Size, SliceSource, volume_batches
from calibseg.stages.predict.options import Average, InferenceOptions

VIEWS: dict[str, tuple[tuple[int, ...], ...]] = {  # the axes of [n c h w] that a view reverses
    "none": ((),),
    "rows": ((), (2,)),
    "columns": ((), (3,)),
    "both": ((), (2,), (3,), (2, 3)),
}


@torch.inference_mode()
def slice_scores(
    networks: Sequence[nn.Module],
    case: SliceSource,
    inference: InferenceOptions = InferenceOptions(),
    at_least: Size = (1, 1),
    batch_size: int = 16,
    device: str | torch.device = "cpu",
) -> Iterator[Tensor]:
    """Scores [n k h w] in float32 on the CPU, batch after batch, in the order of the case's slices.

    at_least: the frame of the training slices, see `data.slices`; what is added is cut off again
    """
    classes, (_, _, height, width) = len(case.classes), case.shape
    views = VIEWS[inference.flips]
    members = len(networks) * len(views)
    for images in volume_batches(case, batch_size, at_least=at_least):
        images = images.to(device, memory_format=torch.channels_last)
        total = None
        for network in networks:
            for axes in views:
                logits = network(_mirrored(images, axes, height, width)).float()
                if logits.shape != (len(images), classes, *images.shape[2:]):
                    raise BadInput(
                        f"the network answers {list(images.shape)} with {list(logits.shape)}, but the case has "
                        f"{classes} classes: {', '.join(case.classes)}"
                    )
                logits = logits[:, :, :height, :width].flip(axes)
                total = _added(total, logits, inference.average) if members > 1 else logits
        assert total is not None
        if members > 1:
            total = total / members if inference.average == "logits" else total - math.log(members)
        if not total.isfinite().all():
            raise BadInput(f"the network's answer to case {case.id!r} is NaN or infinite; its weights cannot be used")
        yield total.cpu()


def _mirrored(images: Tensor, axes: tuple[int, ...], height: int, width: int) -> Tensor:
    """The slices turned round where they stand: what was padded stays at the bottom and on the right."""
    if not axes:
        return images
    view = images.clone()
    view[:, :, :height, :width] = images[:, :, :height, :width].flip(axes)
    return view


def _added(total: Tensor | None, logits: Tensor, average: Average) -> Tensor:
    if average == "logits":
        return logits if total is None else total + logits
    log_p = logits.log_softmax(1)
    return log_p if total is None else torch.logaddexp(total, log_p)
