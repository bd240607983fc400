# Written by scripts/stubs.py (make stubs): do not edit.
from calibseg.data.datasets.acdc import ACDC as ACDC
from calibseg.data.datasets.brats19 import BraTS19 as BraTS19
from calibseg.data.datasets.busi import BUSI as BUSI
from calibseg.data.datasets.decathlon import Decathlon as Decathlon
from calibseg.data.datasets.flare import FLARE as FLARE
from calibseg.data.datasets.folder import Folder as Folder
from calibseg.data.datasets.hippocampus import Hippocampus as Hippocampus
from calibseg.data.datasets.lidc4 import LIDC4 as LIDC4
from calibseg.data.datasets.mrbrains18 import MRBrainS18 as MRBrainS18
from calibseg.data.datasets.nnunet import NNUNet as NNUNet
from calibseg.data.datasets.phantom import Phantom as Phantom
from calibseg.data.datasets.promise12 import PROMISE12 as PROMISE12
from calibseg.data.datasets.prostate import Prostate as Prostate
