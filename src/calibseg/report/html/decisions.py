"""What rules say about cases, as ONE page that opens offline: the promises, what was observed, the cases in order."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from calibseg import __version__
from calibseg.core.files import write_text
from calibseg.runs.folders import DecisionFolder

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #8884; vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
.broken { font-weight: 700 } .note { opacity: .75 } .wide { overflow-x: auto }
</style></head><body>
<h1>{{ title }}</h1>
<p class="note">{{ cases | length }} cases; rules fitted on {{ patients }} patients{{ ", jointly" if joint }}.
The promises hold for new patients from the same source; under a shift they do not.</p>
<h2>What is promised</h2><ul>
{% for promise in promises %}<li>{{ promise }}</li>
{% endfor %}</ul>
{% if observed %}<h2>What was observed</h2>
<table><tr><th class="text">decision</th><th class="text">structure</th><th>patients</th><th>mean loss</th>
<th>promised, at most</th></tr>
{% for row in observed %}<tr><td>{{ row.decision }}</td><td class="text">{{ row.structure }}</td>
<td>{{ row.patients }}</td><td{{ " class=broken" if row.mean_loss > row.promised }}>{{ number(row.mean_loss) }}</td>
<td>{{ number(row.promised) }}</td></tr>
{% endfor %}</table>{% endif %}
<h2>{{ "Look at these first" if ordered else "Cases" }}</h2>
<div class="wide"><table><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
<p class="note">calibseg {{ version }}</p></body></html>
"""
_SHOWN = {"volume_ml": "mask ml", "expected_volume_ml": "expected ml", "soft_dice_confidence": "soft Dice confidence",
          "uncertain_share": "uncertain share", "true_volume_ml": "true ml"}  # fmt: skip


def decision_page(
    output: Path,
    cases: Sequence[Mapping[str, Any]],
    observed: Sequence[Mapping[str, Any]],
    promises: Sequence[str],
    facts: Mapping[str, Any],
) -> Path:
    """Write OUT/sheet.html. facts: title, patients and joint."""
    columns, rows = _rows(cases)
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    path = DecisionFolder(output).page
    ordered = any(case["look_first"] is not None for case in cases)
    content = {"cases": cases, "observed": observed, "promises": promises, "ordered": ordered, **facts}
    write_text(path, page.render(**content, columns=columns, rows=rows, number=_number, version=__version__))
    return path


def _rows(cases: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each case and structure: what was found, then each rule's numbers in one cell."""
    first = [structure for case in cases for structure in case["structures"].values()]
    shown = [key for key in _SHOWN if any(structure.get(key) is not None for structure in first)]
    labels = list(dict.fromkeys(label for structure in first for label in structure["rules"]))
    rows = []
    for case in cases:
        for name, structure in case["structures"].items():
            row = [f"{case['look_first'] or ''} {case['case']}".strip(), name]
            row += [_number(structure.get(key)) for key in shown]
            row += [_told(structure["rules"].get(label, {})) for label in labels]
            rows.append(row)
    return ["case", "structure", *(_SHOWN[key] for key in shown), *labels], rows


def _told(numbers: Mapping[str, Any]) -> str:
    if "low_ml" in numbers:
        return f"{_number(numbers['low_ml'])} to {_number(numbers['high_ml'])} ml"
    return ", ".join(f"{key.replace('_', ' ')} {_number(value)}" for key, value in numbers.items() if key != "loss")


def _number(value: Any) -> str:
    return "undefined" if value is None else f"{value:.3g}"
