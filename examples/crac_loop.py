"""Train with CRaC: it also looks at validation batches and updates its multipliers once per epoch."""

import warnings

import torch
from torch import nn

from calibseg.losses import CRaC

torch.manual_seed(0)
warnings.filterwarnings("ignore", message="crac")  # five epochs of this toy stay under-confident
network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
loss = CRaC().setup(num_classes=3)

image, held_out = (torch.rand(n, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3) for n in (4, 2))
target, held_out_target = (image[:, 0] * 3).long(), (held_out[:, 0] * 3).long()

for epoch in range(5):
    for step in range(4):
        optimiser.zero_grad()
        loss(network(image), target).backward()
        optimiser.step()
    with torch.no_grad():
        loss.observe(network(held_out), held_out_target)
    log = loss.end_epoch()
    print(epoch, {name: round(log[name], 4) for name in ("lambda_inner_0", "lambda_outer_0", "interior_confidence")})
