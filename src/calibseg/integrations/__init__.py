"""Other people's houses: what fits the losses, calibrators and metrics into them. A host is imported inside only."""
