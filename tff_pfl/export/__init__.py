"""Models and methods in the formats of production systems."""
