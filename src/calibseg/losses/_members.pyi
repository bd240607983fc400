# Written by scripts/stubs.py (make stubs): do not edit.
from calibseg.losses.bwcr import BWCR as BWCR
from calibseg.losses.cals import CALS as CALS
from calibseg.losses.ce import CE as CE
from calibseg.losses.ce_dice import CEDice as CEDice
from calibseg.losses.crac import CRaC as CRaC
from calibseg.losses.dml import DML as DML
from calibseg.losses.dsc_plus_plus import DSCPlusPlus as DSCPlusPlus
from calibseg.losses.ecp import ECP as ECP
from calibseg.losses.focal import Focal as Focal
from calibseg.losses.focal_brier import FocalBrier as FocalBrier
from calibseg.losses.ls import LS as LS
from calibseg.losses.mbls import MbLS as MbLS
from calibseg.losses.meep import MEEP as MEEP
from calibseg.losses.ml1_ace import ML1ACE as ML1ACE
from calibseg.losses.nacl import NACL as NACL
from calibseg.losses.svls import SVLS as SVLS
