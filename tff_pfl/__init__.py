"""Personalized federated learning on TensorFlow Federated."""

from tff_pfl.system import cores, shutdown

cores.divide()
shutdown.drop_default_context_at_exit()
