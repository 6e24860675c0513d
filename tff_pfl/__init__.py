"""Personalized federated learning on TensorFlow Federated."""

import importlib.util

__version__ = '0.1.0'

for _name in ('tensorflow', 'tensorflow_federated'):
  if importlib.util.find_spec(_name) is None:
    raise ImportError(
      f'tff_pfl needs TensorFlow 2.21 and TensorFlow Federated 0.87, and '
      f'{_name} is not installed here. docs/programs.md, "In an environment of '
      'your own", has the two lines that install all it needs.',
      name=_name,
    )

from tff_pfl import tff_repairs  # noqa: E402

tff_repairs.before_tff()

from tff_pfl.system import tf_import  # noqa: E402, F401, I001
from tff_pfl.system import cores, environment, shutdown  # noqa: E402

cores.divide()
environment.set_defaults()
shutdown.drop_default_context_at_exit()
