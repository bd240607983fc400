"""How fast and how lean every loss is: forward + backward on the CPU, against plain cross-entropy, MONAI and unfold.

    python benchmarks/losses.py                 # both shapes, 15 repeats, a Markdown table per shape
    python benchmarks/losses.py --repeats 5 --only nacl,crac

Times are medians of interleaved repeats in one run; compare the ratios, not the milliseconds. Memory is the
allocator's own count: the peak over what was allocated before the call, in multiples of the logits tensor (1x is the
gradient itself). Judge the 2-D ratios by runs in which F.cross_entropy takes at most 8.5 ms: on a machine that is busy
it suffers more than the losses, which stay in the cache. The bar of ml1_ace, which has cross-entropy and Dice in it, is
twice CE + Dice. BWCR is given the logits of two views, and its memory (bar: 8) is in multiples of those.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from monai.losses import DiceCELoss, FocalLoss, NACLLoss
from torch import Tensor

from calibseg.core import registry

SHAPES = {"2-D, 16 x 4 x 224 x 224": (16, 4, 224, 224), "3-D, 2 x 5 x 64 x 128 x 128": (2, 5, 64, 128, 128)}
BARS = {
    "nacl": 1.4,
    "crac": 1.8,
    "mbls": 1.5,
    "ls": 1.5,
    "ecp": 1.5,
    "focal": 1.5,
    "svls": 1.5,
    "ce_dice": 1.7,
    "bwcr": 4.0,
}
PRIORS = ("mean", "gaussian", "max", "min", "median", "mode")
Call = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="comma-separated losses, without the priors; all when left out")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(registry.members("losses"))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, forward + backward\n")
    for title, shape in SHAPES.items():
        logits, target = organ_like(shape)
        calls = {"F.cross_entropy": F.cross_entropy} | candidates(shape, chosen)
        twice = torch.cat([logits, 0.9 * logits])  # a second view: what the network gives to BWCR
        inputs = {name: twice if getattr(call, "views", 1) == 2 else logits for name, call in calls.items()}
        runs = {name: prepare(call, inputs[name], target) for name, call in calls.items()}
        seconds = interleaved(runs, options.repeats)
        show(title, seconds, {name: peak_memory(call, inputs[name], target) for name, call in calls.items()})
    if not options.only:
        show_priors(options.repeats)


def candidates(shape: tuple[int, ...], chosen: list[str]) -> dict[str, Call]:
    """Ours, MONAI's where it has one, and the released formulation with unfold (2-D only)."""
    classes, space = shape[1], len(shape) - 2
    calls: dict[str, Call] = {}
    for key in chosen:
        calls[key] = registry.build("losses", key).setup(classes)
    monai = {
        "nacl": NACLLoss(classes, space),
        "focal": FocalLoss(to_onehot_y=True, use_softmax=True, gamma=3.0),
        "ce_dice": DiceCELoss(to_onehot_y=True, softmax=True),
    }
    for key, peer in monai.items():
        if key in chosen:
            with_channel = key != "nacl"
            calls[f"{key} (MONAI)"] = lambda x, y, p=peer, c=with_channel: p(x, y.unsqueeze(1) if c else y)
    if space == 2:
        for key, call in {"nacl": released_nacl, "crac": released_crac}.items():
            if key in chosen:
                calls[f"{key} (unfold)"] = call
    return calls


def released_nacl(logits: Tensor, target: Tensor) -> Tensor:
    """NACL as the released code computes it: unfold the label map, compare once per class."""
    return F.cross_entropy(logits, target) + 0.1 * (released_prior(target, logits.shape[1]) - logits).abs().mean()


def released_crac(logits: Tensor, target: Tensor) -> Tensor:
    """CRaC as the released code computes it: 2K channels, masked by region, both penalty branches built."""
    tau = released_prior(target, logits.shape[1])
    window = F.unfold(target.unsqueeze(1).float(), 3, padding=1)
    outer = ((window.mean(1, keepdim=True) - window).sum(1) != 0).view(target.shape).unsqueeze(1)
    h = torch.cat([(tau - logits).abs() * outer, (5 * tau - logits).abs() * ~outer], 1)
    lam, rho = torch.full_like(h[:1, :, :1, :1], 1e-6), torch.full_like(h[:1, :, :1, :1], 0.1)
    penalty = torch.where(lam + rho * h >= 0, ((lam + rho * h) ** 2 - lam**2) / (2 * rho), -(lam**2) / (2 * rho))
    return F.cross_entropy(logits, target) + penalty.mean()


