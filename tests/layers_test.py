"""Tests of what may import what."""

import ast
import graphlib
import pathlib

import pytest

import tff_pfl

_ROOT = pathlib.Path(tff_pfl.__file__).parent
# Each room may import those before it.
_ROOMS = (
  'errors',
  'fields',
  'tff_repairs',
  'tff_api',
  'system',
  'datasets',
  'models',
  'runtime',
  'core',
  'methods',
  'export',
  'plots',
  'runs',
  'studies',
)


def _imports(path, *, for_types=True):
  """The modules of this library that a file imports, as their parts.

  Args:
    for_types: False to leave out those under `if TYPE_CHECKING`.
  """
  tree = ast.parse(path.read_text('utf-8'))
  if not for_types:
    tree.body = [
      node
      for node in tree.body
      if not isinstance(node, ast.If)
      or ast.unparse(node.test) != 'TYPE_CHECKING'
    ]
  for node in ast.walk(tree):
    names = []
    if isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    for name in names:
      package, *parts = name.split('.')
      if package == 'tff_pfl' and parts:
        yield tuple(parts)


def _parts(path):
  parts = path.relative_to(_ROOT).with_suffix('').parts
  return parts[:-1] if parts[-1] == '__init__' else parts


@pytest.mark.parametrize('room', _ROOMS)
def test_rooms_import_those_below_them(room):
  allowed = _ROOMS[: _ROOMS.index(room) + 1]
  paths = [*(_ROOT / room).rglob('*.py'), _ROOT / f'{room}.py']
  for path in filter(pathlib.Path.is_file, paths):
    actual = {parts[0] for parts in _imports(path)}
    assert room != 'core' or 'runtime' not in actual, path
    assert actual <= {*allowed}, f'{path} imports {actual - {*allowed}}'


def test_every_room_has_its_place():
  rooms = {_parts(path)[0] for path in _ROOT.rglob('*.py') if _parts(path)}
  assert rooms == {*_ROOMS}


def test_no_modules_import_each_other_in_a_circle():
  modules = {_parts(path): path for path in _ROOT.rglob('*.py')}
  graph = {}
  for parts, path in modules.items():
    # A package's own `__init__` may gather what is in it.
    graph[parts] = {
      other
      for imported in _imports(path, for_types=False)
      for other in (imported, imported[:-1])
      if other in modules
      and other
      and other != parts
      # Of a name and its module, the longer one.
      and not (other == imported[:-1] and imported in modules)
    }
  graphlib.TopologicalSorter(graph).prepare()
