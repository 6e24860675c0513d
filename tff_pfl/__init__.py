"""Personalized federated learning on TensorFlow Federated."""

import importlib.util
import os

__version__ = '0.1.0'

for _name in ('tensorflow', 'tensorflow_federated'):
  if importlib.util.find_spec(_name) is None:
    raise ImportError(
      f'tff_pfl needs TensorFlow 2.14 and TensorFlow Federated 0.87, and '
      f'{_name} is not installed here. Install what its requirements.txt '
      'locks: pip install --no-deps --require-hashes -r requirements.txt',
      name=_name,
    )

# Before TensorFlow is imported: its start-up messages help nobody here.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from tff_pfl.system import cores, shutdown  # noqa: E402

cores.divide()
shutdown.drop_default_context_at_exit()
