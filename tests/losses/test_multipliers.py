"""Several epochs of CRaC's multipliers against a loop over voxels in plain Python, for every option of the update."""

import math

import pytest
import torch

from calibseg.core.labels import Target
from calibseg.core.types import BadInput
from calibseg.losses import CALS, CRaC
from calibseg.losses.maths.multipliers import LostClasses, Multipliers, Rule

CLASSES = 3
LABELS = torch.tensor([[[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, -100], [2, 2, 2, 2, 2, 2, 2]]])
FACTORS = (1.0, 3.0, 2.9, 0.1, 0.05, 0.0)  # of the logits, epoch by epoch: the constraint grows, shrinks, is met

OPTIONS = [
    {},
    {"rho_every": 1, "average": "region"},
    {"rho_every": 2, "tolerance": 0.8, "rho": 0.7, "average": "region"},
    {"rho_every": 1, "residual": "signed", "rho": 0.5},
    {"rho_every": 1, "residual": "signed", "tolerance": 0.3, "average": "region"},
    {"rho_every": 1, "penalty": "p2", "tolerance": 0.5, "lambda_init": 0.01, "inner_scale": 1.0},
    {"rho_every": 1, "penalty": "p3", "tolerance": 0.5, "lambda_init": 0.01, "outer_scale": 2.0},
    {"rho_every": 1, "gamma": 3.0, "rho_max": 0.5, "mu": 0.5, "lambda_max": 0.3},
    {"rho_every": 3, "mu": 0.0, "border": "background", "kernel_size": (1, 3)},
]


def slope(name: str, z: float, rho: float, lam: float) -> float:
    """P'(z), as the penalties are printed."""
    if name == "phr":
        return max(lam + rho * z, 0.0)
    if z < 0:
        return lam / (1 - rho * z) ** 2
    return lam + 2 * lam * rho * z + (rho**2 * z**2 / 2 if name == "p2" else 0.0)


