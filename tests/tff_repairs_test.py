"""Tests of modules that are imported when they are used."""

import concurrent.futures
import inspect
import os
import subprocess
import sys
import textwrap
import types

import pytest

from tff_pfl import tff_repairs

_SLOW = """
import time
time.sleep(0.2)
from slow_package import part
x = part.y + 1
"""


@pytest.fixture(name='package')
def _package(tmp_path, monkeypatch):
  folder = tmp_path / 'slow_package'
  folder.mkdir()
  (folder / '__init__.py').write_text(_SLOW)
  (folder / 'part.py').write_text('y = 1')
  monkeypatch.syspath_prepend(str(tmp_path))
  tff_repairs._use_later('slow_package')
  yield sys.modules['slow_package']
  for name in ('slow_package', 'slow_package.part'):
    sys.modules.pop(name, None)


def test_a_module_runs_when_a_name_is_used_and_no_earlier(package):
  import slow_package
  import slow_package.part

  assert slow_package is package
  assert not hasattr(package, '__warningregistry__')
  inspect.unwrap(package)
  assert isinstance(package, tff_repairs._UsedLater)
  assert slow_package.part.y == 1
  assert slow_package.x == 2
  assert not isinstance(package, tff_repairs._UsedLater)
  with pytest.raises(AttributeError, match='nothing'):
    _ = slow_package.nothing


def test_threads_wait_for_the_module(package):
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    values = pool.map(lambda _: package.x, range(4))
    assert [*values] == [2] * 4


def test_a_module_that_fails_is_run_again(package, tmp_path):
  (tmp_path / 'slow_package' / 'part.py').write_text('1 / 0')
  for _ in range(2):
    with pytest.raises(ZeroDivisionError):
      _ = package.x


@pytest.mark.parametrize('before', [None, '0'])
def test_a_module_changes_no_choice_of_keras(
  package, tmp_path, monkeypatch, before
):
  monkeypatch.setenv('TF_USE_LEGACY_KERAS', before or '')
  if before is None:
    monkeypatch.delenv('TF_USE_LEGACY_KERAS')
  (tmp_path / 'slow_package' / '__init__.py').write_text(
    "import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'; x = 1"
  )
  assert package.x == 1
  assert os.environ.get('TF_USE_LEGACY_KERAS') == before


def test_an_unknown_module_is_not_there():
  tff_repairs._use_later('no_such_package')
  assert 'no_such_package' not in sys.modules


def test_a_type_is_read_once_as_long_as_it_is_used(monkeypatch):
  class Type:
    pass

  read = []

  def deserialize_type(proto):
    read.append(proto.SerializeToString())
    return Type()

  module = types.SimpleNamespace(deserialize_type=deserialize_type)
  monkeypatch.setattr(tff_repairs, '_module_of_tff', lambda _: module)
  tff_repairs._read_types_once()
  protos = [
    types.SimpleNamespace(SerializeToString=lambda text=text: text)
    for text in (b'a', b'b', b'a')
  ]
  first, second, again = map(module.deserialize_type, protos)
  assert first is again is not second
  assert read == [b'a', b'b']
  del first, again
  module.deserialize_type(protos[0])
  assert read == [b'a', b'b', b'a']


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_rare_parts_of_tff_work_when_they_are_used():
  program = textwrap.dedent("""
    import os, sys
    from tff_pfl import tff_api as tff
    import numpy as np, tensorflow as tf
    from tff_pfl import tff_repairs
    rare = (*tff_repairs._RARELY_USED, tff_repairs._TFF_JAX)
    print(*(type(sys.modules[name]).__name__ for name in rare))

    @tff.jax.computation(np.int32)
    def increment(x):
      return x + 1

    print(increment.type_signature)
    import tensorflow_model_optimization, tensorflow_probability
    tensorflow_model_optimization.sparsity, tensorflow_probability.distributions
    print(tf.keras.Model.__module__, 'TF_USE_LEGACY_KERAS' in os.environ)
  """)
  environment = {
    name: value
    for name, value in os.environ.items()
    if name != 'TF_USE_LEGACY_KERAS'
  }
  result = subprocess.run(
    [sys.executable, '-c', program],
    env=environment,
    capture_output=True,
    text=True,
    check=True,
  )
  assert result.stdout.splitlines() == [
    '_UsedLater _UsedLater _UsedLater',
    '(int32 -> int32)',
    'keras.src.models.model False',
  ]
