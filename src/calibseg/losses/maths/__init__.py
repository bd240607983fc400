"""Mathematics that several losses share: sums over voxels with their gradients, windows, penalties, multipliers."""
