"""Wrong files: cut short, damaged, too large for any machine, with numbers that mean nothing, or that try to act."""

import gzip
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibseg.cli.self_test.good_files import SHAPE, random_case, save_nifti, save_probabilities

Damage = Callable[[], object]
RUBBISH = b"\x93\xff\x00rubbish\xfe" * 9


@dataclass(frozen=True)
class Bad:
    """A wrong input: what is done to the good files, and the command that must refuse the result."""

    name: str
    words: Sequence[str]
    damage: Damage = lambda: None


def bad_files() -> Iterator[Bad]:
    score = "score --predictions p --labels l --metrics dsc,ece -o out/scores.csv"
    calibrate = "calibrate --predictions p --labels l --method temperature -o out"
    decide = "decide fit --predictions p --labels l --risk fnr=0.4 --margin confidence=0.6 -o out/rules.json"
    for words in (score, calibrate, decide):
        for name, damage in {**_any_file("p/case1.npz"), **_probabilities("p/case1.npz")}.items():
            if name != "that is missing":  # its label is left out, and counted
                yield Bad(f"prediction {name}", words.split(), damage)
        yield Bad("predictions of other cases", words.split(), _rename_predictions)
        yield Bad("predictions twice", [*words.split(), "--predictions", "p"])
        for name, damage in {**_any_file("l/case1.nii.gz"), **_nifti("l/case1.nii.gz"), **_labels()}.items():
            yield Bad(f"label map {name}", words.split(), damage)
    raters = "score --predictions p --labels l --raters l2 --metrics dsc,rater_dsc -o out/scores.csv"
    for name, damage in {**_any_file("l2/case1.nii.gz"), **_nifti("l2/case1.nii.gz")}.items():
        yield Bad(f"label map of a second rater {name}", raters.split(), damage)
    nnunet = "nnunet calibrate model --labels l --apply t -o out"
    for file in ("model/fold_0/validation/case0.npz", "model/dataset.json", "model/plans.json"):
        for name, damage in _any_file(file).items():
            if name != "that is missing" or file.endswith(".json"):  # a label without a prediction is counted
                yield Bad(f"{file} {name}", nnunet.split(), damage)
    yield Bad("predictions without probabilities", nnunet.split(), Path("t/case3.npz").unlink)
    yield Bad("a fold without probabilities", nnunet.split(), Path("model/fold_1/validation/case1.npz").unlink)
    prepare = "prepare --dataset nnunet --root raw -o out"
    image = "raw/imagesTr/case1_0000.nii.gz"
    for name, damage in {**_any_file(image), **_nifti(image)}.items():
        yield Bad(f"image {name}", prepare.split(), damage)
    for name, damage in {**_any_file("scan.nii.gz"), **_nifti("scan.nii.gz")}.items():
        yield Bad(f"scan {name}", ["predict", "run", "--input", "scan.nii.gz", "-o", "out"], damage)
    for name, change in _DATASET_JSON.items():
        yield Bad(f"dataset.json {name}", prepare.split(), partial(_change, "raw/dataset.json", change))
    yield from _our_files()
    for words in ("rank bad.csv -o out.csv", "table bad.csv -o out.tex", "report bad.csv -o out.html"):
        for name, change in _TABLES.items():
            yield Bad(f"score table {name}", words.split(), partial(_change_table, change))


def _any_file(path: str) -> dict[str, Damage]:
    """What can be wrong with any file."""
    file = Path(path)
    return {
        "empty": lambda: file.write_bytes(b""),
        "of 3 bytes": lambda: file.write_bytes(b"\x1f\x8b\x08"),
        "cut short": lambda: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "that is text": lambda: file.write_text("I am a letter."),
        "that is rubbish": lambda: file.write_bytes(RUBBISH),
        "that is a folder": lambda: (file.unlink(), file.mkdir()),
        "that links to itself": lambda: (file.unlink(), file.symlink_to(file.name)),
        **({"that is a pipe": lambda: (file.unlink(), os.mkfifo(file))} if hasattr(os, "mkfifo") else {}),
        "that is missing": file.unlink,
    }


