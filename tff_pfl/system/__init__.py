"""Processes, cores, folders and memory of this machine, without TensorFlow."""
