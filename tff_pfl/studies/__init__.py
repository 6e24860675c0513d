"""Studies: methods in conditions, with several seeds, as data."""
