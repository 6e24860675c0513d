"""Runs: the round loop, evaluation, what is stored, reports."""
