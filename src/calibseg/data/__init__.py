"""From raw studies to batches: layouts, preprocessing, prepared cases, splits, slices, augmentation."""
