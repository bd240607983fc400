"""Files that others made, as arrays: NIfTI, .npz, images, and the folder layouts they come in. Nothing is unpickled."""
