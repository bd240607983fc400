"""Golden values and the identities that the papers state, in exact form."""

import math

import pytest
import torch
import torch.nn.functional as F

from calibseg.core.labels import Target
from calibseg.losses import CE, ECP, LS, NACL, SVLS, CRaC, Focal, MbLS

# Computed independently in float64: 3 classes, one 4 x 4 image, l[k, i, j] = (((3 i + 5 j + 7 k) mod 11) - 5) / 2.
LABELS = torch.tensor([[[1, 1, 1, 1], [1, 1, 2, 0], [0, 0, 2, 2], [0, 0, 0, 2]]])
_k, _i, _j = torch.meshgrid(torch.arange(3), torch.arange(4), torch.arange(4), indexing="ij")
LOGITS = ((3 * _i + 5 * _j + 7 * _k).remainder(11).double() - 5).div(2).unsqueeze(0)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (CE(), 1.985171102),
        (LS(0.1), 1.987254435),
        (Focal(3.0), 1.591823264),
        (MbLS(1.0, 0.1), 2.101837769),
        (MbLS(1.0, 0.3), 2.335171102),  # the paper's sum over classes: weight * K
        (MbLS(1.0, 0.1, "l2_released"), 2.281004435),
        (MbLS(1.0, 0.1, "l2"), 2.247671102),
        (SVLS(sigma=1.0), 2.011917401),
        (NACL(0.1, border="background"), 2.126027583),  # the authors' zero-padded labels
        (NACL(0.3, border="background"), 2.407740546),  # the paper's sum over classes
        (NACL(0.1), 2.125796102),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else str(value),
)
def test_golden_values(loss, expected):
    assert loss(LOGITS, LABELS).item() == pytest.approx(expected, abs=1e-9)


def test_label_smoothing_is_cross_entropy_and_divergence_from_uniform(batch):
    """LS = (1 - a) CE + a (KL(u || s) + log K): MbLS paper, Eq. 4, with its constants."""
    logits, labels = batch(5)
    a, k = 0.3, 5
    divergence = -torch.log_softmax(logits, 1).mean(1) - math.log(k)
    expected = (1 - a) * CE()(logits, labels) + a * (divergence.mean() + math.log(k))
    torch.testing.assert_close(LS(a)(logits, labels), expected)


def test_proposition_1_brackets_the_linear_penalty(batch):
    """KL(u || s) <= mean_k (max_j l_j - l_k) <= KL(u || s) + log K at every voxel, within rounding."""
    logits, _ = batch(6, seed=3)
    divergence = -torch.log_softmax(logits, 1).mean(1) - math.log(6)
    distance = (logits.amax(1, keepdim=True) - logits).mean(1)
    assert (divergence <= distance + 1e-12).all()
    assert (distance <= divergence + math.log(6) + 1e-12).all()


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0])
def test_focal_loss_bounds_cross_entropy_minus_entropy(gamma, batch):
    """L_FL >= CE - gamma H(s): MbLS paper, Eq. 5."""
    logits, labels = batch(4, seed=5)
    log_s = torch.log_softmax(logits, 1)
    entropy = -(log_s.exp() * log_s).sum(1).mean()
    assert Focal(gamma)(logits, labels) >= CE()(logits, labels) - gamma * entropy


def test_focal_loss_at_gamma_zero_is_cross_entropy(batch):
    logits, labels = batch(4)
    torch.testing.assert_close(Focal(0.0)(logits, labels), CE()(logits, labels))


def test_svls_is_half_cross_entropy_and_half_the_neighbours_constraint(batch):
    """SVLS = (CE + KL(tau || s) + H(tau)) / 2 at kernel size 3: NACL paper, Eq. 5, with its constants."""
    logits, labels = batch(3)
    sigma = 1.5
    near, far = math.exp(-1 / (2 * sigma**2)), math.exp(-2 / (2 * sigma**2))
    kernel = torch.tensor([[far, near, far], [near, 0, near], [far, near, far]], dtype=torch.float64)
    one_hot = F.one_hot(labels, 3).movedim(-1, 1).double()
    padded = F.pad(one_hot, (1, 1, 1, 1), mode="replicate")
    tau = F.conv2d(padded, (kernel / kernel.sum()).expand(3, 1, 3, 3), groups=3)
    log_s = torch.log_softmax(logits, 1)
    entropy = -torch.xlogy(tau, tau).sum(1)
    divergence = (torch.xlogy(tau, tau) - tau * log_s).sum(1)
    expected = (CE()(logits, labels) + (divergence + entropy).mean()) / 2
    torch.testing.assert_close(SVLS(sigma)(logits, labels), expected)


