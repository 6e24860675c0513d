"""Models and methods in the forms that production systems take."""
