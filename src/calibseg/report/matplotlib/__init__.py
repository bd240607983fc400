"""Every figure by its name: what it shows, what it is made from, and how it is drawn.

    from calibseg.report.matplotlib import Request, plot, save
    save(plot("reliability", Request(("runs/ce-s0", "runs/nacl-s0"), voxels="all")), "reliability.pdf")

The data come from figure_data/, the drawing from the files beside this one; here the two are put together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from matplotlib.figure import Figure

from calibseg.analysis import failure_detection, ranking
from calibseg.analysis.columns import Frame
from calibseg.analysis.headline import PAPER_METRICS, VOXEL_RULES, default_metrics
from calibseg.analysis.run_names import named_runs, need_runs
from calibseg.analysis.sources import Source, read_source
from calibseg.analysis.table import ScoreTable
from calibseg.core import registry
from calibseg.core.types import BadInput, VoxelRule
from calibseg.io.stored_logits import logits_files
from calibseg.report.figure_data import penalties as data_penalties
from calibseg.report.figure_data import ranks as data_ranks
from calibseg.report.figure_data import runs as data_runs
from calibseg.report.figure_data import scores as data_scores
from calibseg.report.figure_data import slices as data_slices
from calibseg.report.figure_options import FigureOptions
from calibseg.report.matplotlib import radar as plot_radar
from calibseg.report.matplotlib import ranks as plot_ranks
from calibseg.report.matplotlib import runs as plot_runs
from calibseg.report.matplotlib import scores as plot_scores
from calibseg.report.matplotlib import slices as plot_slices
from calibseg.report.matplotlib.style import format_of, save
from calibseg.runs.folders import RunFolder

__all__ = ["KINDS", "Kind", "Request", "format_of", "plot", "save"]

HEAT: tuple[data_ranks.Heat, ...] = ("sum-rank", "mean case-rank")


@dataclass(frozen=True)
class Request(FigureOptions):
    """What a figure is asked to show, and of what.

    sources: score tables, run folders or benchmark folders
    named: the same, under a name of one's own
    """

    sources: tuple[Path | str, ...] = ()
    named: Mapping[str, Path | str] = field(default_factory=dict)

    def scores(self) -> Source:
        """The score tables, merged."""
        return read_source(self.sources, self.named, self.subset)

    def table(self) -> ScoreTable:
        """The scores on images as they are."""
        return data_scores.unshifted(self.scores().table)

    def means(self, metrics: Sequence[str]) -> Frame:
        """Of the metrics asked for, else of these, where the tables have them."""
        table = self.table()
        return data_scores.means(table, self.metrics or default_metrics(table.rows, metrics))

    def ranked(self) -> ranking.Ranked:
        return ranking.rank(self.table(), self.metrics or None)[0]

    def two(self, otherwise: str) -> tuple[str, str]:
        """The two metrics asked for, else DSC and ECE; `otherwise` says what a figure of two shows."""
        first, *more = self.metrics or ("dsc", "ece")
        if len(more) != 1 or more[0] == first:
            raise BadInput(f"{otherwise}: not {', '.join(self.metrics)}")
        return first, more[0]

    def runs(self) -> dict[str, Path]:
        """The run folders by what to call them."""
        if not (self.sources or self.named):
            raise BadInput("no run is given: name a run folder or a benchmark folder")
        named = named_runs([run for source in self.sources for run in need_runs(Path(source))])
        return named | {name: run for name, source in self.named.items() for run in need_runs(Path(source))}


class Kind(NamedTuple):
    """A figure: what it shows, what it needs, how it is made."""

    summary: str
    needs: str
    draw: Callable[[Request], Figure]


def plot(kind: str, request: Request) -> Figure:
    """Draw a figure."""
    if kind not in KINDS:
        raise BadInput(registry.unknown("figure", kind, list(KINDS)))
    if request.case is not None and kind not in ("slices", "reliability"):
        raise BadInput(f"--case is for slices and reliability: {kind} shows all cases")
    return KINDS[kind].draw(request)


def _reliability(asked: Request) -> Figure:
    bins = data_scores.unshifted_rows(asked.scores().need_bins())
    return plot_scores.reliability(data_scores.reliability(bins, asked.voxels, asked.of, case=asked.case), asked.voxels)


def _ranks(asked: Request) -> Figure:
    ranked = asked.ranked()
    heats = {kind: data_ranks.rank_heat(ranked, kind) for kind in HEAT}
    return plot_ranks.ranks({kind: heat.loc[heats[HEAT[0]].index] for kind, heat in heats.items()})  # one order


def _critical_difference(asked: Request) -> Figure:
    ranked = asked.ranked()
    diagrams = [data_ranks.critical_difference(ranked, metric) for metric in ranked.data.metrics]
    return plot_ranks.critical_difference(diagrams)


def _risk_coverage(asked: Request) -> Figure:
    wanted = asked.metrics or (failure_detection.CONFIDENCE, failure_detection.QUALITY)
    if len(wanted) != 2:
        raise BadInput(f"risk-coverage shows a confidence and a quality, like {', '.join(wanted[:1])},dsc")
    return plot_scores.risk_coverage(failure_detection.failure_detection(asked.table(), *wanted), *wanted)


def _sensitivity(asked: Request) -> Figure:
    if not asked.option:
        raise BadInput("say which option was varied, as in --option loss.margin")
    of = list(asked.runs().values())
    curves = data_runs.sensitivity(of, asked.option, asked.metrics or ("dsc", "ece"), asked.subset or "test")
    return plot_runs.sensitivity(curves, asked.option)


def _training(asked: Request) -> Figure:
    wanted = asked.metrics or ("train_loss", "val_dsc", "val_nll", f"val_ece_{asked.voxels}")
    return plot_runs.training(data_runs.training_curves(asked.runs(), wanted))


def _logits(asked: Request) -> Figure:
    means = {name: data_runs.logit_means(run, asked.subset or "test") for name, run in asked.runs().items()}
    return plot_runs.logits(means, asked.show)


def _slices(asked: Request) -> Figure:
    known = [rule for rule in VOXEL_RULES if rule != "boundary"]
    if asked.voxels not in known:
        raise BadInput(registry.unknown("voxel rule of a case", asked.voxels, known))
    of, subset = asked.runs(), asked.subset or "test"
    case = asked.case or logits_files(RunFolder(next(iter(of.values()))).logits / subset)[0].stem
    views = [data_slices.open_view(run, case, subset, name, asked.work) for name, run in of.items()]
    return plot_slices.slices(views, asked.index, voxels=cast(VoxelRule, asked.voxels))


KINDS: dict[str, Kind] = {
    "reliability": Kind("accuracy against confidence, with the spread of cases", "scores and their bins", _reliability),
    "signed": Kind(
        "over- and under-confidence, which add up to the ECE", "scores",
        lambda asked: plot_scores.signed(data_scores.confidence_balance(asked.table(), asked.voxels), asked.voxels),
    ),
    "distance": Kind(
        "ECE over signed distance to the boundary", "scores with --voxels ...,boundary",
        lambda asked: plot_scores.distance(data_scores.by_distance(asked.table())),
    ),
    "means": Kind(
        "every metric's mean with its interval", "scores",
        lambda asked: plot_scores.means(asked.means(PAPER_METRICS)),
    ),
    "ranks": Kind("heat maps of sum-rank and mean case-rank", "scores", _ranks),
    "critical-difference": Kind("which methods cannot be told apart", "scores of 2 methods", _critical_difference),
    "radar": Kind(
        "every metric from the worst method to the best, each on its own scale", "scores",
        lambda asked: plot_radar.radar(data_scores.radar(asked.means((*PAPER_METRICS, "nll", "brier")))),
    ),
    "compromise": Kind(
        "DSC against ECE around the datasets, a panel per method", "scores",
        lambda asked: plot_radar.compromise(asked.means(asked.two("compromise shows two metrics, like dsc,ece@truth"))),
    ),
    "networks": Kind(
        "methods beside each other on every network", "scores",
        lambda asked: plot_scores.networks(asked.means(("dsc", "ece"))),
    ),
    "stacked": Kind(
        "means over datasets, stacked by dataset", "scores",
        lambda asked: plot_scores.stacked(data_scores.stacked(asked.means(("dsc", "ece")))),
    ),
    "noise": Kind(
        "DSC against ECE as noise grows", "scores of predict --noise",
        lambda asked: plot_scores.noise(
            data_scores.noise_shift(
                asked.scores().table, *asked.two("noise shows one metric against another, like dsc,ece")
            )
        ),
    ),
    "risk-coverage": Kind(
        "risk of the cases that a confidence accepts", "scores; --metrics CONFIDENCE,QUALITY", _risk_coverage
    ),
    "sensitivity": Kind("metrics against an option of the recipe", "scored runs, --option", _sensitivity),
    "training": Kind("losses and validation over epochs", "runs", _training),
    "multipliers": Kind(
        "lambda and rho over epochs", "runs of crac",
        lambda asked: plot_runs.multipliers(data_runs.multipliers(asked.runs())),
    ),
    "interior": Kind(
        "confidence and accuracy inside organs over epochs", "runs of crac",
        lambda asked: plot_runs.interior(data_runs.interior_confidence(asked.runs())),
    ),
    "logits": Kind("mean logits per true class", "predicted runs", _logits),
    "slices": Kind("a slice: prediction, confidence, errors; the case's reliability", "predicted runs", _slices),
    "penalties": Kind(
        "linear and margin penalty and their derivatives", "nothing",
        lambda _: plot_runs.penalties(data_penalties.penalty_curves()),
    ),
    "lagrangians": Kind(
        "PHR, P2 and P3 and their derivatives", "nothing",
        lambda _: plot_runs.penalties(data_penalties.penalty_curves(("phr", "p2", "p3"), -2.0, 2.0)),
    ),
}  # fmt: skip
