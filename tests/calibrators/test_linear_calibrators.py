"""Vector scaling and Dirichlet calibration: against scipy with everything in memory, and their regularisation."""

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize

from calibseg.calibrators import Dirichlet, Temperature, Vector
from calibseg.calibrators.solvers import logistic
from calibseg.calibrators.solvers.log_scores import LogScores
from calibseg.calibrators.solvers.voxels import Targets, VoxelStream
from calibseg.core.types import BadInput, Prediction

K = 3


def log_softmax(z):
    z = z - z.max(0)
    return z - np.log(np.exp(z).sum(0))


def example(seed=0, matrix=None, bias=None, size=(3, 16, 20)):
    """Log-probabilities, and labels drawn from softmax(W log s + v)."""
    rng = np.random.default_rng(seed)
    x = log_softmax(rng.normal(size=(K, np.prod(size))) * 2)
    matrix = np.diag([0.5, 0.8, 0.6]) if matrix is None else matrix
    bias = np.array([0.4, -0.2, 0.0]) if bias is None else bias
    labels = (matrix @ x + bias[:, None] + rng.gumbel(size=x.shape)).argmax(0)
    name = f"case {seed}"
    return Prediction(
        name, name, x.reshape(K, *size), "log_probabilities", (1.0, 1.0, 1.0), labels=labels.reshape(size)
    )


def own_nll(calibrator, cases):
    total, number = 0.0, 0
    for case in cases:
        p = calibrator.apply(LogScores(case.scores, case.kind).all(), None, slice(None))
        total -= np.log(np.take_along_axis(p, case.labels.reshape(1, -1), 0)).sum()
        number += case.labels.size
    return total / number


def everything(cases):
    x = np.concatenate([case.scores.reshape(K, -1) for case in cases], 1)
    return x, np.concatenate([case.labels.reshape(-1) for case in cases])


@pytest.mark.parametrize("ridge", [1.0, 300.0])
def test_vector_scaling_is_what_scipy_finds_with_everything_in_memory(ridge):
    cases = [example(seed) for seed in range(3)]
    x, y = everything(cases)

    def objective(theta):
        log_p = log_softmax(theta[:K, None] * x + theta[K:, None])
        away = theta - np.repeat([1.0, 0.0], K)
        return -log_p[y, np.arange(len(y))].sum() + ridge / 2 * (away**2).sum()

    best = minimize(objective, np.repeat([1.0, 0.0], K), method="BFGS", options={"gtol": 1e-3})
    calibrator = Vector(shrinkage=ridge).fit_predictions(cases)
    assert calibrator.scale == pytest.approx(best.x[:K], abs=1e-4)
    assert calibrator.offset == pytest.approx(best.x[K:], abs=1e-4)
    assert own_nll(calibrator, cases) == pytest.approx(calibrator.facts["nll_after"], abs=1e-12)


def test_dirichlet_is_what_scipy_finds_with_everything_in_memory():
    cases = [example(seed, np.array([[0.6, 0.1, 0.0], [0.0, 0.5, 0.2], [-0.1, 0.0, 0.7]])) for seed in range(3)]
    x, y = everything(cases)
    off, mu, ridge = 0.03, 0.02, 2.0

    def objective(theta):
        table = theta.reshape(K, K + 1)
        matrix, bias = table[:, :K], table[:, K]
        log_p = log_softmax(matrix @ x + bias[:, None])
        outside = (matrix**2).sum() - (np.diag(matrix) ** 2).sum()
        penalty = off * outside / (K * (K - 1)) + mu * (bias**2).sum() / K
        away = theta - np.eye(K, K + 1).reshape(-1)
        return -log_p[y, np.arange(len(y))].mean() + penalty + ridge / 2 * (away**2).sum() / len(y)

    best = minimize(objective, np.eye(K, K + 1).reshape(-1), method="BFGS", options={"gtol": 1e-8})
    calibrator = Dirichlet(off_diagonal=off, offset=mu, shrinkage=ridge).fit_predictions(cases)
    assert calibrator.matrix == pytest.approx(best.x.reshape(K, K + 1)[:, :K], abs=1e-4)
    assert calibrator.bias == pytest.approx(best.x.reshape(K, K + 1)[:, K], abs=1e-4)


def test_what_made_the_labels_is_found_again():
    matrix, bias = np.array([[0.6, 0.0, 0.0], [0.0, 0.5, 0.2], [-0.1, 0.0, 0.7]]), np.array([0.3, 0.0, -0.3])
    cases = [example(seed, matrix, bias, (8, 50, 50)) for seed in range(2)]
    calibrator = Dirichlet(off_diagonal=0.0, offset=0.0).fit_predictions(cases)
    x, _ = everything(cases)
    truth = np.exp(log_softmax(matrix @ x + bias[:, None]))
    found = np.concatenate([calibrator.transform(case.scores).reshape(K, -1) for case in cases], 1)
    assert np.abs(found - truth).mean() < 0.01
    assert np.abs(found - np.exp(x)).mean() > 0.1


