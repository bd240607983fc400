"""Small phantoms for decisions: an ellipsoid, and a network that sees it blurred, shifted and with noise."""

import numpy as np
from scipy.ndimage import gaussian_filter

SHAPE = (4, 14, 14)
SPACING = (2.0, 1.0, 1.0)


def phantom(seed, classes=3, shape=SHAPE):
    """Probabilities float32 [k z y x] and labels [z y x]."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*map(np.arange, shape), indexing="ij")
    centre, radius = np.array(shape) / 2 + rng.normal(0, 0.7, 3), rng.uniform(3.0, 5.0)
    distance = np.sqrt(4 * (z - centre[0]) ** 2 + (y - centre[1]) ** 2 + (x - centre[2]) ** 2)
    labels = np.where(distance < radius, np.where(y < centre[1], 1, min(2, classes - 1)), 0)
    seen = np.stack([gaussian_filter((labels == k).astype(float), 0.8) for k in range(classes)])
    seen = np.roll(seen, rng.integers(-1, 2), 2)
    logits = 6 * seen + gaussian_filter(rng.normal(0, 2.0, seen.shape), (0, 1, 1, 1))
    p = np.exp(logits - logits.max(0))
    return (p / p.sum(0)).astype(np.float32), labels


def phantoms(number, classes=3, first=0):
    """Lists of probabilities and labels."""
    p, labels = zip(*(phantom(first + seed, classes) for seed in range(number)), strict=True)
    return list(p), list(labels)
