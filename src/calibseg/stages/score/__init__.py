"""The stage score: predictions and labels to a score table."""
