"""What the stage `predict` is made of: a panel of networks, their slices, and probabilities on the scan's own grid."""
