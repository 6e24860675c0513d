"""Processes, cores and memory of this machine; ending on signals."""
