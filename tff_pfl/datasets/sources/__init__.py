"""The datasets, with one file per dataset or family."""
