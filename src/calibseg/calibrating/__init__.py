"""What the stage `calibrate` is made of: cross-fitting, the choice, and calibrators and their probabilities on disk."""
