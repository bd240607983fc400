"""A command of a cell: the stage's function with its arguments, which is also a line for a shell (`--plan`).

Arguments have the names of the command line's options, so that the line follows from them: what differs from the
defaults of a group of options is written, a mapping once per key, the first argument without a name.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from calibseg.data.split_options import SplitOptions
from calibseg.runs.signals import StopSignals
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.predict.options import InferenceOptions
from calibseg.stages.score.options import ScoringOptions
from calibseg.stages.train.hardware import Hardware

POLL_S = 0.2
STOPPED = 75  # the exit code of a stage that was asked to stop and can go on
FIRST = {"benchmark": "grid", "split": "work", "train": "recipe", "predict": "run", "score": "run", "calibrate": "run"}


@dataclass(frozen=True)
class Command:
    """verb: a command of calibseg. arguments: by the names of its options; None is left out."""

    verb: str
    arguments: Mapping[str, Any]

    def __call__(self) -> int:
        """Call the stage in this process; its exit code."""
        return _STAGES[self.verb](**self.arguments) or 0

    @property
    def words(self) -> list[str]:
        """The same for a shell, after `calibseg`."""
        first = FIRST.get(self.verb, "")
        words = [self.verb, *([str(self.arguments[first])] if first else [])]
        return words + [word for name, value in self.arguments.items() if name != first for word in _words(name, value)]


def _words(name: str, value: Any) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if is_dataclass(value):
        for item in fields(value):
            if getattr(value, item.name) != item.default:
                yield from _words(item.name.replace("options", "option"), getattr(value, item.name))
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from (flag, f"{key}={json.dumps(entry)}")
    elif name == "sizes":
        yield from (flag, *map(typed, value))
    elif value is True:
        yield flag
    elif value is not None and value != "none":
        yield from (flag, typed(value))


def typed(value: object) -> str:
    """A value as it is typed: several are parted by commas, and a number has all its digits."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _prepare(dataset: str, output: Path, root: str | None, option: Mapping[str, Any], protocol: Mapping[str, Any]):
    from calibseg.stages.prepare import prepare

    prepare(dataset, root, output, options=option, protocol=protocol)


def _split(work: Path, how: SplitOptions):
    from calibseg.stages.prepare import make_splits

    make_splits(work, **vars(how))


def _train(recipe: Path, output: Path, hardware: Hardware, resume: bool, quiet: bool) -> int:
    if hardware.processes > 1:  # of several processes: one of this would not do
        from calibseg.benchmark.cluster import train_across

        kwargs = {"recipe": recipe, "output": output, "hardware": hardware, "resume": resume, "quiet": quiet}
        words = Command("train", kwargs).words
        return _passing_signals_on(train_across(words, hardware))
    from calibseg.runs.recipe import read_recipe
    from calibseg.stages.train.loop import train

    result = train(read_recipe(recipe), output, **vars(hardware), resume=resume)
    return STOPPED if result.status == "stopped" else 0


def _passing_signals_on(words: Sequence[str]) -> int:
    """Run a command; asked to stop, ask it to, and wait until it has saved."""
    with StopSignals() as stop, subprocess.Popen(words) as child:
        while child.poll() is None and not stop.received:
            time.sleep(POLL_S)
        if stop.received:
            child.terminate()
        return child.wait()


def _predict(run: Path, subset: Any, work: Path, inference: InferenceOptions):
    from calibseg.stages.predict.stage import predict

    predict(run, subset=subset, work=work, inference=inference)


def _score(run: Path, subset: str, calibrator: str, scoring: ScoringOptions):
    from calibseg.stages.score.stage import score_run

    score_run(run, subset=subset, calibrator=calibrator, scoring=scoring)


def _calibrate(run: Path, method: tuple[str, ...], subset: Any, work: Path, options: CalibrationOptions):
    from calibseg.stages.calibrate.stage import calibrate_run

    calibrate_run(run, method, subset=subset, work=work, options=options)


_STAGES: dict[str, Callable[..., int | None]] = {
    "prepare": _prepare,
    "split": _split,
    "train": _train,
    "predict": _predict,
    "score": _score,
    "calibrate": _calibrate,
}
