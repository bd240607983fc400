"""Put a calibseg loss into MONAI: a DynUNet on small 3-D volumes, with Dice beside MbLS."""

import torch
from monai.networks.nets import DynUNet

from calibseg.losses import MbLS

torch.manual_seed(0)
network = DynUNet(3, 1, 3, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[4, 8, 16])
optimiser = torch.optim.Adam(network.parameters(), 1e-3)
loss = MbLS(margin=5.0, weight=0.1, dice_weight=1.0)

image = torch.rand(1, 1, 16, 32, 32)
target = (image * 3).long()  # MONAI's shape [n 1 z y x] is taken as it is

for step in range(3):
    optimiser.zero_grad()
    value = loss(network(image), target)
    value.backward()
    optimiser.step()
    print(step, round(value.item(), 4))
