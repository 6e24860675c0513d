"""Runs: the round loop, evaluation, durable state and reports."""
