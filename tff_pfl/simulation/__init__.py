"""Experiments: the round loop, durable runs, reports."""
