import json
import statistics

import pytest

from binaries.benchmark import __main__ as benchmark
from binaries.benchmark import workloads
from tff_pfl.runs import report


def _measured(name):
  workload = workloads.WORKLOADS[name].scaled_down()
  options = {'max_concurrent_clients': 1}
  record = benchmark.measure(workload, 'in_process', options, 3, True)
  # As whoever reads the JSON sees it.
  return json.loads(json.dumps(record))


@pytest.fixture(scope='module', name='with_reference')
def _with_reference():
  return _measured('w4')


@pytest.fixture(scope='module', name='scale')
def _scale():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, '_write_pictures', lambda *_: None)
    return _measured('scale')


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
  assert with_reference['reference_first_round_seconds'] > 0
  median = with_reference['reference_seconds_per_round']
  assert median == statistics.median(seconds)
  assert with_reference['speedup'] == pytest.approx(
    median / with_reference['seconds_per_round']['median']
  )


def test_workload_of_populations_has_both_and_no_reference(scale):
  assert scale['runtime_options'] == {'max_concurrent_clients': 1}
  assert 'speedup' not in scale
  sizes = {}
  for name in ('population', 'smaller_population'):
    sizes[name] = scale[name]['num_clients']
    assert len(scale[name]['round_seconds']) == 4
    assert scale[name]['set_up_seconds'] > 0
    assert scale[name]['seconds_per_round']['min'] > 0
    # The set-up can reuse memory that is there.
    assert isinstance(scale[name]['set_up_mb'], float)
  assert sizes == {'population': 60, 'smaller_population': 6}
  assert scale['population']['seconds_per_round'] == scale['seconds_per_round']
  assert scale['run_seconds'] > 0


def test_table_has_a_column_for_each_record(with_reference, scale):
  table = benchmark.format_records([with_reference, scale])
  header, _, *lines = table.splitlines()
  assert header.split() == ['w4', 'scale']
  cells = {name: values for name, *values in map(str.split, lines)}
  assert cells['num_clients'] == ['6', '60']
  assert cells['speedup'] == [f'{with_reference["speedup"]:.4g}', '–']
  assert cells['smaller_population.num_clients'] == ['–', '6']
  assert 'population' not in benchmark.format_records([with_reference])


def test_rounds_take_turns():
  calls = []
  seconds = benchmark.time_in_turns(
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
