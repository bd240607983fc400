"""The demonstration: a network learns from single opinions about ambiguous borders; how sure should it be?

Images show an organ and a lesion whose borders raters would draw differently: the border of one drawing is the
nominal one, moved by a Gaussian offset. The probability p of each class at each pixel is therefore known exactly, and
confidence can be compared with the truth itself.
"""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from calibseg import registry
from calibseg.types import BadInput

if TYPE_CHECKING:
    from rich.console import Console

SIZE, CLASSES, BINS = 64, 3, 15


class Scenes(NamedTuple):
    """Images [n 1 y x], one drawing each [n y x], and the true class probabilities [n k y x]."""

    image: Tensor
    labels: Tensor
    true_p: Tensor


def run(folder: Path, losses: list[str], steps: int, seed: int, console: "Console") -> None:
    """Fit one network per loss, print what matters, and write demo.png and demo.csv."""
    from rich.progress import Progress

    built = {name: registry.build("losses", name).setup(CLASSES) for name in losses}
    if twice := [name for name, loss in built.items() if loss.views == 2]:
        raise BadInput(
            f"the demonstration shows one view of each image, and {', '.join(twice)} needs two: choose another"
        )
    generator = torch.Generator().manual_seed(seed)
    train, validation, test = (make_scenes(n, generator) for n in (6, 6, 64))
    predictions = {}
    with Progress(console=console, transient=True) as progress:
        for name, loss in built.items():
            task = progress.add_task(f"fitting under {Path(name).stem}", total=steps)
            network = fit(loss, train, validation, steps, seed, lambda task=task: progress.advance(task))
            with torch.no_grad():
                predictions[name] = torch.softmax(network(test.image), 1)
    rows = [{"loss": Path(name).stem, **measure(s, test.true_p)} for name, s in predictions.items()]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "demo.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    draw(test, predictions, rows, folder / "demo.png")
    _say(rows, console)
    console.print(f"\npicture: {folder / 'demo.png'}\nnumbers: {folder / 'demo.csv'}", soft_wrap=True)


