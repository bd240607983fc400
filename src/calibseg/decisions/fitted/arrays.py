"""Rules fitted on and applied to arrays in memory: the door of `calibseg.decisions.fit` and `Rules.apply`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

from calibseg.core import arrays
from calibseg.core.types import IGNORED, Array, BadInput, Prediction, ScoreKind
from calibseg.decisions import Decision
from calibseg.decisions.fitted.rules import FoundCase, Rules, Source, check_decisions, fit_rules, parts_of
from calibseg.decisions.maths.findings import CasePass, Findings, Part, Structure, pass_over
from calibseg.metrics.statistics.label_maps import refuse_unknown_labels, rows

KINDS = (*get_args(ScoreKind), "masks")


@dataclass(frozen=True)
class Decided:
    """What the rules say about a case.

    values: structure -> decision -> numbers
    masks: (decision, structure) -> bool, in the shape of the case
    findings: structure -> what the pass over the case found
    """

    values: dict[str, dict[str, dict[str, float]]]
    masks: dict[tuple[str, str], Array]
    findings: Mapping[str, Findings]


def fit_arrays(
    decisions: Sequence[Decision],
    scores: Any,
    labels: Any,
    kind: str,
    regions: Mapping[str, tuple[int, ...]],
    joint: bool,
    options: Mapping[str, Any],
) -> Rules:
    """See `calibseg.decisions.fit`."""
    if labels is None:
        raise BadInput("rules are fitted on labelled cases: give the labels")
    cases = _cases(scores, labels, kind, dict(options))
    source: Source = "masks" if kind == "masks" else "probabilities"
    check_decisions(decisions, source)
    if not cases:
        raise BadInput("there is no case to fit on: the list of scores is empty")
    softmax, number = cases[0].prediction.activation == "softmax", max(one.classes for one in cases)
    _check_ignored(kind, options, number)
    if regions and not softmax:
        raise BadInput("regions unite classes that exclude each other; sigmoid channels are structures as they are")
    if softmax:
        structures = [Structure(str(row), ids, ids) for row, ids in rows(number, regions).items()]
    else:
        structures = [Structure(str(k), (k,), (k,)) for k in range(number)]
    fitted_on = []
    for one in sorted(cases, key=lambda one: one.prediction.patient):
        case = one.prediction
        if kind != "masks" and one.classes != number:
            raise BadInput(f"{case.case_id} has {one.classes} classes, another case has {number}")
        assert case.labels is not None
        refuse_unknown_labels(case.case_id, case.labels, number if softmax else 2, IGNORED, of="channel")
        passed = one.passed(structures, parts_of(decisions))
        fitted_on.append(FoundCase(case.case_id, case.patient, passed.findings))
    fitted = fit_rules(decisions, fitted_on, structures, source, joint)
    facts = {**fitted.fitted_on, "kind": kind}
    return replace(fitted, activation=cases[0].prediction.activation, fitted_on=facts)


def apply_arrays(rules: Rules, scores: Any, kind: str | None, options: Mapping[str, Any]) -> list[Decided]:
    """See `Rules.apply`. kind: unless said, that of the scores they were fitted on."""
    kind = kind or str(rules.fitted_on.get("kind", rules.source))
    if (kind == "masks") != (rules.source == "masks"):
        raise BadInput(f"the rules were fitted on {rules.source}, and these are {kind}")
    highest = max(channel for one in rules.structures for channel in one.channels)
    _check_ignored(kind, options, highest + 1)
    given = {"activation": rules.activation, "classes": highest + 1, **options}
    decided, softmax = [], rules.activation == "softmax"
    for one in _cases(scores, given.pop("labels", None), kind, given):
        case = one.prediction
        if one.classes > highest + 1 or (kind != "masks" and one.classes <= highest):
            known = f"classes 0 to {highest}" if softmax else f"{highest + 1} channels"
            raise BadInput(f"{case.case_id} has {one.classes} classes, but the rules are about {known}")
        if case.labels is not None:
            refuse_unknown_labels(case.case_id, case.labels, highest + 1 if softmax else 2, IGNORED, of="channel")
        if "patients" in options and case.patient in rules.fitted_on.get("patients", ()):
            raise BadInput(f"{case.case_id} is of the patient {case.patient!r}, on whom the rules were fitted")
        passed = one.passed(rules.structures, parts_of(rules.decisions), rules.thresholds)
        masks = rules.masks(passed, case.spacing_mm)
        masks = {key: mask[0] if one.flat else mask for key, mask in masks.items()}
        decided.append(Decided(rules.numbers(passed.findings), masks, passed.findings))
    return decided


class _Case(NamedTuple):
    """A case in memory: a prediction, whose scores are a label map where there are masks only."""

    prediction: Prediction
    flat: bool  # a 2-D image, here a volume of one plane

    @property
    def masks(self) -> bool:
        return self.prediction.scores.ndim == 3

    @property
    def classes(self) -> int:
        if not self.masks:
            return self.prediction.scores.shape[0]
        labels = self.prediction.labels
        known = labels[labels != IGNORED] if labels is not None else self.prediction.scores
        return max(2, 1 + int(self.prediction.scores.max(initial=0)), 1 + int(known.max(initial=0)))

    def passed(self, structures: Sequence[Structure], parts: Collection[Part], thresholds: Any = None) -> CasePass:
        case = self.prediction
        try:
            return pass_over(case, structures, parts, IGNORED, thresholds)
        except BadInput as error:
            raise BadInput(f"{case.case_id}: {error}") from error


def _cases(scores: Any, labels: Any, kind: str, options: dict[str, Any]) -> list[_Case]:
    if kind not in KINDS:
        raise BadInput(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    classes = options.pop("classes", None)
    if kind == "masks":
        return _masks(scores, labels, options)
    batch = options.pop("batch", None)
    cases = arrays.split_cases(scores, labels, classes=classes, batch=batch)
    made = arrays.predictions(cases, kind, **options)  # pyright: ignore[reportArgumentType] checked above
    for one in made:
        softmax, wanted = one.activation == "softmax", one.scores.shape
        if one.labels is not None and (one.labels.dtype.kind not in "iu" or one.labels.shape != wanted[int(softmax) :]):
            raise BadInput(
                f"the labels of {one.case_id} must be integers {list(wanted[int(softmax) :])}, not"
                f" {one.labels.dtype} {list(one.labels.shape)}"
            )
    spacing = options.get("spacing_mm")
    spacings = spacing if isinstance(spacing, list) else [spacing] * len(made)
    return [_case(*one) for one in zip(made, (given.ndim == 3 for given in cases.scores), spacings, strict=True)]


def _check_ignored(kind: str, options: Mapping[str, Any], classes: int) -> None:
    """Refuse to ignore one of the classes of masks, which do not say themselves how many there are."""
    if kind == "masks" and options.get("ignore_label") is not None:
        arrays.check_ignore_label(options["ignore_label"], classes)


def _masks(masks: Any, labels: Any, options: Mapping[str, Any]) -> list[_Case]:
    """Label maps [z y x] or [y x], one or a list of them."""
    if options.get("activation", "softmax") != "softmax":
        raise BadInput("masks are label maps of classes that exclude each other: they have no sigmoid channels")
    if strange := [name for name in options if name not in ("spacing_mm", "patients", "ignore_label", "activation")]:
        raise BadInput(f"masks do not know the option {strange[0]!r}; several cases are a list of masks")
    listed = isinstance(masks, list | tuple)
    maps = [arrays.to_numpy(one) for one in (masks if listed else [masks])]
    targets = [None] * len(maps) if labels is None else labels if listed else [labels]
    spacing, patients = options.get("spacing_mm"), options.get("patients")
    spacings = spacing if isinstance(spacing, list) else [spacing] * len(maps)
    owners = [f"case {number}" for number in range(len(maps))] if patients is None else [str(one) for one in patients]
    for what, many in (("labels", targets), ("spacings", spacings), ("patients", owners)):
        if len(many) != len(maps):
            raise BadInput(f"there are {len(maps)} masks, but {len(many)} {what}")
    cases = []
    for number, (mask, target, edges) in enumerate(zip(maps, targets, spacings, strict=True)):
        name = f"case {number}"
        truth = None if target is None else arrays.mark_ignored(arrays.to_numpy(target), options.get("ignore_label"))
        for what, one in (("mask", mask), ("labels", truth)):
            if one is not None and (one.dtype.kind not in "biu" or one.ndim not in (2, 3) or one.shape != mask.shape):
                raise BadInput(
                    f"the {what} of {name} must be integers [z y x] or [y x], of one shape, not {one.dtype}"
                    f" {list(one.shape)}"
                )
        flat = mask.ndim == 2
        mask, truth = (one[None] if flat and one is not None else one for one in (mask, truth))
        space = arrays.case_spacing(edges, 2 if flat else 3)
        cases.append(_case(Prediction(name, owners[number], mask, "probabilities", space, labels=truth), flat, edges))
    return cases


def _case(prediction: Prediction, flat: bool, spacing_mm: Any) -> _Case:
    """A picture of which only (y, x) is known is 1 mm thick, as picture files are: its mm3 are mm2."""
    if flat and spacing_mm is not None and len(spacing_mm) == 2:
        prediction = replace(prediction, spacing_mm=(1.0, *prediction.spacing_mm[1:]))
    return _Case(prediction, flat)