def released_prior(target: Tensor, classes: int, kind: str = "mean") -> Tensor:
    """The window priors of the released code: [n 9 pixels] by unfold, then one comparison per class."""
    window = F.unfold(target.unsqueeze(1).float(), 3, padding=1)
    if kind != "mean":
        statistic = {
            "max": lambda w: w.max(1).values,
            "min": lambda w: w.min(1).values,
            "median": lambda w: w.median(1).values,
            "mode": lambda w: w.mode(1).values,
        }[kind]
        parts = [(statistic(window) == k).float() for k in range(classes)]
    else:
        parts = [(window == k).float().mean(1) for k in range(classes)]
    return torch.stack(parts, 1).view(target.shape[0], classes, *target.shape[1:])


def show_priors(repeats: int) -> None:
    """The priors alone, at the 2-D shape, against unfold."""
    from calibseg.core.labels import Target

    shape = SHAPES["2-D, 16 x 4 x 224 x 224"]
    _, target = organ_like(shape)
    calls: dict[str, Callable[[], object]] = {}
    for key in PRIORS:
        prior = registry.build("priors", key)
        calls[key] = lambda prior=prior: prior.tau(Target.read(target, shape[1], -100), torch.float32)
        if key != "gaussian":
            calls[f"{key} (unfold)"] = lambda key=key: released_prior(target, shape[1], key)
    seconds = interleaved(calls, repeats)
    print("### Window priors alone, 2-D\n\n| prior | ms | unfold, ms | times faster (bar: 4) |")
    print("| --- | --- | --- | --- |")
    for key in PRIORS:
        peer = seconds.get(f"{key} (unfold)")
        faster = f"{peer * 1e3:.1f} | {peer / seconds[key]:.1f}" if peer else "- | -"
        print(f"| {key} | {seconds[key] * 1e3:.1f} | {faster} |")


def organ_like(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Logits and smooth label maps of a given shape."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn((shape[0], shape[1], *(max(size // 16, 2) for size in shape[2:])), generator=generator)
    mode = "bilinear" if len(shape) == 4 else "trilinear"
    target = F.interpolate(coarse, size=shape[2:], mode=mode).argmax(1)
    return torch.randn(shape, generator=generator) * 3, target


def prepare(call: Call, logits: Tensor, target: Tensor) -> Callable[[], None]:
    leaf = logits.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        call(leaf, target).backward()

    return run


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each call, all calls taking turns so that noise falls on everyone."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repeat >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_memory(call: Call, logits: Tensor, target: Tensor) -> float:
    """Peak extra bytes of one forward + backward by the allocator's record, over the bytes of the logits."""
    prepare(call, logits, target)()  # what is made once (operators, constants) does not count
    leaf = logits.clone().requires_grad_()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call(leaf, target).backward()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak / (logits.numel() * logits.element_size())


def show(title: str, seconds: dict[str, float], memory: dict[str, float]) -> None:
    print(f"### {title}\n\n| loss | ms | x cross-entropy | bar | extra memory, x logits (bar: 3) |")
    print("| --- | --- | --- | --- | --- |")
    for name, value in seconds.items():
        ratio = value / seconds["F.cross_entropy"]
        bar = BARS.get(name)
        if name == "ml1_ace" and "ce_dice" in seconds:
            bar = round(2 * seconds["ce_dice"] / seconds["F.cross_entropy"], 2)
        verdict = "" if bar is None else f"{bar} {'met' if ratio <= bar else 'MISSED'}"
        ours = "(" not in name and name != "F.cross_entropy"
        lean = "" if not ours else " met" if memory[name] <= (8 if name == "bwcr" else 3) else " MISSED"
        print(f"| {name} | {value * 1e3:.1f} | {ratio:.2f} | {verdict} | {memory[name]:.2f}{lean} |")
    print()


if __name__ == "__main__":
    main()
