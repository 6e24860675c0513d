"""Tests of measured workloads: their records, data and rounds."""

import collections
import dataclasses
import json
import statistics
from typing import Any, NamedTuple

import numpy as np
import pytest

from binaries.benchmark import (
  library_rounds,
  measurement,
  reference,
  timing,
  workloads,
)
from tff_pfl import errors
from tff_pfl.runtime import native


def _measure(name, **arguments):
  record = measurement.measure(
    workloads.get_workload(name).scaled_down(),
    **{'runtime': 'in_process', 'num_rounds': 3, **arguments},
    show_progress=False,
  )
  # As whoever reads the JSON sees it.
  return json.loads(json.dumps(record))


@pytest.fixture(scope='module', name='with_reference')
def _with_reference():
  return _measure('w4', with_reference=True)


@pytest.fixture(scope='module', name='scale')
def _scale():
  return _measure(
    'scale',
    with_reference=True,
    runtime_options={'max_concurrent_clients': 1},
  )


@pytest.mark.parametrize('fixture', ['with_reference', 'scale'])
def test_a_record_has_the_times_of_the_rounds(fixture, request):
  record = request.getfixturevalue(fixture)
  seconds = record['round_seconds']
  assert len(seconds) == record['num_rounds'] == 3
  assert record['seconds_per_round'] == {
    'median': statistics.median(seconds),
    'min': min(seconds),
    'max': max(seconds),
  }
  names = ('build_seconds', 'first_round_seconds', 'peak_rss_mb')
  assert min(*seconds, *(record[name] for name in names)) > 0
  assert record['runtime'] == 'in_process' and record['versions']


def test_speedup_is_the_ratio_of_the_medians(with_reference):
  seconds = with_reference['reference_round_seconds']
  assert len(seconds) == 3
  assert with_reference['population'] is None
  assert with_reference['reference_first_round_seconds'] > 0
  median = with_reference['reference_seconds_per_round']
  assert median == statistics.median(seconds)
  assert with_reference['speedup'] == pytest.approx(
    median / with_reference['seconds_per_round']['median']
  )


def test_workload_of_populations_has_both_and_no_reference(scale):
  assert scale['runtime_options'] == {'max_concurrent_clients': 1}
  for name in (
    'reference_first_round_seconds',
    'reference_round_seconds',
    'reference_seconds_per_round',
    'speedup',
  ):
    assert scale[name] is None
  sizes = {}
  for name in ('population', 'smaller_population'):
    sizes[name] = scale[name]['num_clients']
    assert len(scale[name]['round_seconds']) == 4
    assert scale[name]['set_up_seconds'] > 0
    assert scale[name]['seconds_per_round']['min'] > 0
    # The set-up can reuse memory that is there.
    assert isinstance(scale[name]['set_up_mb'], float)
  assert sizes == {'population': 600, 'smaller_population': 6}
  assert scale['population']['seconds_per_round'] == scale['seconds_per_round']


def test_table_has_a_column_for_each_record(with_reference, scale):
  table = measurement.format_records([with_reference, scale])
  header, _, *lines = table.splitlines()
  assert header.split() == ['w4', 'scale']
  cells = {line[:28].strip(): line[28:].split() for line in lines}
  assert cells['clients'] == ['6', '600']
  speedup = f'{with_reference["speedup"]:#.4g}'
  assert cells['speedup over the reference'] == [speedup, '–']
  assert cells['smaller population: clients'] == ['–', '6']
  assert 'population' not in measurement.format_records([with_reference])


@pytest.mark.parametrize(
  'arguments, error, match',
  [
    (dict(num_rounds=0), ValueError, '`num_rounds` to be at least 1'),
    (
      dict(runtime_options={'max_concurrent_clients': 0}),
      ValueError,
      'max_concurrent_clients',
    ),
    (dict(name='w9'), ValueError, "one of w1, w2, w2f, w3, w4, .* found 'w9'"),
    (dict(runtime='native'), errors.RunError, 'worker'),
  ],
)
def test_mistakes_and_failures_are_the_callers(
  arguments, error, match, monkeypatch
):
  monkeypatch.setattr(native, '_BINARY', '/missing/worker')
  with pytest.raises(error, match=match):
    _measure(**{'name': 'w1', **arguments})


def test_method_without_a_reference_is_refused(runtime):
  workload = dataclasses.replace(
    workloads.get_workload('w1'), algorithm='local_only'
  )
  with pytest.raises(ValueError, match='a method with a reference'):
    reference.build_reference(workload, runtime, {}, [])


class _Lazy:
  """A number that is there when it is asked for."""

  is_asked_for = False

  def __array__(self, dtype=None):
    self.is_asked_for = True
    return np.zeros(2)


class _Result(NamedTuple):
  state: Any
  clients: Any


def test_force_asks_for_every_number_of_a_result():
  lazy = [_Lazy() for _ in range(4)]
  clients = [(lazy[1], 3), [lazy[2], lazy[3]]]
  timing.force(_Result({'weights': lazy[0], 'none': ()}, clients))
  assert all(value.is_asked_for for value in lazy)


def test_rounds_take_turns():
  calls = []
  seconds = timing.time_in_turns(
    {
      name: lambda round_number, name=name: calls.append((name, round_number))
      for name in 'ab'
    },
    2,
    lambda: calls.append('progress'),
  )
  assert calls[::2] == [(name, i) for i in range(3) for name in 'ab']
  assert calls[1::2] == ['progress'] * 6
  assert [len(values) for values in seconds.values()] == [3, 3]


def test_tensors_are_those_of_all_clients_that_take_part_and_no_others():
  workload = workloads.get_workload('w1').scaled_down()
  tensors = library_rounds.client_tensors(workload, [[4, 1], [1, 2]])
  assert list(tensors) == [1, 2, 4]
  data = workload.make_data()
  expected = data.train(data.client_ids[4])
  assert list(tensors[4]) == ['x', 'y']
  np.testing.assert_array_equal(tensors[4]['x'], expected.x)
  np.testing.assert_array_equal(tensors[4]['y'], expected.y)


def test_states_are_carried_over_and_datasets_passed_again(
  runtime, monkeypatch
):
  workload = workloads.get_workload('w4').scaled_down()
  process = workload.build_process(workload.build_model())
  cohorts = [[0, 3], [3, 5], [3, 0]]
  rounds = library_rounds.LibraryRounds(
    runtime, process, library_rounds.client_tensors(workload, cohorts)
  )
  passed = []
  run = type(runtime).run

  def spying_run(self, computation, *args):
    if computation is process.next:
      passed.append(args[2])
    return run(self, computation, *args)

  monkeypatch.setattr(type(runtime), 'run', spying_run)
  for cohort in cohorts:
    rounds(cohort)
  assert rounds.state.round_number == 3
  counts = collections.Counter(sum(cohorts, []))
  for index, state in rounds.client_states.items():
    assert state.client_index == index
    assert state.num_rounds == counts[index]
  # Client 3's, in all three rounds.
  assert passed[0][1] is passed[1][0] is passed[2][0]
