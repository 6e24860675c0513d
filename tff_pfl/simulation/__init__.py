"""Runs: the round loop, what is stored, reports."""