def test_a_strong_penalty_leaves_what_it_does_not_touch():
    cases = [example(seed) for seed in range(2)]
    rigid = Dirichlet(off_diagonal=1e6, offset=1e6).fit_predictions(cases)
    assert rigid.matrix - np.diag(np.diag(rigid.matrix)) == pytest.approx(np.zeros((K, K)), abs=1e-4)
    assert rigid.bias == pytest.approx(np.zeros(K), abs=1e-4)
    assert np.diag(rigid.matrix).min() < 0.5
    still = Vector(shrinkage=1e9).fit_predictions(cases)
    assert still.scale == pytest.approx(np.ones(K), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_more_freedom_fits_its_own_voxels_at_least_as_well(seed):
    cases = [example(10 * seed + n) for n in range(2)]
    x, y = everything(cases)
    before = -x[y, np.arange(len(y))].mean()
    vector, dirichlet = Vector().fit_predictions(cases), Dirichlet(off_diagonal=0.0, offset=0.0).fit_predictions(cases)
    for calibrator in (vector, dirichlet, Dirichlet().fit_predictions(cases)):
        assert own_nll(calibrator, cases) <= before + 1e-12
        assert calibrator.facts["nll_before"] == pytest.approx(before, abs=1e-12)
    slack = 1 / len(y)  # a voxel or so of shrinkage
    assert own_nll(dirichlet, cases) <= own_nll(vector, cases) + slack
    assert own_nll(vector, cases) <= own_nll(Temperature().fit_predictions(cases), cases) + slack


def test_gradient_and_curvature_are_exact():
    case = example(0, size=(2, 6, 7))
    stream = VoxelStream([case], sample=15)  # weights included
    with logistic.Scratch(lambda: logistic._kept(stream)) as kept:
        newton = logistic._Newton(kept, np.ones((K, K + 1), bool), np.full((K, K + 1), 0.5), 84.0)
        theta = newton.theta0 + np.random.default_rng(0).normal(size=12) * 0.2
        assert check_grad(lambda t: newton.at(t)[0], lambda t: newton.at(t)[2], theta) < 1e-4
        step = 1e-5 * np.random.default_rng(1).normal(size=12)
        slopes = newton.at(theta + step)[2] - newton.at(theta - step)[2]
        assert newton.at(theta)[3] @ (2 * step) == pytest.approx(slopes, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("method", [Vector, Dirichlet])
def test_scores_without_an_error_stay_finite(method):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(K, 2, 20, 20)) * 3
    case = Prediction("a", "a", scores, "logits", (1.0, 1.0, 1.0), labels=scores.argmax(0))
    p = method().fit_predictions([case]).transform(scores)
    assert np.isfinite(p).all()
    assert (p.argmax(0) == case.labels).mean() > 0.99


@pytest.mark.parametrize("method", [Vector, Dirichlet])
def test_a_class_that_never_occurs_keeps_the_identity(method):
    case = example()
    absent = Prediction("a", "a", case.scores, case.kind, case.spacing_mm, labels=np.minimum(case.labels, 1))
    calibrator = method().fit_predictions([absent])
    assert calibrator.facts["fallbacks"] == ["class 2 never occurs in the labels: it keeps the identity"]
    matrix = np.diag(calibrator.scale) if method is Vector else calibrator.matrix
    assert matrix[2].tolist() == [0, 0, 1]
    assert matrix[:, 2].tolist() == [0, 0, 1]
    assert matrix[0, 0] != 1


def test_options_out_of_range_are_refused():
    with pytest.raises(BadInput, match="off_diagonal must be at least 0, not -1"):
        Dirichlet(off_diagonal=-1)
    with pytest.raises(BadInput, match="shrinkage must be greater than 0, not 0"):
        Vector(shrinkage=0)


def test_shares_in_float16_are_read_as_shares_of_one():
    shares = np.full((3, 1, 2, 2), 1 / 3, np.float16)
    assert shares.sum(0, dtype=np.float64) == pytest.approx(0.99976, abs=1e-5)
    y, keep = Targets(shares, LogScores(np.zeros(shares.shape, np.float32), "logits")).read(slice(0, 4))
    assert y.sum(0) == pytest.approx(1, abs=1e-7)
    assert keep is not None
    assert keep.all()
