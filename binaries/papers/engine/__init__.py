"""Trials, tables, claims and figures of the papers' experiments."""
