"""Tests of the one place that knows TFF's public names."""

import pathlib
import re
import sys
import types

import pytest
import tensorflow_federated

import binaries
import tff_pfl
from tff_pfl import tff_api

_FOLDERS = [
  pathlib.Path(package.__file__).parent for package in (tff_pfl, binaries)
]
# They import TFF's public names and its other modules.
_MAY = ('tff_api.py', 'system/private_api.py')
_IMPORT = r'^\s*(?:import|from) tensorflow_federated\b'


def test_no_other_module_imports_tff():
  tests, (library, _) = pathlib.Path(__file__).parent, _FOLDERS
  importers = {
    path
    for folder in (*_FOLDERS, tests)
    for path in folder.rglob('*.py')
    if re.search(_IMPORT, path.read_text('utf-8'), re.MULTILINE)
  }
  # One has a program that imports it.
  may = {pathlib.Path(__file__), tests / 'system' / 'shutdown_test.py'}
  assert importers == may | {library / name for name in _MAY}


def test_names_are_those_of_the_installed_version():
  assert tff_api.federated_map is tensorflow_federated.federated_map
  assert tff_api.framework.Call is tensorflow_federated.framework.Call
  assert tff_api.__version__ == tensorflow_federated.__version__
  with pytest.raises(AttributeError, match='no_such_name'):
    _ = tff_api.no_such_name


def _package(monkeypatch, name, **members):
  package = types.SimpleNamespace(**members)
  monkeypatch.setitem(sys.modules, name, package)
  return package


def test_names_of_the_next_version_are_found_by_their_old_paths(monkeypatch):
  language = _package(
    monkeypatch,
    'federated_language',
    federated_map='map',
    framework=types.SimpleNamespace(Call='call', type_contains='contains'),
    program=types.SimpleNamespace(FederatedContext='context'),
    common_libs=types.SimpleNamespace(
      structure=types.SimpleNamespace(flatten='flatten')
    ),
  )
  tff = types.SimpleNamespace(
    aggregators=types.SimpleNamespace(SumFactory='sum'),
    framework=types.SimpleNamespace(RemoteExecutor='remote'),
    program=types.SimpleNamespace(FileProgramStateManager='file'),
    tensorflow=types.SimpleNamespace(to_type='to_type'),
    learning=types.SimpleNamespace(),
  )
  monkeypatch.setattr(tff_api, 'tensorflow_federated', tff)
  monkeypatch.setitem(sys.modules, 'tensorflow_federated', tff)

  assert tff_api.federated_map == language.federated_map
  assert tff_api.framework.Call == 'call'
  assert tff_api.framework.RemoteExecutor == 'remote'
  assert tff_api.types.contains == 'contains'
  assert tff_api.types.tensorflow_to_type == 'to_type'
  assert tff_api.program.FederatedContext == 'context'
  assert tff_api.program.FileProgramStateManager == 'file'
  assert tff_api.structure.flatten == 'flatten'
  assert tff_api.aggregators.SumFactory == 'sum'
  with pytest.raises(AttributeError, match=r'has no tff\.framework\.x'):
    _ = tff_api.framework.x
  with pytest.raises(AttributeError):
    _ = tff_api.learning.compression_aggregator
