"""Raw study -> prepared cases: find, read, check, put on the grid, store.

Every case carries a fingerprint of its files' content, of the reader and its options, and of the protocol. A case
whose fingerprint has not changed is left alone, so a second run does nothing and an interrupted one goes on where it
stopped.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from calibseg.core import files, plugins, registry
from calibseg.core.hashing import fingerprint
from calibseg.core.parallel import process_pool
from calibseg.core.types import IGNORED, BadInput, Progress, Split
from calibseg.data import prepared
from calibseg.data.preprocessing import Preprocessing, anisotropic, preprocess, protocol_field, read_protocol
from calibseg.data.split_options import SplitOptions
from calibseg.data.splits import check_split, few_patients, leave_one_out, three_way
from calibseg.data.splits import folds as k_folds
from calibseg.data.study import Study
from calibseg.io.images import data_file, read_grid


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did."""

    work: Path
    cases: int
    slices: int
    written: int  # the rest was there already
    skipped: dict[str, str]  # case id -> what was wrong with it
    voxels: dict[str, int]  # class -> labelled voxels, over all raters
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        total = max(1, sum(self.voxels.values()))
        shares = ", ".join(f"{name} {count / total:.1%}" for name, count in self.voxels.items())
        lines = [
            f"{self.cases} cases, {self.slices} slices in {self.work} ({self.written} written, "
            f"{self.cases - self.written} unchanged)",
            f"labelled voxels: {shares}",
            *self.notes,
            *(f"skipped {id}: {reason}" for id, reason in self.skipped.items()),
        ]
        return "\n".join(lines)


