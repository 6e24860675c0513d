"""Measures the speed of rounds on named workloads, next to a reference."""
