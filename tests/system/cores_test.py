"""Tests of how clients share the cores."""

import os
import subprocess
import sys

import pytest

from tff_pfl.system import cores


@pytest.mark.parametrize(
  ('num_clients', 'expected'), [(None, 1), (1, 8), (3, 2), (8, 1), (20, 1)]
)
def test_cores_are_divided_among_clients(monkeypatch, num_clients, expected):
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)
  assert cores.threads_per_client(num_clients) == expected


def _run_program(code, **environment):
  result = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    timeout=120,
    env={**os.environ, **environment},
    check=False,
  )
  assert result.returncode == 0, result.stderr[-2000:]
  return result


_PRINT = 'print(tf.config.threading.get_intra_op_parallelism_threads())'


_USE = 'import tff_pfl as pfl; pfl.RunError; '


@pytest.mark.slow
def test_using_the_library_limits_the_threads_of_an_operation():
  code = f'{_USE} import tensorflow as tf; {_PRINT}'
  assert _run_program(code).stdout == '1\n'
  assert _run_program(code, TF_NUM_INTRAOP_THREADS='3').stdout == '0\n'


@pytest.mark.slow
def test_a_program_that_used_tensorflow_before_is_warned():
  code = 'import tensorflow as tf; tf.constant(1); ' + _USE + _PRINT
  result = _run_program(code)
  assert result.stdout == '0\n'
  assert 'Rounds will take longer' in result.stderr
  assert 'Set TF_NUM_INTRAOP_THREADS=1 before you' in result.stderr
