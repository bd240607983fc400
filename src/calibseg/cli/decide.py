"""The commands that decide: fit rules with finite-sample promises, apply them. Heavy imports stay inside."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from calibseg.cli.parsing import Verbs, assigned, expanded, literal, pair, refuse_given, words
from calibseg.cli.screen import out, print_line
from calibseg.cli.shared_options import ClassOptions, FittedCalibrator, Images, Predictions, PreparedCases
from calibseg.core.types import BadInput
from calibseg.io.conventions import FileConventions, PredictionFolder

if TYPE_CHECKING:
    from calibseg.decisions import Decision
    from calibseg.stages.decide.cases import CaseSource

app = Verbs()
verbs = Verbs(no_args_is_help=True, help="From probabilities to masks, margins and intervals with a promise.")
app.add_typer(verbs, name="decide")


@dataclass(frozen=True)
class CaseFolders:
    """Folders that anybody made, in place of a run, and what of a run is meant."""

    predictions: Predictions = None
    masks: Annotated[
        Path | None, typer.Option(help="folder of NIfTI label maps without probabilities, for margins and volumes")
    ] = None
    labels: Annotated[Path | None, typer.Option(help="folder of NIfTI label maps of the truth, named like them")] = None
    images: Images = None
    calibrator: FittedCalibrator = "none"
    subset: Annotated[
        str | None, typer.Option("--subset", "--cases", help="with a run: fit: calibration or validation; apply: test")
    ] = None
    work: PreparedCases = None


@dataclass(frozen=True)
class Wanted:
    """What is to be promised."""

    risk: Annotated[
        list[str] | None, typer.Option(help="fnr=0.05 (missed share), fpr=0.01; ,confidence=0.9: with high probability")
    ] = None
    volume: Annotated[
        list[str] | None, typer.Option(help="level of an interval, like 0.9 or 0.9,scale=relative (spread)")
    ] = None
    margin: Annotated[list[str] | None, typer.Option(help="like coverage=0.95,confidence=0.9")] = None
    decision: Annotated[
        list[str] | None, typer.Option(help="any decision, like inner:purity=1,confidence=0.9, or ./mine.py")
    ] = None
    joint: Annotated[bool, typer.Option(help="the promises about all structures hold at once")] = False

    def build(self) -> "list[tuple[str, Decision]]":
        """The decisions with the names that they are found under."""
        from calibseg.core import registry

        decisions: list[tuple[str, dict[str, Any]]] = []
        for text in self.risk or ():
            name, level = pair(words(text)[0] if words(text) else text, "--risk", "NAME=LEVEL")
            decisions.append((name, {"alpha": literal(level), **assigned(words(text)[1:], "--risk")}))
        for text in self.volume or ():
            level, *rest = words(text) or ("",)
            decisions.append(("volume", {"level": literal(level), **assigned(rest, "--volume")}))
        decisions += [("margin", assigned(words(text), "--margin")) for text in self.margin or ()]
        for text in self.decision or ():
            name, _, rest = text.partition(":")
            decisions.append((name, assigned(words(rest), "--decision")))
        return [(name, registry.build("decisions", name, options)) for name, options in decisions]


@verbs.command(
    epilog="Examples:  calibseg decide fit --predictions val --labels labelsVal -o rules.json --risk fnr=0.05 "
    "--volume 0.9 --margin coverage=0.95,confidence=0.9  ·  calibseg decide fit runs/a -o rules.json --risk fnr=0.1"
    "  ·  calibseg decide fit --masks seg --labels labelsVal -o rules.json --margin coverage=0.99,confidence=0.9"
)
@expanded
def fit(
    run: Annotated[Path | None, typer.Argument(help="a run folder with predicted cases; or folders")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the rules, a JSON file")] = None,
    wanted: Wanted = Wanted(),
    folders: CaseFolders = CaseFolders(),
    files: FileConventions = FileConventions(),
    names: ClassOptions = ClassOptions(),
) -> None:
    """Fit rules on labelled cases that the network did not learn from; the patient is the unit."""
    from calibseg.cli import console
    from calibseg.stages.decide.stage import decide_fit

    if output is None:
        raise BadInput("say where the rules are to be written: -o rules.json")
    asked = wanted.build()
    decisions, found_at = [one for _, one in asked], {one.label: name for name, one in asked}
    source = _source(run, folders, files, names)
    with console.bar() as progress:
        result = decide_fit(source, decisions, output, joint=wanted.joint, names=found_at, progress=progress)
    if result.resumed:
        out.print(f"{result.resumed} cases were already read by an interrupted call\n")
    table = Table("decision", "structure", "patients", "rule", box=None, pad_edge=False)
    for rule in result.rules.rules:
        numbers = {name: value for name, value in rule.numbers.items() if isinstance(value, float)}
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
        table.add_row(escape(rule.decision.label), escape(rule.structure), str(rule.patients), shown)
    out.print(table)
    for rule in result.rules.rules:
        print_line(f"promised: {escape(rule.decision.promise(rule.structure))}")
    if result.rules.joint:
        out.print("joint: a decision's promises hold for all structures at once, each at its share of the level")
    print_line(f"\nwrote {escape(str(result.path))}")


@verbs.command(
    epilog="Examples:  calibseg decide apply rules.json --predictions test -o decided  ·  "
    "calibseg decide apply rules.json runs/a --subset test -o decided  ·  with --labels: what was kept of the promises"
)
@expanded
def apply(
    rules: Annotated[Path, typer.Argument(help="what calibseg decide fit wrote")],
    run: Annotated[Path | None, typer.Argument(help="a run folder with predicted cases; or folders")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="folder for sheets and masks")] = None,
    write_masks: Annotated[bool, typer.Option(help="write the masks as NIfTI files")] = True,
    folders: CaseFolders = CaseFolders(),
    files: FileConventions = FileConventions(),
    names: ClassOptions = ClassOptions(),
) -> None:
    """Apply rules to new cases: masks, intervals, and a sheet with the cases to look at first on top."""
    from calibseg.cli import console
    from calibseg.report.html.decisions import decision_page
    from calibseg.stages.decide.stage import decide_apply

    if output is None:
        raise BadInput("say where the sheets and masks are to be written: -o FOLDER")
    with console.bar() as progress:
        sheet = decide_apply(rules, _source(run, folders, files, names), output, masks=write_masks, progress=progress)
    decision_page(output, sheet.cases, sheet.observed, *sheet.for_page(rules.name))
    table = Table("look first", "case", "lowest soft Dice confidence", box=None, pad_edge=False)
    for case in sheet.cases[:10]:
        lowest = [structure["soft_dice_confidence"] for structure in case["structures"].values()]
        shown = "undefined" if None in lowest else f"{min(lowest):.4f}"
        table.add_row(str(case["look_first"] or ""), escape(case["case"]), shown)
    out.print(table)
    for row in sheet.observed:
        verdict = "kept" if row["mean_loss"] <= row["promised"] else "[yellow]above[/]"
        print_line(
            f"{escape(row['decision'])}, {escape(row['structure'])}: mean loss {row['mean_loss']:.4f} over"
            f" {row['patients']} patients, promised {row['promised']:.4g}: {verdict}"
        )
    print_line(f"\nwrote {escape(str(output))}: {len(sheet.cases)} cases")


def _source(run: Path | None, folders: CaseFolders, files: FileConventions, names: ClassOptions) -> "CaseSource":
    from calibseg.stages.decide.cases import CaseSource

    if len(folders.predictions or ()) > 1:
        raise BadInput("--predictions is given twice: rules are fitted on, and applied to, one folder")
    predictions = next(iter(folders.predictions or ()), None)
    path = predictions or folders.masks
    if (predictions is not None and folders.masks is not None) or (run is not None and path is not None):
        raise BadInput("say which cases: a run folder, --predictions DIR or --masks DIR, and one of them only")
    folder = None
    if run is not None:
        for given, fields in ((folders, ("images",)), (files, ()), (names, ())):
            refuse_given(given, "is for a folder of cases: a run says it itself", fields)
    else:
        refuse_given(folders, "is for a run, not for a folder of cases", ("subset", "work"))
    if folders.masks is not None:
        refuse_given(files, "is for --predictions: masks hold labels", ("kind", "activation", "file_format"))
    if path is not None:
        class_names = names.names(path, folders.labels or path)
        folder = PredictionFolder(path, folders.labels, folders.images, files, class_names)
    elif run is not None and folders.labels is not None:
        raise BadInput("a run knows the labels of its cases: leave --labels out")
    return CaseSource(folder, folders.masks is not None, run, folders.subset, folders.calibrator, folders.work)
