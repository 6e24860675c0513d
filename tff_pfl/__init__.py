"""Personalized federated learning on TensorFlow Federated."""

from tff_pfl import cores, shutdown

cores.divide()
shutdown.drop_default_context_at_exit()
