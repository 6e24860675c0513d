"""Public names of TFF, by their paths in version 0.87.

Other modules use this one as `tff`. TFF 0.88 keeps what runs on TensorFlow. Its
core language is the package `federated_language`, which has some names under
other paths. This module finds names where the installed TFF has them. Some
names have no counterpart in 0.88: see "The next TFF" in BUILD_NOTES.md.

`system.private_api` has the names outside of TFF's public API.
"""

import importlib
import os
from typing import Any

import tensorflow_federated

__version__ = tensorflow_federated.__version__
# The folder of the installed TFF.
FOLDER = os.path.dirname(tensorflow_federated.__file__)

_LANGUAGE = 'federated_language'
# Where TFF 0.88 has the names of a path of 0.87, in the order of the search.
_PLACES = {
  '': (_LANGUAGE, 'tensorflow_federated'),
  'framework': (f'{_LANGUAGE}.framework', 'tensorflow_federated.framework'),
  'program': (f'{_LANGUAGE}.program', 'tensorflow_federated.program'),
  'structure': (f'{_LANGUAGE}.common_libs.structure',),
  'types': (f'{_LANGUAGE}.framework', 'tensorflow_federated.tensorflow'),
}
# Names that TFF 0.88 has changed.
_RENAMED = {
  'types.contains': 'type_contains',
  'types.contains_only': 'type_contains_only',
  'types.tensorflow_to_type': 'to_type',
}


class _Names:
  """The names of a path of TFF 0.87, in TFF 0.88."""

  def __init__(self, path: str):
    self._path = path

  def __getattr__(self, name: str) -> Any:
    path = f'{self._path}.{name}'.lstrip('.')
    if path in _PLACES:
      return _Names(path)
    for place in _PLACES[self._path]:
      module, _, attributes = place.partition('.')
      owner = importlib.import_module(module)
      for attribute in filter(None, attributes.split('.')):
        owner = getattr(owner, attribute)
      try:
        return getattr(owner, _RENAMED.get(path, name))
      except AttributeError:
        continue
    raise AttributeError(f'The installed TFF {__version__} has no tff.{path}.')


def __getattr__(name: str) -> Any:
  if name.startswith('__'):
    raise AttributeError(name)
  # Only TFF 0.87 has it.
  if hasattr(tensorflow_federated, 'federated_computation'):
    return getattr(tensorflow_federated, name)
  return getattr(_Names(''), name)