def make_scenes(n: int, generator: torch.Generator) -> Scenes:
    """Organ and lesion as discs: at distance d inside the nominal border, P(inside) = Phi(d / spread)."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand((n, 1, 1), generator=generator)

    axis = torch.arange(SIZE) - SIZE / 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    cy, cx, radius = uniform(-8, 8), uniform(-8, 8), uniform(16, 22)
    organ = radius - ((y - cy) ** 2 + (x - cx) ** 2).sqrt()
    lesion = radius / 2.5 - ((y - cy - uniform(-4, 4)) ** 2 + (x - cx - uniform(-4, 4)) ** 2).sqrt()
    spread = 1.5
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    in_organ, in_lesion = phi(organ / spread), phi(lesion / spread)
    true_p = torch.stack([1 - in_organ, in_organ * (1 - in_lesion), in_organ * in_lesion], 1)
    offsets = spread * torch.randn((2, n, 1, 1), generator=generator)
    drawn_organ = organ + offsets[0] > 0
    labels = drawn_organ.long() + (drawn_organ & (lesion + offsets[1] > 0)).long()
    clean = 0.2 + 0.4 * in_organ + 0.3 * in_lesion
    noise = 0.08 * torch.randn((n, SIZE, SIZE), generator=generator)
    return Scenes((clean + noise).unsqueeze(1), labels, true_p)


class _Network(nn.Module):
    """Two resolutions, a skip, 16 channels: enough to learn a few images by heart."""

    def __init__(self, width: int = 16):
        super().__init__()

        def block(inputs: int) -> nn.Sequential:
            layers = [
                nn.Conv2d(inputs, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(),
            ]
            return nn.Sequential(*layers)

        self.fine, self.coarse, self.joined = block(1), block(width), block(2 * width)
        self.down, self.up = nn.MaxPool2d(4), nn.Upsample(scale_factor=4, mode="bilinear")
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.fine(image)
        return self.head(self.joined(torch.cat([fine, self.up(self.coarse(self.down(fine)))], 1)))


def fit(loss, train: Scenes, validation: Scenes, steps: int, seed: int, advance) -> nn.Module:
    """A bare loop: the same few lines for every loss."""
    torch.manual_seed(seed)
    network = _Network()
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    order = torch.Generator().manual_seed(seed)
    for step in range(steps):
        batch = torch.randperm(len(train.image), generator=order)[:4]
        optimiser.zero_grad()
        loss(network(train.image[batch]), train.labels[batch]).backward()
        optimiser.step()
        if (step + 1) % 20 == 0 and "observe" in vars(type(loss)):
            with torch.no_grad():
                loss.observe(network(validation.image), validation.labels)
            loss.end_epoch()
        advance()
    return network.eval()


def reliability(s: Tensor, true_p: Tensor) -> np.ndarray:
    """Rows of (share of pixels, mean confidence, mean true probability of the predicted class) per confidence bin."""
    confidence, predicted = s.max(1)
    deserved = true_p.gather(1, predicted.unsqueeze(1)).squeeze(1)
    bins = (confidence.double().numpy() * BINS).clip(0, BINS - 1).astype(int).ravel()
    counts = np.bincount(bins, minlength=BINS)
    sums = [np.bincount(bins, values.double().numpy().ravel(), BINS) for values in (confidence, deserved)]
    with np.errstate(invalid="ignore"):
        return np.stack([counts / counts.sum(), *(total / counts for total in sums)], 1)


def measure(s: Tensor, true_p: Tensor) -> dict[str, float]:
    """How far confidence is from what is deserved, against the true probabilities."""
    rows = reliability(s, true_p)
    rows = rows[rows[:, 0] > 0]
    gap = rows[:, 1] - rows[:, 2]
    unsure = true_p.amax(1) < 0.99
    return {
        "ece": float((rows[:, 0] * np.abs(gap)).sum()),
        "overconfidence": float((rows[:, 0] * gap).sum()),
        "mean_error_of_p": float((s - true_p).abs().mean()),
        "border_confidence": float(s.amax(1)[unsure].mean()),
        "border_deserved": float(true_p.gather(1, s.argmax(1, keepdim=True)).squeeze(1)[unsure].mean()),
    }


def draw(test: Scenes, predictions: dict[str, Tensor], rows: list[dict], path: Path) -> None:
    """One row per loss: image, true confidence, the network's confidence, its excess, and the reliability diagram."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 2.7 * len(predictions) + 0.3), layout="constrained")
    axes = figure.subplots(len(predictions), 5, squeeze=False)
    for line, s, row in zip(axes, predictions.values(), rows, strict=True):
        confidence, predicted = s[0].max(0)
        deserved = test.true_p[0].gather(0, predicted.unsqueeze(0))[0]
        shown = [
            (test.image[0, 0], "image", "gray", (0, 1)),
            (test.true_p[0].amax(0), "how sure one can be", "viridis", (0.4, 1)),
            (confidence, f"how sure {row['loss']} is", "viridis", (0.4, 1)),
            (confidence - deserved, "too sure (red), not sure enough (blue)", "RdBu_r", (-0.5, 0.5)),
        ]
        for axis, (values, title, colours, limits) in zip(line, shown, strict=False):
            axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1])
            axis.set_title(title, fontsize=9)
            axis.set_axis_off()
        table = reliability(s, test.true_p)
        line[4].plot([0.3, 1], [0.3, 1], color="gray", linestyle=":")
        line[4].plot(table[:, 1], table[:, 2], marker="o", markersize=3)
        line[4].set_title(f"{row['loss']}: ECE {row['ece']:.3f}", fontsize=9)
        line[4].set_xlabel("confidence", fontsize=8)
        line[4].set_ylabel("true probability", fontsize=8)
    figure.savefig(path, dpi=110)


def _say(rows: list[dict], console: "Console") -> None:
    from rich.table import Table

    table = Table("loss", "ECE", "too sure by", "mean |s - p|", "sure at borders", "deserved there", box=None)
    for row in rows:
        table.add_row(row["loss"], *(f"{value:.3f}" for value in list(row.values())[1:]))
    console.print(table)
    best = min(rows, key=lambda row: row["ece"])
    console.print(
        f"\n64 unseen images, true probabilities known: [bold]{best['loss']}[/] is nearest to the truth (ECE)."
    )
