"""The stable Python face of the stages: what the commands do, as functions.

from calibseg.api import predict
predict("runs/a", cases="test")                                     # logits of the test cases
predict("runs/a", input="scan.nii.gz", output="out").structures     # maps of a scan, and what they say
"""

from calibseg.predict import predict

__all__ = ["predict"]
