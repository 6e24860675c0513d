"""Processes, cores, folders, memory and private APIs that others build on."""
