# Written by scripts/stubs.py (make stubs): do not edit.
from calibseg.networks.attention_unet import AttentionUNet as AttentionUNet
from calibseg.networks.nnunet import NNUNet as NNUNet
from calibseg.networks.transunet import TransUNet as TransUNet
from calibseg.networks.unet import UNet as UNet
from calibseg.networks.unetpp import UNetPP as UNetPP