def prepare(
    dataset: str,
    root: str | Path | None,
    work: str | Path,
    *,
    options: Mapping[str, Any] | None = None,
    protocol: Mapping[str, Any] | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Prepare every case of a dataset into `work`; `protocol` changes single fields of the set's own protocol.

    Several workers are processes of their own: in a script, call this under `if __name__ == "__main__":`.
    """
    work, member = Path(work), registry.find("datasets", dataset)
    plugins.allow(dataset)
    options = dict(options or {})
    try:
        reader = registry.build("datasets", dataset, options)
    except TypeError as error:
        raise BadInput(f"dataset {member.key!r} cannot be made with {options}: {error}") from error
    if prepared.has_index(work) and (existing := prepared.read_index(work)["dataset"]) != member.key:
        raise BadInput(f"{work}: holds the dataset {existing!r}; prepare {member.key!r} in another folder")
    if root is not None and not Path(root).exists():
        raise BadInput(f"{root}: there is no such folder")
    studies = reader.studies(root)
    plan = read_protocol("protocol: ", {**_default_axis(studies), **reader.protocol, **(protocol or {})})
    job = _Job(dataset, member.key, json.dumps(options, sort_keys=True), plan, work)
    entries, skipped, written = [], {}, 0
    axes: Counter[str] = Counter()
    for number, (study, outcome) in enumerate(zip(studies, _run(job, studies, workers), strict=True), 1):
        if isinstance(outcome, str):
            if not skip_bad:
                raise BadInput(outcome)
            skipped[study.id] = outcome
        else:
            entry, new, axis = outcome
            entries.append(entry)
            written += new
            axes[axis] += 1
        if progress:
            progress(number, len(studies), study.id)
    if not entries:
        raise BadInput(f"{root}: all {len(studies)} cases were skipped, the first because: {skipped[studies[0].id]}")
    index = {
        "dataset": member.key,
        "options": options,
        "protocol": asdict(plan),
        "changes": {name: protocol_field(name, value) for name, value in (protocol or {}).items()},
        "split": reader.split,
        "classes": studies[0].classes,
        "channels": studies[0].channels,
        "regions": studies[0].regions,
        "select": studies[0].select,
        "cases": entries,
        "skipped": skipped,
    }
    prepared.write_index(work, index)
    voxels = np.sum([entry["voxels"] for entry in entries], 0)
    return Prepared(
        work,
        len(entries),
        sum(entry["slices"] for entry in entries),
        written,
        skipped,
        dict(zip(studies[0].classes, voxels.tolist(), strict=True)),
        [*reader.notes(studies), *_axis_note(axes)],
    )


def _default_axis(studies: list[Study]) -> dict[str, str]:
    """For a reader that does not say: the axis of the slices that scans were made of, where most of them were."""
    thick_slices = []
    for study in studies:
        with contextlib.suppress(BadInput):  # reading the case says what is wrong with it
            if study.images and (grid := read_grid(study.images[0])) is not None:
                thick_slices.append(anisotropic(grid.spacing_mm))
    return {"slice_axis": "acquisition"} if 2 * sum(thick_slices) > len(thick_slices) else {}


def _axis_note(axes: Counter[str]) -> list[str]:
    """What to know where scans were made of slices in different planes."""
    if len(axes) < 2:
        return []
    counts = ", ".join(f"{name} in {number}" for name, number in axes.most_common())
    return [
        f"slices were taken as the scanner took them, nearest to {counts} cases: rows and columns differ among "
        "them; --protocol slice_axis=axial cuts all alike"
    ]


def make_splits(work: str | Path, *, overwrite: bool = False, **options: Any) -> dict[str, Split]:
    """Split the prepared cases of `work` and save: `default`, `fold-1-of-5` ... or `without-PATIENT` ...

    options: those of `SplitOptions`. Without sizes, folds or leave_one_out the dataset's own rule is followed: the
    papers' sizes, leave-one-out, or both.
    """
    work = Path(work)
    splits = planned_splits(work, SplitOptions(**options))
    for name, split in splits.items():
        if name in prepared.split_names(work) and prepared.read_split(work, name) != split and not overwrite:
            raise BadInput(f"{prepared.split_path(work, name)}: exists and differs; give --overwrite to replace it")
    for name, split in splits.items():
        prepared.write_split(work, name, split)
    return splits


def planned_splits(work: Path, how: SplitOptions) -> dict[str, Split]:
    """What `make_splits` would save."""
    index = prepared.read_index(work)
    patients = {entry["id"]: entry["patient"] for entry in index["cases"]}
    rule, seed = index["split"], how.split_seed
    if how.leave_one_out or (how.sizes is None and how.folds is None and rule.get("leave_one_out")):
        by_patient = leave_one_out(patients, seed, how.validation)
        splits = {f"without-{re.sub(r'[^A-Za-z0-9._+-]', '_', name)}": split for name, split in by_patient.items()}
        if len(splits) < len(by_patient):
            raise BadInput(f"{work}: two patients' names differ only in signs that a file name cannot have")
        if not how.leave_one_out and "sizes" in rule:  # a text that states both rules
            train, _, test = rule["sizes"]
            splits["default"] = three_way(patients, (train - how.validation, how.validation, test), seed)
    elif how.folds is not None:
        folds = k_folds(patients, how.folds, seed, how.validation)
        splits = {f"fold-{number}-of-{how.folds}": split for number, split in enumerate(folds, 1)}
    else:
        if how.validation:
            raise BadInput(f"{how.validation} validation patients are for folds and leave-one-out; sizes say it here")
        sizes = how.sizes or rule.get("sizes", (70, 10, 20))
        splits = {"default": three_way(patients, sizes, seed, rule.get("unit", "patient"))}
    if how.train_sizes:
        if "default" not in splits:
            raise BadInput("few training patients are drawn from the split `default`: give sizes, not folds")
        splits |= few_patients(splits["default"], patients, how.train_sizes, how.draws)
    for split in splits.values():
        check_split(split, patients)
    return splits


@dataclass(frozen=True)
class _Job:
    """What a worker needs to know besides the study."""

    name: str  # of the dataset, or the path of its file
    dataset: str
    options: str
    protocol: Preprocessing
    work: Path


Outcome = (
    tuple[dict[str, Any], bool, str] | str
)  # the case's entry, if it was written, its slice axis; or what is wrong


def _run(job: _Job, studies: list[Study], workers: int) -> Iterator[Outcome]:
    """One outcome per study, in order."""
    if workers <= 1 or len(studies) == 1:
        yield from (_prepare_one(job, study) for study in studies)
        return
    with process_pool(min(workers, len(studies))) as pool:
        yield from pool.map(_prepare_one, repeat(job), studies, chunksize=max(1, min(8, len(studies) // (4 * workers))))


@lru_cache(maxsize=1)
def _reader(name: str, options: str) -> Any:
    """Built once in each worker: a reader from a file cannot travel between processes, its name can."""
    return registry.build("datasets", name, json.loads(options))


def _prepare_one(job: _Job, study: Study) -> Outcome:
    try:
        made_from = _fingerprint(job, study)
        if prepared.case_path(job.work, study.id).is_file():
            existing = prepared.open_case(job.work, study.id)
            if existing.fingerprint == made_from:
                return _entry(existing, study), False, existing.about["header"]["slice_axis"]
        case = preprocess(_reader(job.name, job.options).read(study), job.protocol)
    except BadInput as error:
        return str(error)
    prepared.write_case(job.work, case, made_from)  # a full disk is no fault of the case: it is never skipped
    return _entry(prepared.open_case(job.work, study.id), study), True, case.header["slice_axis"]


def _fingerprint(job: _Job, study: Study) -> str:
    """Of all that decides what is written."""
    settings = {
        "format": files.format_of("case"),
        "dataset": job.dataset,
        "options": job.options,
        "protocol": asdict(job.protocol),
        "study": {name: str(value) for name, value in asdict(study).items() if name not in ("images", "labels")},
    }
    for path in (sources := (*study.images, *study.labels)):
        if not path.is_file():
            raise BadInput(f"{path}: no such file, it belongs to case {study.id!r}")
    program = [Path(job.name)] if job.name.endswith(".py") else []  # a reader of the user's own may be edited
    return fingerprint(settings, [*sources, *filter(None, map(data_file, sources)), *program])


def _entry(case: prepared.PreparedCase, study: Study) -> dict[str, Any]:
    """A case's line in the index."""
    n, _, h, w = case.shape
    labels = case.read("labels") if "labels" in case.tensors else np.zeros(0, np.uint8)
    voxels = np.bincount(labels.ravel(), minlength=IGNORED + 1)[: len(study.classes)]
    return {
        "id": case.id,
        "patient": case.patient,
        "key": case.fingerprint,
        "slices": n,
        "height": h,
        "width": w,
        "voxels": voxels.tolist(),
    }
