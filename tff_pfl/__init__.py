"""Personalized federated learning on TensorFlow Federated."""

from tff_pfl import shutdown

shutdown.drop_default_context_at_exit()