def _probabilities(path: str) -> dict[str, Damage]:
    file = Path(path)

    def spoilt(value: float) -> None:
        p, _ = random_case(1)
        p[1, 2, 3, 4] = value
        save_probabilities(file, p)

    def other(array: np.ndarray) -> None:
        np.savez(file, probabilities=array)

    good = random_case(1)[0].transpose(0, 3, 2, 1)
    return {
        "with NaN": lambda: spoilt(np.nan),
        "with infinity": lambda: spoilt(np.inf),
        "with a negative value": lambda: spoilt(-0.5),
        "that sums to more than 1": lambda: spoilt(1.5),
        "of another shape": lambda: other(good[:, :-1]),
        "of two dimensions": lambda: other(good[0, 0]),
        "of one channel": lambda: other(good[:1]),
        "of no voxels": lambda: other(good[:, :0]),
        "of texts": lambda: other(np.full(good.shape, "a")),
        "of complex numbers": lambda: other(good.astype(complex)),
        "of pickled objects": lambda: other(np.array([{"a": 1}, None], dtype=object)),
        "of which nobody knows which": lambda: np.savez(file, one=good, other=good),
        "of 20 GB": lambda: _huge_npz(file),
        "compressed in an unknown way": lambda: _unknown_compression(file),
    }


def _nifti(path: str) -> dict[str, Damage]:
    """What can be wrong with a volume. All are gzipped."""
    file = Path(path)

    def header(at: int, form: str, *values: float) -> None:
        content = bytearray(gzip.decompress(file.read_bytes()))
        struct.pack_into(form, content, at, *values)
        file.write_bytes(gzip.compress(bytes(content)))

    def volume(array: np.ndarray, affine: np.ndarray | None = None) -> None:
        save_nifti(file, array, affine)

    return {
        "with NaN": lambda: volume(np.full(SHAPE, np.nan, np.float32)),
        "with NaN in its affine": lambda: header(280, "<4f", *[np.nan] * 4),
        "with a singular affine": lambda: header(280, "<12f", *[0.0] * 12),
        "of 32767^3 voxels": lambda: header(40, "<8h", 3, 32767, 32767, 32767, 1, 1, 1, 1),
        "of no voxels": lambda: header(40, "<8h", 3, 0, 8, 7, 1, 1, 1, 1),
        "of an unknown type": lambda: header(70, "<h", 9999),
        "of five dimensions": lambda: volume(np.ones((*SHAPE, 1, 2), np.uint8)),
        "of complex numbers": lambda: volume(np.ones(SHAPE, np.complex64)),
    }


def _labels() -> dict[str, Damage]:
    file, (_, good) = Path("l/case1.nii.gz"), random_case(1)
    return {
        "with an unknown label": lambda: save_nifti(file, good + np.uint8(7)),
        "with a negative label": lambda: save_nifti(file, good.astype(np.int16) - 1),
        "with half labels": lambda: save_nifti(file, good.astype(np.float32) + 0.5),
        "of another shape": lambda: save_nifti(file, good[:-1]),
    }


def _rename_predictions() -> None:
    for path in Path("p").glob("*.npz"):
        path.rename(path.with_name(f"other_{path.name}"))