def window(labels: list[list[int]], y: int, x: int, option: CRaC) -> list[int]:
    """The labels around a voxel that are not ignored."""
    (height, width), size = (len(labels), len(labels[0])), option.kernel_size
    ry, rx = (n // 2 for n in ((size, size) if isinstance(size, int) else size))
    seen = []
    for j in range(y - ry, y + ry + 1):
        for i in range(x - rx, x + rx + 1):
            inside = 0 <= j < height and 0 <= i < width
            near = labels[min(max(j, 0), height - 1)][min(max(i, 0), width - 1)]
            seen.append(near if inside or option.border == "replicate" else 0)
    return [label for label in seen if label >= 0]


def epochs_by_loop(loss: CRaC, logits: torch.Tensor) -> list[tuple[list[float], list[float]]]:
    """lambda and rho (class by class, inner before outer) after every epoch."""
    rule, labels = loss._rule, LABELS[0].tolist()
    cells = [(k, r) for k in range(CLASSES) for r in range(2)]
    lam, rho = dict.fromkeys(cells, rule.lambda_init), dict.fromkeys(cells, rule.rho)
    before, after = dict.fromkeys(cells, math.nan), []
    for epoch, factor in enumerate(FACTORS):
        slopes, distances, number = dict.fromkeys(cells, 0.0), dict.fromkeys(cells, 0.0), [0, 0]
        for y, row in enumerate(labels):
            for x, label in enumerate(row):
                if label < 0:
                    continue
                seen = window(labels, y, x, loss)
                r = 0 if len(set(seen)) == 1 else 1
                number[r] += 1
                for k in range(CLASSES):
                    tau = (loss.inner_scale, loss.outer_scale)[r] * seen.count(k) / len(seen)
                    residual = tau - factor * float(logits[0, k, y, x])
                    z = (abs(residual) if loss.residual == "absolute" else residual) - loss.tolerance
                    p = slope(loss.penalty, z, rho[k, r], lam[k, r])
                    slopes[k, r] += min(max(p, rule.lambda_init), rule.lambda_max)
                    distances[k, r] += abs(residual) - loss.tolerance
        for k, r in cells:
            divisor = sum(number) if rule.average == "all" else number[r]
            other = divisor - number[r]
            mean = distances[k, r] / divisor
            grown = mean > rule.mu * max(before[k, r], 0.0)  # not in the first epoch: no number is above NaN
            if (epoch + 1) % rule.rho_every == 0 and epoch > 0 and grown:
                grown_rho = min(rho[k, r] * rule.gamma, rule.rho_max)
            else:
                grown_rho = rho[k, r]
            lam[k, r] = min(max((slopes[k, r] + other * lam[k, r]) / divisor, rule.lambda_init), rule.lambda_max)
            rho[k, r], before[k, r] = grown_rho, mean
        after.append((list(lam.values()), list(rho.values())))
    return after


@pytest.mark.filterwarnings("ignore:crac")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_epoch_gives_the_lambda_and_rho_of_a_loop_over_voxels(options):
    logits = torch.randn(1, CLASSES, *LABELS.shape[1:], generator=torch.Generator().manual_seed(3)).double() * 2
    loss = CRaC(**{"schedule": "released", **options}).setup(CLASSES)
    for factor, (lambdas, rhos) in zip(FACTORS, epochs_by_loop(loss, logits), strict=True):
        loss.observe(logits * factor, LABELS)
        loss.end_epoch()
        assert loss.lambdas.flatten().tolist() == pytest.approx(lambdas, rel=1e-5)
        assert loss.rhos.flatten().tolist() == pytest.approx(rhos, rel=1e-5)


@pytest.mark.filterwarnings("ignore:crac")
@pytest.mark.parametrize("residual", ["absolute", "signed"])
def test_a_met_constraint_leaves_rho_alone_and_a_broken_one_does_not(residual):
    """Within the tolerance everywhere: |c tau - l| - 1 < 0. Eq. 9 looks at the distance, whatever the sign."""
    for logit, grows in ((0.5, False), (-3.0, True), (4.0, True)):
        loss = CRaC(schedule="released", residual=residual, tolerance=1.0, inner_scale=1.0, rho_every=1, mu=0.9).setup(
            CLASSES
        )
        for _ in range(2):
            loss.observe(torch.full((1, CLASSES, *LABELS.shape[1:]), logit), LABELS)
            loss.end_epoch()
        assert bool((loss.rhos > 0.11).all()) is grows
        assert bool((loss.rhos == 0.1).all()) is not grows


@pytest.mark.filterwarnings("ignore:crac")
def test_a_constraint_that_is_met_exactly_leaves_rho_alone():
    """One class everywhere: tau is 1 for it and 0 for the others; |1 - 2| - 1 = |0 - 1| - 1 = 0 in two epochs."""
    loss = CRaC(schedule="released", tolerance=1.0, inner_scale=1.0, rho_every=1).setup(CLASSES)
    logits = torch.ones(1, CLASSES, 4, 4)
    logits[:, 0] = 2.0
    for _ in range(2):
        loss.observe(logits, torch.zeros(1, 4, 4, dtype=torch.int64))
        loss.end_epoch()
    assert loss.rhos.unique().tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("average", ["all", "region"])
def test_an_epoch_without_a_region_leaves_its_multipliers_and_what_they_are_compared_with(average):
    """The outer region is seen in epochs 1 and 3 only; its constraint shrinks from 4 to 2, so its rho stays."""
    rule = Rule(lambda_init=0.5, lambda_max=9.0, rho=1.0, rho_max=8.0, gamma=2.0, mu=0.9, rho_every=1, average=average)
    multipliers, lambdas = Multipliers((1,), rule), []
    for size, outer in ((4.0, [1, 1, 0, 0]), (4.0, [0, 0, 0, 0]), (2.0, [1, 1, 0, 0])):
        where = torch.tensor(outer).view(1, 1, 4).bool()
        multipliers.observe(torch.full((1, 1, 4), size), torch.full((1, 1, 4), 2.0), (~where, where))
        multipliers.update()
        lambdas.append(multipliers.lambdas[0, 1].item())
    assert lambdas[1] == lambdas[0] > 0.5
    assert multipliers.rhos.tolist() == [[2.0, 1.0]]  # the inner one's did not shrink in epoch 2


def test_a_class_that_was_absent_was_never_had_and_cannot_be_lost():
    """Epoch 1: class 1 is neither true nor predicted. Epoch 2: it is true and missed; nothing of it was lost."""
    lost, grew = LostClasses((2,)), torch.tensor([True, True])
    background = torch.tensor([[[[1.0, 1.0]], [[0.0, 0.0]]]])
    for labels in ([[[0, 0]]], [[[0, 1]]]):
        lost.observe(background, Target.read(torch.tensor(labels), 2, -100))
        assert lost.end_epoch(grew) == {}
    assert lost.best.tolist() == pytest.approx([1.0, 0.0])
    labels = torch.tensor([[[0, 1]]])
    lost.observe(labels[:, None].eq(torch.tensor([0, 1]).view(1, 2, 1, 1)).float(), Target.read(labels, 2, -100))
    lost.end_epoch(grew)
    assert lost.best.tolist() == [1.0, 1.0]
    lost.observe(background, Target.read(torch.zeros_like(labels), 2, -100))
    assert lost.end_epoch(grew) == {}  # absent once more
    lost.observe(background, Target.read(labels, 2, -100))
    assert lost.end_epoch(grew) == {1: 0.0}  # there, and missed
    lost.best.fill_(0.1)
    lost.observe(background, Target.read(labels, 2, -100))
    assert lost.end_epoch(grew) == {}  # of a DSC of 0.1 or less there is nothing to lose


def test_an_epoch_that_observed_nothing_is_refused_and_changes_nothing():
    loss = CRaC(lambda_init=0.25, rho=0.5).setup(CLASSES)
    with pytest.raises(BadInput, match=r"call observe\(\) before end_epoch\(\)"):
        loss.end_epoch()
    assert loss.lambdas.unique().tolist() == [0.25]
    assert loss.rhos.unique().tolist() == [0.5]


@pytest.mark.parametrize("make", [CRaC, CALS])
def test_a_validation_voxel_that_is_no_number_does_not_reset_multipliers(make):
    loss = make(value_check="never").setup(CLASSES)
    logits = torch.zeros(1, CLASSES, 4, 4)
    logits[0, 0, 0, 0] = torch.nan
    with pytest.raises(BadInput, match="validation logits hold NaN or infinite values"):
        loss.observe(logits, torch.zeros(1, 4, 4, dtype=torch.long))
