"""Train with NACL in a bare PyTorch loop; any other plain loss goes in the same place."""

import torch
from torch import nn

from calibseg.losses import NACL

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
loss = NACL(weight=0.1)

image = torch.rand(4, 1, 32, 32)
target = (image[:, 0] * 3).long()  # integer labels [n y x]

for step in range(20):
    optimiser.zero_grad()
    terms = loss.terms(network(image), target)
    sum(terms.values()).backward()  # pyright: ignore[reportAttributeAccessIssue]
    optimiser.step()
print({name: round(term.item(), 3) for name, term in terms.items()})
