import json
import statistics

import pytest

from binaries.benchmark import measurement, workloads
from tff_pfl import errors
from tff_pfl.runtime import native

_KEYS = {
  'workload',
  'seconds_per_round',
  'first_round_seconds',
  'reference_seconds_per_round',
  'speedup',
  'peak_rss_mb',
  'num_rounds',
  'runtime',
  'versions',
}


def _measure(name, **arguments):
  arguments = {'num_rounds': 3, **arguments}
  record = measurement.measure(
    workloads.get_workload(name).scaled_down(),
    runtime=arguments.pop('runtime', 'in_process'),
    show_progress=False,
    **arguments,
  )
  # As whoever reads the JSON sees it.
  return json.loads(json.dumps(record))


@pytest.fixture(scope='module', name='with_reference')
def _with_reference():
  return _measure('w1', with_reference=True)


@pytest.fixture(scope='module', name='scale')
def _scale():
  return _measure(
    'scale',
    with_reference=True,
    runtime_options={'max_concurrent_clients': 1},
  )


def _assert_sane(record):
  assert _KEYS <= set(record)
  seconds = record['round_seconds']
  assert len(seconds) == record['num_rounds'] == 3
  assert record['seconds_per_round'] == {
    'median': statistics.median(seconds),
    'min': min(seconds),
    'max': max(seconds),
  }
  for name in ('build_seconds', 'first_round_seconds', 'peak_rss_mb'):
    assert record[name] > 0
  assert min(seconds) > 0


def test_speedup_is_the_ratio_of_the_medians(with_reference):
  _assert_sane(with_reference)
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
  _assert_sane(scale)
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


def test_wrong_options_of_the_runtime_are_refused():
  with pytest.raises(ValueError, match='max_concurrent_clients'):
    _measure('w1', runtime_options={'max_concurrent_clients': 0})


@pytest.mark.slow
def test_rounds_default_to_the_workload():
  assert len(_measure('w1', num_rounds=None)['round_seconds']) == 2


def test_numbers_of_rounds_below_one_are_refused():
  with pytest.raises(ValueError, match='`num_rounds` to be at least 1'):
    _measure('w1', num_rounds=0)


def test_failure_of_the_runtime_is_the_callers(monkeypatch):
  monkeypatch.setattr(native, '_BINARY', '/missing/worker')
  with pytest.raises(errors.RunError, match='worker'):
    _measure('w1', runtime='native')


def test_table_has_a_column_for_each_record(with_reference, scale):
  table = measurement.format_records([with_reference, scale])
  header, _, *lines = table.splitlines()
  assert header.split() == ['w1', 'scale']
  cells = {line[:28].strip(): line[28:].split() for line in lines}
  assert cells['clients'] == ['6', '600']
  assert cells['speedup over the reference'] == [
    f'{with_reference["speedup"]:#.4g}',
    '–',
  ]
  assert cells['smaller population: clients'] == ['–', '6']


def test_table_without_populations_does_not_speak_of_them(with_reference):
  assert 'population' not in measurement.format_records([with_reference])
