"""Fitted calibrators in use: their files, which was selected, and the probabilities they give."""
