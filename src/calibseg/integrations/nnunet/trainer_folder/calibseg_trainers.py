"""Where nnU-Net looks for trainers (`export nnUNet_extTrainer=$(calibseg nnunet path)`): every name is passed on."""

from calibseg.integrations.nnunet.trainers import __dir__, __getattr__

__all__ = ["__dir__", "__getattr__"]
