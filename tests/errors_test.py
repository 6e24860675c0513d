import functools

import keras
import numpy as np
import pandas as pd
import pytest

import tff_pfl as pfl
from tests.methods import toy_problems
from tff_pfl import errors


@pytest.mark.parametrize(
  'error, reason',
  [
    (
      OSError(20, 'Not a directory', 'a/b'),
      'Cannot use a/b: Not a directory; a part of the path is a file; give '
      'another path.',
    ),
    (OSError(5, 'Broken', 'a'), 'Cannot use a: Broken.'),
    (FileNotFoundError('no digits'), 'no digits'),
  ],
)
def test_errors_of_the_system_say_what_to_do(error, reason):
  assert errors.reason(error) == reason


_LONG = np.arange(9000.0).reshape(300, 30)


@pytest.mark.parametrize(
  'value, shown',
  [
    ('a', "'a'"),
    (np.arange(3), 'array([0, 1, 2])'),
    (_LONG, 'ndarray of shape (300, 30) and float64'),
    (pd.DataFrame(_LONG), 'DataFrame of shape (300, 30)'),
    ([_LONG, None], '[ndarray of shape (300, 30) and float64, None]'),
    ({'x': _LONG}, "{'x': ndarray of shape (300, 30) and float64}"),
    ([*range(99)], '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...]'),
    ('a' * 9000, f"'{'a' * 247}...{'a' * 248}'"),
  ],
)
def test_a_message_is_one_line_however_large_a_value_is(value, shown):
  assert errors.message('x', 'small', value) == (
    f'Expected `x` to be small, found {shown}.'
  )


@pytest.mark.parametrize('value', [[], {}, _LONG, np.array([]), None, 'c'])
def test_what_has_no_hash_or_truth_value_is_none_of_the_known(value):
  for known in (['a', 'b'], np.array(['a', 'b'])):
    with pytest.raises(ValueError, match='^Expected `x` to be one of a, b, f'):
      errors.expect_one_of('x', value, known)
    errors.expect_one_of('x', 'b', known)


def test_arguments_are_named_as_the_caller_knows_them():
  with pytest.raises(ValueError) as error:
    with errors.naming({'low': '--low_end', 'a.b': '`b`'}):
      raise ValueError('Expected `low` to be below `lower` and `a.b`.')
  assert str(error.value) == 'Expected --low_end to be below `lower` and `b`.'


_RUN = pfl.Run('folder')


@functools.cache
def _arguments():
  return {
    'process': pfl.build('fed_avg', toy_problems.classifier()),
    'data': pfl.FederatedDataset.from_arrays([[0]] * 9, [0] * 9, num_clients=2),
    'output_dir': 'none',
  }


def _run(**changes):
  return pfl.run(**{**_arguments(), **changes}, num_rounds=1, cohort_size=1)


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: _run(process=5), '`process` to be of type PersonalizedProcess'),
    (lambda: _run(data=toy_problems.CLIENTS), '`data` to be of type Federated'),
    (lambda: _run(output_dir=5), '`output_dir` to be a path, found 5'),
    (lambda: pfl.open_run(5), '`directory` to be a path, found 5'),
    (lambda: pfl.open_run('x', 5, 5), '`process` to be of type Personalized'),
    (
      lambda: pfl.build('fed_avg', keras.Sequential()),
      '`model` to be of type SplitModel',
    ),
    (
      lambda: pfl.build([], toy_problems.classifier()),
      '`method` to be one of',
    ),
    (lambda: pfl.summarize('ab'), '`runs` to be a list of runs, or a dict'),
    (lambda: pfl.plot([]), r'`runs` to be .* with at least one, found \[\]'),
    (lambda: _RUN.personal_weights('a', 'gpu'), '`runtime` to be of type'),
    (lambda: pfl.ClientDataSource(5), '`data` to be of type FederatedDataset'),
    (lambda: pfl.plots.curves(5), '`frame` to be of type DataFrame, found 5'),
    (
      lambda: pfl.with_class_weight(toy_problems.classifier(), 'balanced', 5),
      '`data` to be given, a FederatedDataset',
    ),
  ],
)
def test_a_wrong_type_is_refused_by_the_argument_s_name(call, message):
  with pytest.raises((ValueError, TypeError), match=f'^Expected .*{message}'):
    call()


def test_numbers_are_those_of_float32():
  for value in (0, 1e-38, 3.4e38, -3.4e38, np.float32(1), 5):
    assert errors.is_number(value)
  for value in (1e39, 10**400, float('inf'), float('nan'), '1', True):
    assert not errors.is_number(value)
