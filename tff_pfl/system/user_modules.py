"""Modules of users, which register methods, models and datasets."""

import importlib.util
import os
import sys
import types
from collections.abc import Iterable


def absolute(name: str) -> str:
  """The name of a module, or the absolute path of a .py file."""
  is_file = name.endswith('.py')
  return os.path.abspath(os.path.expanduser(name)) if is_file else name


def load(names: Iterable[str]) -> list[types.ModuleType]:
  """Imports modules by name, and .py files by path, each once."""
  return [
    _of_file(name) if name.endswith('.py') else importlib.import_module(name)
    for name in map(absolute, names)
  ]


def _of_file(path):
  # It may be imported by name, and another module may have the file's name.
  for module in list(sys.modules.values()):
    if getattr(module, '__dict__', {}).get('__file__') == path:
      return module
  spec = importlib.util.spec_from_file_location(path, path)
  sys.modules[path] = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(sys.modules[path])
  except BaseException:
    del sys.modules[path]
    raise
  return sys.modules[path]
