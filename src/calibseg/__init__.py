"""calibseg: segmentation networks that tell the truth about how sure they are.

    from calibseg import losses, measure, calibrators

    loss = losses.NACL(weight=0.1)                                          # train: an nn.Module like any other
    measured = measure(logits, labels, kind="logits", spacing_mm=(1, 1, 1))    # measure: .values, .table, .plot()
    repaired = calibrators.Temperature().fit(logits, labels, kind="logits")    # repair: .transform(test_logits)

Everything here is imported when it is first used, so that `import calibseg` costs nothing. The stages of an experiment
(prepare, split, train, predict, calibrate, score, rank, report, benchmark) are functions of `calibseg.api`.
"""

from importlib import import_module

__version__ = "0.1.0"

_MODULES = {
    "calibrators": "calibseg.calibrators",
    "datasets": "calibseg.data.datasets",
    "decisions": "calibseg.decisions",
    "losses": "calibseg.losses",
    "metrics": "calibseg.metrics",
    "networks": "calibseg.networks",
}
_HOMES = {
    "BadInput": "calibseg.core.types",
    "CalibrationMonitor": "calibseg.metrics.statistics.monitor",
    "Case": "calibseg.core.types",
    "Measured": "calibseg.api.in_memory",
    "Prediction": "calibseg.core.types",
    "Split": "calibseg.core.types",
    "available": "calibseg.core.registry",
    "create": "calibseg.core.registry",
    "measure": "calibseg.api.in_memory",
}
__all__ = [*_MODULES, *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll] what they are, __init__.pyi says


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'calibseg' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__", "api"]
