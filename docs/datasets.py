"""Writes docs/datasets.md from the readers themselves, and the table in README.md between its markers.

python docs/datasets.py            writes
python docs/datasets.py --check    only says whether they are up to date (exit code 1 if not)
"""

import sys
from pathlib import Path

import numpy as np

from calibseg.core import registry
from calibseg.data.datasets.phantom import Phantom

PAGE = Path(__file__).with_suffix(".md")
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- datasets: begin (written by docs/datasets.py) -->", "<!-- datasets: end -->"
CASES = 50


def table() -> str:
    """One line per dataset."""
    rows = ["| key | set | classes | slices | split | licence |", "| --- | --- | --- | --- | --- | --- |"]
    for key, member in registry.members("datasets").items():
        facts = member.facts
        classes = ", ".join(facts.get("classes", ())[1:]) or "from the folder"
        axis = facts.get("protocol", {}).get("slice_axis", "axial or acquisition")
        cells = [f"`{key}`", facts["title"], classes, axis, split(facts), facts.get("licence", "your own")]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def split(facts: dict) -> str:
    rule = facts.get("split", {"sizes": (70, 10, 20)})
    sizes = "/".join(map(str, rule["sizes"])) + (" pictures" if rule.get("unit") == "case" else "")
    return f"leave-one-out, {sizes}" if rule.get("leave_one_out") else sizes


def prepared_as(facts: dict) -> str:
    """The protocol in words."""
    protocol = facts.get("protocol", {})
    steps = []
    if protocol.get("intensity") == "window":
        low, high = protocol["range"]
        steps.append(f"intensities from {low:g}..{high:g} to [0, 1]")
    elif protocol.get("intensity") == "keep":
        steps.append("intensities kept")
    else:
        steps.append("each volume's 0.5th to 99.5th percentile to [0, 1]")
    for name, words in (("spacing_mm", "resampled to {} mm"), ("resize", "resized to {}"), ("crop", "centre {}")):
        if name in protocol:
            size = "x".join("·" if value is None else f"{value:g}" for value in protocol[name])
            steps.append(words.format(size) + " (z, y, x)")
    steps.append(protocol.get("slice_axis", "axial or, where scans are anisotropic, acquisition") + " slices")
    return "; ".join(steps)


def sections() -> str:
    parts = []
    for key, member in registry.members("datasets").items():
        facts = member.facts
        lines = [f"## {key}: {facts['title']}", member.doc.split(">>>")[0].strip()]
        lines += [f"- Layout: `{facts['layout']}`"]
        told = [("how_to_get", "Get it"), ("licence", "Licence")]
        lines += [f"- {name}: {facts[fact]}" for fact, name in told if fact in facts]
        if facts.get("channels"):
            lines += [f"- Channels: {', '.join(facts['channels'])}"]
        if facts.get("regions"):
            lines += ["- Regions: " + ", ".join(f"{name} = {set(ids)}" for name, ids in facts["regions"].items())]
        lines += [f"- Prepared: {prepared_as(facts)}"]
        if member.options:
            lines += ["- Options: " + "; ".join(f"`{o.name}` ({o.default}): {o.note}" for o in member.options)]
        lines += [f"- Cite: {facts['citation']}"] if "citation" in facts else []
        parts.append("\n\n".join([lines[0], lines[1], "\n".join(lines[2:])]))
    return "\n\n".join(parts)


def phantom_figures() -> dict[str, float]:
    """ECE (15 equal-width bins, pooled over cases and raters) of the phantom's true probabilities."""
    cases = list(Phantom(cases=CASES).cases())
    p = np.concatenate([case.true_p.reshape(len(case.classes), -1) for case in cases if case.true_p is not None], 1)
    labels = np.concatenate([case.labels.reshape(4, -1) for case in cases if case.labels is not None], 1)
    best, confidence = p.argmax(0), p.max(0).astype(np.float64)
    soft = np.take_along_axis(p, best[None], 0)[0]
    correct, confident = labels == best, np.broadcast_to(confidence, labels.shape)
    truth, predicted = labels > 0, np.broadcast_to(best > 0, labels.shape)
    return {
        "soft target p, all voxels": ece(confidence, soft),
        "drawn labels, all voxels": ece(confident, correct),
        "drawn labels, voxels predicted as foreground": ece(confident[predicted], correct[predicted]),
        "drawn labels, voxels labelled as foreground (the papers' rule)": ece(confident[truth], correct[truth]),
        "drawn labels, voxels in either": ece(confident[truth | predicted], correct[truth | predicted]),
    }


def ece(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    number = np.clip(np.ceil(confidence.ravel() * bins).astype(np.intp) - 1, 0, bins - 1)
    gap = np.bincount(number, confidence.ravel() - correct.ravel(), bins)
    return float(np.abs(gap).sum() / number.size)


def page() -> str:
    figures = "\n".join(f"| {name} | {value:.4f} |" for name, value in phantom_figures().items())
    return f"""# Datasets

Written by `docs/datasets.py` from the readers in `src/calibseg/data/datasets`; `calibseg explain KEY` shows the same.

{table()}

`calibseg prepare --dataset KEY --root DIR -o WORK` reads the raw download, checks it, and stores one file per case;
`calibseg split WORK` divides the patients with the papers' sizes. The papers publish neither preprocessing nor split
lists, so a split of theirs cannot be repeated, only its size. On the way in a reader checks that image and label share
shape and place (0.1 mm), that values are finite, labels known and not empty, spacing positive, ids plain and unique.

In Python, slices come in batches whose content depends on seed, epoch and number only:

<!-- not run: needs ACDC, prepared in work/acdc -->
```python
from calibseg.data import prepared
from calibseg.data.slices import Slices

cases = [prepared.open_case("work/acdc", id) for id in prepared.read_split("work/acdc").train]
for batch in Slices(cases, batch_size=16, multiple_of=32, seed=1).epoch(0):
    batch.image, batch.target  # [n c h w] float32; [n h w] int64, -100 where nothing counts
```

## What the phantom teaches about the papers' rule

The phantom's label probabilities p are known exactly, and its raters draw their labels from p. So p is perfectly
calibrated, and a metric that says otherwise says something about itself. {CASES} cases, 4 raters each, pooled, 15
equal-width bins:

| ECE of p itself, measured on | value |
| --- | --- |
{figures}

Selecting voxels by their label is what makes the difference: a voxel with p = (0.6, 0.4) is labelled foreground in
four draws of ten, and whenever it is, its prediction (background, 0.6 sure) is wrong. A false positive never counts.
So a network cannot reach 0 under the papers' rule by being right; compare methods under it, but read `all` or
`predicted` for calibration.

{sections()}
"""


def with_table(readme: str) -> str:
    """The README with a fresh table between its markers; without markers it is left as it is."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}" if begin and end else readme


def main() -> int:
    wanted = {PAGE: page()}
    if README.is_file():
        wanted[README] = with_table(README.read_text(encoding="utf-8"))
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is out of date: run python docs/datasets.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
