"""Everything that the commands do, for Python: the stages as functions, and measuring in memory.

from calibseg import api

api.prepare("phantom", None, "work/phantom")                            # a raw study becomes cases on one grid
api.split("work/phantom")                                               # train, validation and test, per patient
api.train("cpu/phantom-nacl", "runs/a", changes=["train.epochs=3"])     # a recipe: a name, a TOML file or a dict
api.predict("runs/a", subset="validation")                              # logits of the validation cases
api.calibrate("runs/a", ["temperature"]).chosen                         # fitted on them; named in runs/a
api.predict("runs/a", subset="test")
api.score("runs/a", calibrator="chosen").summary                        # runs/a/scores-test+temperature.csv
api.predict("runs/a", input="scan.nii.gz", output="out").structures     # calibrated maps of a scan, and what they say
api.rank(["runs/a/scores-test.csv", "runs/b/scores-test.csv"])          # ranks, tests, comparisons
api.report(["runs/a", "runs/b"], "report.html")
api.benchmark("cpu/phantom", "results/phantom")                         # all of it for a grid; what exists is skipped

Predictions that anybody made are folders:

api.score(predictions="p", labels="l", output="scores.csv")
api.calibrate(predictions="val_p", labels="val_l", apply="test_p", output="out", methods=["temperature"])
"""

from calibseg.api.in_memory import Measured, measure
from calibseg.api.stages import benchmark, calibrate, predict, prepare, rank, report, score, split, train

__all__ = [
    "Measured",
    "benchmark",
    "calibrate",
    "measure",
    "predict",
    "prepare",
    "rank",
    "report",
    "score",
    "split",
    "train",
]