@pytest.mark.parametrize(
    ("sigma", "near", "far"), [(0.5, 0.1101, 0.0149), (1.0, 0.0778, 0.0472), (2.0, 0.0664, 0.0586)]
)
def test_the_svls_kernel_has_half_its_weight_at_the_centre(sigma, near, far):
    """Weights printed by the authors' 2-D code for 3 x 3."""
    labels = torch.zeros(1, 5, 5, dtype=torch.long)
    labels[0, 2, 2] = 1
    tau = SVLS(sigma).prior.tau(Target.read(labels, 2, -100), torch.float64).dense()[0, 1]
    assert tau[2, 2].item() == pytest.approx(0.5)
    assert tau[2, 1].item() == pytest.approx(near, abs=5e-5)
    assert tau[1, 1].item() == pytest.approx(far, abs=5e-5)


def test_the_svls_centre_stays_at_one_half_in_larger_windows():
    """The authors' code gives 0.529 (sigma 1) at kernel size 5 because it takes cell [1, 1] for the centre."""
    labels = torch.zeros(1, 9, 9, dtype=torch.long)
    labels[0, 4, 4] = 1
    tau = SVLS(1.0, kernel_size=5).prior.tau(Target.read(labels, 2, -100), torch.float64).dense()
    assert tau[0, 1, 4, 4].item() == pytest.approx(0.5)
    assert tau[0, 1].sum().item() == pytest.approx(1.0)


def test_mbls_at_margin_zero_is_the_linear_penalty(batch):
    logits, labels = batch(4)
    linear = (logits.amax(1, keepdim=True) - logits).mean()
    torch.testing.assert_close(MbLS(0.0, 0.2).terms(logits, labels)["margin"], 0.2 * linear)


def test_mbls_leaves_distances_within_the_margin_alone(batch):
    logits, labels = batch(4)
    logits = (logits / 100).requires_grad_()
    MbLS(5.0, 10.0).terms(logits, labels)["margin"].backward()
    assert torch.count_nonzero(logits.grad) == 0


def test_ecp_penalty_is_the_entropy_over_the_number_of_classes(batch):
    logits, labels = batch(4)
    entropy = torch.distributions.Categorical(logits=logits.movedim(1, -1)).entropy().mean()
    torch.testing.assert_close(ECP(0.3).terms(logits, labels)["entropy"], -0.3 * entropy / 4)


def test_nacl_is_at_rest_where_logits_equal_the_class_proportions(batch):
    _, labels = batch(3)
    for space, scale in (("logits", 2.0), ("softmax", 1.0)):
        loss = NACL(space=space, prior_scale=scale)
        tau = loss.prior.tau(Target.read(labels, 3, -100), torch.float64).dense()
        logits = scale * tau if space == "logits" else tau.clamp(min=1e-300).log()
        assert loss.terms(logits, labels)["penalty"].item() == pytest.approx(0, abs=1e-12)


def test_crac_before_any_update_is_a_quadratic_penalty(batch):
    """lambda starts at 1e-6, so P = rho / 2 h^2 up to 1e-6 h, with margin 5 inside and 1 outside, over 2 K N."""
    logits, labels = batch(3)
    padded = F.pad(labels.unsqueeze(1).double(), (1, 1, 1, 1), mode="replicate")
    window = F.unfold(padded, 3).view(2, 9, *labels.shape[1:])
    tau = torch.stack([(window == k).double().mean(1) for k in range(3)], 1)
    outer = (window.amax(1) != window.amin(1)).unsqueeze(1)
    h = (torch.where(outer, tau, 5 * tau) - logits).abs()
    expected = (1e-6 * h + 0.05 * h.square()).mean() / 2
    torch.testing.assert_close(CRaC().setup(3).terms(logits, labels)["penalty"], expected)
