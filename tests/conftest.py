"""Settings every test runs under, made before TensorFlow is imported."""

import os

import pytest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('MPLBACKEND', 'Agg')


@pytest.fixture(scope='session')
def runtime():
  """The default runtime, TFF's default for the whole session."""
  from tff_pfl import runtime as runtime_lib

  with runtime_lib.create_runtime(runtime_lib.DEFAULT) as created:
    created.install()
    yield created
