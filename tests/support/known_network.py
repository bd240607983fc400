"""Runs with a network whose answer is known, and scans to show to it."""

import nibabel as nib
import numpy as np

from calibseg.core import plugins
from calibseg.core.types import Split
from calibseg.runs import folders
from calibseg.runs.checkpoint import build_network, save_weights
from calibseg.runs.info import RunInfo, write_run

TURNED = np.array(
    [[0, -1.25, 0, 3.0], [0, 0, 2.0, 1.0], [-0.75, 0, 0, 2.0], [0, 0, 0, 1.0]]
)  # none of its axes in place

# l_1 - l_0 = 8 (grey - 1/2): where the grey value is known, the probability of class 1 is. l_2 is out of the question.
NETWORK = '''"""A network whose answer can be written down."""
import torch
from calibseg.networks import Network

class Known(Network):
    def __init__(self, in_channels, num_classes, slope: float = 8.0):
        super().__init__(in_channels, num_classes)
        self.slope = torch.nn.Parameter(torch.tensor(slope))

    def segment(self, image):
        grey = image.mean(1, keepdim=True)
        low = torch.full_like(grey, -30.0)
        return torch.cat([torch.zeros_like(grey), self.slope * (grey - 0.5), *[low] * (self.num_classes - 2)], 1)
'''


def make_run(folder, *, channels=("T1",), classes=("background", "inside", "never"), slope=8.0, **protocol):
    """A run folder as training leaves it, with a network whose answer is known."""
    folder.mkdir(parents=True)
    source = folder / "known.py"
    source.write_text(NETWORK)
    plugins.allow(str(source))
    table = {"name": str(source), "slope": slope}
    regions, protocol = {"all": [1, 2]}, {"intensity": "keep", **protocol}
    info = RunInfo(folder.name, {"network": table}, classes, channels, Split((), (), (), 0), regions, protocol)
    write_run(folders.RunFolder(folder), info)
    save_weights(folders.RunFolder(folder).weights, build_network(table, list(channels), list(classes)), {})
    return folder


def make_scan(path, shape=(13, 17, 10), affine=TURNED, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = np.random.default_rng(seed).random(shape).astype(np.float32)
    nib.save(nib.Nifti1Image(grey, affine), path)
    return grey
