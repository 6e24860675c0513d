"""Where the data sets come from: one file each, or one per family."""
