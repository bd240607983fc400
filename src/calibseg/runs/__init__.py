"""An experiment on disk: recipe, folder, checkpoint, lock, signals, provenance."""
