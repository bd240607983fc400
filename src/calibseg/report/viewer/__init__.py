"""One page that shows a predicted scan in three dimensions: image, mask and confidence, in any browser, offline.

`view(out, output)` reads what `calibseg predict --input` wrote and puts the maps into the page. They are drawn by
NiiVue (niivue.umd.js beside this file, BSD-2-Clause, see NOTICE), which is inside the page as well: nothing is fetched,
and a content policy in the page forbids it.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from calibseg import __version__
from calibseg.core import files, registry
from calibseg.core.types import BadInput
from calibseg.io.label_colours import class_rgb
from calibseg.io.nifti import ENDINGS, Grid, read_nifti
from calibseg.report.html import embedded

HERE = Path(__file__).parent
LARGEST = 400_000_000  # bytes of maps: more than a browser takes


def view(out: Path | str, output: Path | str | None = None, scan: str | None = None, image: Path | None = None) -> Path:
    """Write the page and say where; output: by default OUT/SCAN.html.

    scan: which one, where the folder holds several
    image: the scan itself, which is not kept beside its maps; without it the confidence is the ground
    """
    folder = Path(out)
    name = _scan(folder, scan)
    path = Path(output) if output is not None else folder / f"{name}.html"
    files.check_output(path, (".html", ".htm"))
    record = files.read_json(folder / f"{name}.json", "prediction")
    maps = record.get("maps") or {}
    for kind in ("confidence", "label"):
        if not isinstance(maps.get(kind), str):
            raise BadInput(f"{folder / f'{name}.json'}: names no {kind} map; predict the scan again")
        if not (folder / maps[kind]).resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"{folder / f'{name}.json'}: the {kind} map {maps[kind]} lies outside of the folder")
    shown = [("mask", folder / maps["label"], "", 0.5), ("confidence", folder / maps["confidence"], "viridis", 1.0)]
    if image is not None:
        shown = [shown[0], (*shown[1][:3], 0.0), ("image", Path(image), "gray", 1.0)]
    grid, layers = _grid(shown[0][1]), []
    for title, file, colours, opacity in reversed(shown):
        grid.refuse_other(_grid(file), file, shown[0][1])
        encoded = base64.b64encode(file.read_bytes()).decode("ascii")
        layers.append({"name": title, "colormap": colours, "opacity": opacity, "data": encoded})
    if sum(len(layer["data"]) for layer in layers) > LARGEST:
        raise BadInput(f"{folder}: the maps of {name} are too large for one page: open them in 3D Slicer or ITK-SNAP")
    structures = record.get("structures") or {}
    classes = _classes(folder, structures)
    colours = [[0, 0, 0], *(class_rgb(k) for k in range(1, len(classes)))]
    data = {"layers": layers, "classes": classes, "colours": colours}
    files.write_text(path, _page(name, record, structures, data))
    return path


def _scan(folder: Path, scan: str | None) -> str:
    """The scan that is shown: the one named, or the only one there is."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no folder of predicted scans; calibseg predict RUN --input SCAN makes one")
    names = sorted(path.stem for path in folder.glob("*.json"))
    if not names:
        raise BadInput(f"{folder}: holds no predicted scan (NAME.json); calibseg predict RUN --input SCAN makes one")
    if scan is not None and scan not in names:
        raise BadInput(registry.unknown("predicted scan", scan, names))
    if scan is None and len(names) > 1:
        raise BadInput(f"{folder} holds {len(names)} scans: say which with --scan. Known: {', '.join(names)}")
    return scan or names[0]


def _grid(path: Path) -> Grid:
    """Where the voxels of an image lie; one that is damaged is refused."""
    if not path.name.lower().endswith(ENDINGS):
        raise BadInput(f"{path}: the viewer shows NIfTI images (.nii, .nii.gz)")
    return read_nifti(path)[1]


def _classes(folder: Path, structures: dict[str, Any]) -> list[str]:
    """The names of the label values, from the table for ITK-SNAP that lies beside the maps."""
    table = folder / "labels.txt"
    lines = table.read_text(encoding="utf-8").splitlines() if table.is_file() else []
    named = [line.split('"')[1] for line in lines if line.count('"') == 2]
    return ["background", *(named[1:] or structures)]


def _page(name: str, record: dict[str, Any], structures: dict[str, Any], data: dict[str, Any]) -> str:
    library, script = ((HERE / file).read_text(encoding="utf-8") for file in ("niivue.umd.js", "viewer.js"))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (library, script)]
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    whole = {"library": Markup(library), "script": Markup(script), "data": Markup(embedded(data))}
    facts = {"title": name, "structures": structures, "calibrator": record.get("calibrator", "none")}
    return environment.get_template("viewer.html.j2").render(**facts, **whole, hashes=hashes, version=__version__)
