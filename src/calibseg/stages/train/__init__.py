"""What the stage `train` is made of: the cases and batches of a recipe, validation, state, record and screen."""
