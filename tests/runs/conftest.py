"""What tests of runs share."""

import dataclasses

import numpy as np
import pytest

from tff_pfl import runtime as runtime_lib
from tff_pfl.runs import report, run_config


def _without_pictures():
  """Runs draw nothing, which takes most of the time of a short one."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, '_write_pictures', lambda *_: None)
    yield


# Of a test, and of all tests of a file and its fixtures.
without_pictures = pytest.fixture(_without_pictures)
no_pictures = pytest.fixture(_without_pictures, scope='module')


class _Kept:
  """A runtime that stays open."""

  def __init__(self, runtime):
    self._runtime = runtime

  def __getattr__(self, name):
    return getattr(self._runtime, name)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    pass

  def close(self):
    pass


@pytest.fixture(scope='module')
def one_runtime(runtime):
  """All runs compute on one runtime, which loads each process once."""
  kept = _Kept(runtime)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(runtime_lib.RUNTIMES, 'in_process', lambda **_: kept)
    yield


# Settings that processes do not depend on.
_OF_RUNS = (
  'num_rounds',
  'rounds_per_evaluation',
  'num_final_evaluations',
  'initial_run',
  'num_warmup_rounds',
  'join_rounds',
)


@pytest.fixture(scope='module')
def one_process():
  """Equal settings and initial weights make one process, built once."""
  build, built = run_config.RunConfig.build_process, {}

  def build_once(config, model):
    settings = {
      field.name: getattr(config, field.name)
      for field in dataclasses.fields(config)
      if field.name not in _OF_RUNS
    }
    weights = [np.asarray(v).tobytes() for v in model.initial_weights.values()]
    key = repr((settings, model.domains, weights))
    if key not in built:
      built[key] = build(config, model)
    return built[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run_config.RunConfig, 'build_process', build_once)
    yield
