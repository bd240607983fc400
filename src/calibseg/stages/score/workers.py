"""Many cases measured in worker processes that share a budget of threads, and kept as soon as they are finished.

What is finished lies in a folder under a hash of the files' contents, the rules and this program's source: a run that
was interrupted goes on where it stopped, and a changed file, rule or program is never mistaken for it. The outcome does
not depend on the number of workers, to the last bit.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from calibseg.core import files, registry
from calibseg.core.hashing import fingerprint
from calibseg.core.parallel import process_pool
from calibseg.core.types import BadInput, Progress
from calibseg.io.class_names import ClassNames
from calibseg.io.predictions import PredictionFiles
from calibseg.metrics.statistics.binning import CalibrationStatistics
from calibseg.metrics.statistics.binning.equal_mass import EqualMassStatistics
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.stages.score.case import CaseMeasurement, OfCase, Statistics, Value, measure
from calibseg.stages.score.channels import Channels
from calibseg.stages.score.options import ScoringOptions

WORTH_WORKERS = 64 << 20  # bytes of input: below, starting processes takes longer than measuring
KIND = "measured"


@dataclass(frozen=True)
class Outcome:
    """What became of the cases."""

    measured: dict[str, CaseMeasurement]  # by case
    pooled: Statistics | None  # None where no case could be used
    bad: list[str]  # what was left out, and why
    resumed: int  # cases that an earlier, interrupted run had measured


@dataclass(frozen=True)
class Job:
    """What a worker needs for one case."""

    pair: PredictionFiles
    class_names: ClassNames
    scoring: ScoringOptions
    threads: int
    cache: Path


def measure_all(jobs: Sequence[Job], workers: int, skip_bad: bool, progress: Progress) -> Outcome:
    """Measure every case; the first that cannot be used stops the run, or is listed where `skip_bad`.

    The equal-mass histograms of the cases are large: they are pooled as they come and dropped.
    """
    by_case: dict[str, CaseMeasurement] = {}
    pooled = None
    bad: dict[str, str] = {}
    resumed = 0
    progress(0, len(jobs), "")
    for number, (job, outcome) in enumerate(_outcomes(jobs, workers), start=1):
        case = job.pair.case
        try:
            measured, known = outcome()
            _refuse_mixed_classes(case, measured, by_case)
            statistics = replace(measured.statistics, of_case=OfCase())
            pooled = statistics if pooled is None else pooled + statistics
            by_case[case] = replace(measured, statistics=replace(statistics, equal_mass=None))
            resumed += known
        except BrokenProcessPool as error:
            raise BadInput("a worker process was killed, perhaps for want of memory: use fewer --workers") from error
        except BadInput as error:
            if not skip_bad:
                raise
            bad[case] = str(error)
        progress(number, len(jobs), case)
    return Outcome(by_case, pooled, [bad[case] for case in sorted(bad)], resumed)


def _outcomes(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Callable[[], tuple[CaseMeasurement, bool]]]]:
    if workers == 1:
        for job in jobs:
            with _torch_threads(job.threads):
                yield job, lambda job=job: remembered(job)
        return
    with process_pool(workers, jobs[0].threads) as pool:
        running = deque((job, pool.submit(remembered, job)) for job in jobs)
        while running:  # in the order of the cases, so that what is found first does not depend on chance
            job, future = running.popleft()
            yield job, future.result


@contextmanager
def _torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share(workers: int | None, matched: Sequence[PredictionFiles]) -> tuple[int, int]:
    """How many processes, and how many threads for each of them.

    Unless stated, small folders take one process with one thread: on a shared machine, threads that wait for each other
    over a few thousand voxels cost far more than they bring. Large ones take a process with one thread for each core.
    """
    if workers is not None and workers < 1:
        raise BadInput(f"--workers is {workers}, but at least one process is needed")
    budget = torch.get_num_threads()  # OMP_NUM_THREADS, or the cores this process may use
    size = sum(path.stat().st_size for pair in matched for path in pair.files if path.is_file())
    if workers is None and size < WORTH_WORKERS:
        return 1, 1
    number = max(1, min(workers or budget, len(matched)))
    return number, max(1, budget // number)


def remembered(job: Job) -> tuple[CaseMeasurement, bool]:
    """A case's measures: from an interrupted run where nothing has changed since, else taken now and kept."""
    path = job.cache / f"{job.pair.case}-{_fingerprint(job)}.safetensors"
    if path.is_file():
        kept = _load(path)
        if kept is not None:
            return kept, True
    measured = measure(job.pair, job.class_names, job.scoring, job.threads)
    _save(measured, path)
    return measured, False


def _fingerprint(job: Job) -> str:
    options = (job.pair.stated, asdict(job.scoring), asdict(job.class_names), program())
    return fingerprint(options, job.pair.all_files)


@cache
def program() -> str:
    """A fingerprint of the source of this package and of the metrics that plug-ins bring."""
    paths = {*registry.PACKAGE.rglob("*.py"), *(member.path for member in registry.members("metrics").values())}
    return fingerprint([], sorted(path for path in paths if path.is_file()))


def _save(measured: CaseMeasurement, path: Path) -> None:
    statistics = measured.statistics
    arrays = {f"calibration.{name}": np.asarray(array) for name, array in statistics.calibration.to_arrays().items()}
    if statistics.equal_mass is not None:
        arrays |= {f"equal_mass.{name}": array for name, array in statistics.equal_mass.to_arrays().items()}
    arrays["overlap"] = np.stack([one.counts for one in statistics.overlap])
    arrays["values"] = np.array([row.value for row in measured.values])
    words = {
        "channels": measured.channels,
        "regions": statistics.overlap[0].regions,
        "rows": [row._replace(value=0.0) for row in measured.values],
        "labels": measured.labels,
    }
    files.write_tensors(path, KIND, {name: np.asarray(array, order="C") for name, array in arrays.items()}, words)


def _load(path: Path) -> CaseMeasurement | None:
    """None where the file is not what it should be: it is then measured again."""
    try:
        arrays, words = files.read_tensors(path, KIND)
    except BadInput:
        return None
    calibration, equal_mass = files.under("calibration.", arrays), files.under("equal_mass.", arrays)
    names, members, activation = words["channels"]
    regions = {name: tuple(ids) for name, ids in words["regions"].items()}
    rows = [
        Value(*row)._replace(value=value) for row, value in zip(words["rows"], arrays["values"].tolist(), strict=True)
    ]
    return CaseMeasurement(
        Channels(tuple(names), tuple(tuple(ids) for ids in members), activation),
        rows,
        Statistics(
            CalibrationStatistics.from_arrays(calibration),
            tuple(OverlapStatistics(counts, regions) for counts in arrays["overlap"]),
            EqualMassStatistics.from_arrays(equal_mass) if equal_mass else None,
        ),
        words["labels"],
    )


def _refuse_mixed_classes(case: str, measured: CaseMeasurement, others: dict[str, CaseMeasurement]) -> None:
    for other, first in others.items():
        ours, theirs = len(measured.channels.names), len(first.channels.names)
        if ours != theirs:
            raise BadInput(f"the prediction of case {case} has {ours} classes, but that of case {other} has {theirs}")
        return
