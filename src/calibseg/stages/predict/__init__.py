"""What the stage `predict` is made of: an ensemble of networks, logits of cases, and maps on a scan's own grid."""
