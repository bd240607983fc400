"""How calibrators are fitted: streams of voxels, Newton steps, logistic regression, trees of temperatures."""
