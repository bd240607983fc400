"""A training step of nnU-Net with losses of ours against its own loss, in the same run (`.venv-nnunet`).

    .venv-nnunet/bin/python benchmarks/nnunet.py [ROUNDS [LOSS ...]]

The network, batch and patch are what nnU-Net plans for the hippocampus (3d_fullres: 9 x 40 x 56 x 40, four stages, deep
supervision), the batch cut to 2. A step is forward, loss, backward and SGD, in processor seconds of one thread; losses
take turns step by step, so that other work on the machine slows all of them. Medians, and the fastest step.
"""

import argparse
import statistics
import time

import torch
from dynamic_network_architectures.architectures.unet import PlainConvUNet
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

from calibseg.integrations.nnunet.objective import Objective, make_loss

OWN = "nnU-Net's own"
PATCH = (40, 56, 40)


def own_loss() -> DeepSupervisionWrapper:
    dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
    loss = DC_and_CE_loss(dice, {}, weight_ce=1, weight_dice=1, dice_class=MemoryEfficientSoftDiceLoss)
    return DeepSupervisionWrapper(loss, (4 / 6, 2 / 6, 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=7)
    parser.add_argument("losses", nargs="*", default=["ce", "mbls", "nacl", "crac"])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = PlainConvUNet(
        1, 4, (32, 64, 128, 256), torch.nn.Conv3d, 3, (1, 2, 2, 2), (2,) * 4, 3, (2,) * 3, conv_bias=True,
        norm_op=torch.nn.InstanceNorm3d, norm_op_kwargs={"affine": True}, nonlin=torch.nn.LeakyReLU,
        nonlin_kwargs={"inplace": True}, deep_supervision=True,
    )  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, 0.99, nesterov=True)
    image = torch.randn(2, 1, *PATCH)
    labels = torch.zeros(2, 1, *PATCH, dtype=torch.int16)
    labels[:, :, 10:30, 15:40, 12:22] = 1
    labels[:, :, 10:30, 15:40, 22:30] = 2
    target = [labels[..., ::n, ::n, ::n].contiguous() for n in (1, 2, 4)]
    losses = {OWN: own_loss()}
    losses |= {key: Objective(own_loss(), make_loss(key, {}, 3, False), None, False) for key in options.losses}
    steps: dict[str, list[float]] = {name: [] for name in losses}
    alone: dict[str, list[float]] = {name: [] for name in losses}
    for round_ in range(options.rounds + 1):
        for name, loss in losses.items():
            began = time.process_time()
            optimizer.zero_grad(set_to_none=True)
            output = network(image)
            middle = time.process_time()
            value = loss(output, target)
            slopes = torch.autograd.grad(value, output[:2], retain_graph=True)
            after = time.process_time()
            torch.autograd.backward(output[:2], slopes)
            optimizer.step()
            if round_:  # the first warms up
                steps[name].append(time.process_time() - began)
                alone[name].append(after - middle)
    print(
        f"{'loss':14} {'step, s':>8} {'of own':>7} {'fastest':>8} {'of own':>7} {'loss alone, ms':>15} {'of step':>8}"
    )
    for name in losses:
        step, least, part = statistics.median(steps[name]), min(steps[name]), statistics.median(alone[name])
        of_own = f"{step / statistics.median(steps[OWN]):7.3f} {least:8.3f} {least / min(steps[OWN]):7.3f}"
        print(f"{name:14} {step:8.3f} {of_own} {1000 * part:15.1f} {part / step:8.2%}")


if __name__ == "__main__":
    main()
