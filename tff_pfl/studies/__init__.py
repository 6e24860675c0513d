"""Comparisons of several methods over seeds and hyperparameters."""
