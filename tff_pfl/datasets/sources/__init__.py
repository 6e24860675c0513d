"""The data sets: one file each, or one per family."""
