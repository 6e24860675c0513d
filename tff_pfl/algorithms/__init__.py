"""One method per file, each reading like its paper's pseudocode."""