def _huge_npz(file: Path) -> None:
    """A header of 20 GB with nothing behind it."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 1000, 1000, 1000), }"
    head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("probabilities.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)


def _unknown_compression(file: Path) -> None:
    content = bytearray(file.read_bytes())
    struct.pack_into("<H", content, 8, 77)
    struct.pack_into("<H", content, content.rindex(b"PK\x01\x02") + 10, 77)
    file.write_bytes(bytes(content))


def _our_files() -> Iterator[Bad]:
    """Files that calibseg writes itself, damaged or made by somebody else."""
    readers = {
        "run/run.json": (
            "score run --metrics dsc -o out.csv",
            "predict run --subset test -o out",
            "export run -o out.onnx",
        ),
        "work/dataset.json": ("split work --overwrite", "train recipe.toml -o new -q"),
        "work/splits/default.json": ("train recipe.toml -o new -q",),
        "rules.json": ("decide apply rules.json run -o out",),
        "rows/hippocampus/a-method.json": ("leaderboard show --benchmark hippocampus --folder rows",),
        "run/calibrators/temperature/calibrator.json": (
            "score run --calibrator temperature --metrics dsc -o out.csv",
            "predict run --input scan.nii.gz --calibrator temperature -o out",
            "export run --calibrator temperature -o out.onnx",
        ),
    }
    for path, commands in readers.items():
        damages: dict[str, Damage] = {
            "that is rubbish": partial(_write, path, RUBBISH),
            "cut short": partial(_cut, path),
            "that is a list": partial(_write, path, b"[1, 2]"),
            "that is empty": partial(_write, path, b"{}"),
            "with nothing but null": partial(_change, path, lambda facts: dict.fromkeys(facts)),
            "with numbers for texts": partial(_change, path, _numbers_for_texts),
        }
        for words in commands:
            for name, damage in damages.items():
                yield Bad(f"{Path(path).name} {name}", words.split(), damage)
    outside = {"id": "../../outside"}
    yield Bad(
        "prepared cases, one of which leads outside",
        ["split", "work", "--overwrite"],
        partial(_change, "work/dataset.json", lambda facts: facts["cases"][0].update(outside)),
    )
    yield Bad(
        "calibrator.json that names a program",
        ["score", "run", "--calibrator", "temperature", "--metrics", "dsc", "-o", "out.csv"],
        partial(_change, "run/calibrators/temperature/calibrator.json", lambda facts: facts.update(method="./evil.py")),
    )
    yield Bad(
        "rules.json that names a program",
        ["decide", "apply", "rules.json", "run", "-o", "out"],
        partial(_change, "rules.json", lambda facts: facts["rules"][0].update(decision="./evil.py")),
    )
    yield Bad(
        "row of a leaderboard with a DSC of 2",
        ["leaderboard", "show", "--benchmark", "hippocampus", "--folder", "rows"],
        partial(
            _change,
            "rows/hippocampus/a-method.json",
            lambda facts: facts["values"]["dsc"]["anterior"].__setitem__(0, 2),
        ),
    )
    yield Bad(
        "run.json whose network is a program",
        ["predict", "run", "--subset", "test", "-o", "out"],
        partial(_change, "run/run.json", _foreign_network),
    )


def _foreign_network(facts: dict[str, Any]) -> None:
    Path("evil.py").write_text("open('acted', 'w')\n")
    facts["recipe"]["network"]["name"] = "./evil.py"


def _numbers_for_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbers_for_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers_for_texts(one) for one in value]
    return 7 if isinstance(value, str) else value


def _cut(path: str) -> None:
    content = Path(path).read_bytes()
    _write(path, content[: len(content) // 2])


def _change(path: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file: in place, or to what `change` returns."""
    facts = json.loads(Path(path).read_text())
    made = change(facts)
    _write(path, json.dumps(facts if made is None else made).encode())


def _write(path: str, content: bytes) -> None:
    """Other content at the file's own time: its age is not what the command should refuse."""
    times = os.stat(path)
    Path(path).write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _change_table(change: Callable[[str], str | bytes]) -> None:
    made = change(Path("scores.csv").read_text())
    Path("bad.csv").write_bytes(made if isinstance(made, bytes) else made.encode())


_TABLES: dict[str, Callable[[str], str | bytes]] = {
    "empty": lambda text: "",
    "without rows": lambda text: text.splitlines()[0] + "\n",
    "of rubbish": lambda text: RUBBISH,
    "that is a letter": lambda text: "Dear all,\nthe numbers are fine.\n",
    "without values": lambda text: text.replace("value", "worth", 1),
    "with texts for values": lambda text: text.replace("0.", "zero point ") if "0." in text else "",
    "in Latin-1": lambda text: text.replace("case0", "Müller").encode("latin-1"),
    "twice the same": lambda text: text + "".join(line + "\n" for line in text.splitlines()[1:]),
    "whose case has two patients": lambda text: text.replace("case0,case0", "somebody,case0", 1),
    "with a value that no sum holds": lambda text: re.sub(r"0\.\d+", "1e308", text, count=1),
}

_DATASET_JSON: dict[str, Callable[[Any], Any]] = {
    "that is a list": lambda facts: [facts],
    "without labels": lambda facts: facts.pop("labels") and None,
    "whose labels are a text": lambda facts: facts.update(labels="background"),
    "whose labels are texts": lambda facts: facts.update(labels={"background": "zero", "a": "one"}),
    "with a negative label": lambda facts: facts["labels"].update(a=-1),
    "with a huge label": lambda facts: facts["labels"].update(a=10**9),
    "with two classes of one number": lambda facts: facts["labels"].update(a=2),
    "whose ignored label is a class": lambda facts: facts["labels"].update(ignore=1),
    "with a region of unknown labels": lambda facts: facts["labels"].update(a=[1, 9]),
    "without channels": lambda facts: facts.pop("channel_names") and None,
    "whose channels are numbers": lambda facts: facts.update(channel_names=3),
    "with an ending that is a number": lambda facts: facts.update(file_ending=7),
}
