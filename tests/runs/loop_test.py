import contextlib
import copy
import functools
import os
import types

import numpy as np
import pytest

from tff_pfl import datasets, errors, fields
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import client_sampling, privacy
from tff_pfl.methods import fed_rep, registry
from tff_pfl.models import zoo
from tff_pfl.runs import callbacks, loop, run_store
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import scores as scores_lib

pytestmark = pytest.mark.usefixtures('one_runtime')

_NUM_CLIENTS = 8
_NUM_CLASSES = 3
_COHORT_SIZE = 3
_NUM_ROUNDS = 8
_ROUNDS_PER_EVALUATION = 3
_EVALUATED = [1, 3, 6, 8]
_SEED = 5
_CLIENT_WITHOUT_TEST = 'client_7'
_CLIENT_WITHOUT_TRAINING = 'client_6'


def _make_data(name='toy', regression=False):
  """Clients of different sizes; one without test, one without training data."""
  rng = np.random.default_rng(0)
  prototypes = rng.normal(size=[_NUM_CLASSES, 6])
  arrays = {}
  for split, size in (('', 9), ('_test', 7)):
    keys = [
      f'client_{i}' for i in range(_NUM_CLIENTS) for _ in range(size + 2 * i)
    ]
    absent = _CLIENT_WITHOUT_TEST if split else _CLIENT_WITHOUT_TRAINING
    keys = np.array([key for key in keys if key != absent])
    y = rng.integers(_NUM_CLASSES, size=len(keys))
    x = prototypes[y] + rng.normal(size=[len(keys), 6])
    arrays.update(
      {
        f'x{split}': x.astype(np.float32),
        f'y{split}': y.astype(np.float32) / 2 if regression else y,
        f'keys{split}': keys,
      }
    )
  return datasets.FederatedDataset.from_arrays(
    **arrays, num_classes=None if regression else _NUM_CLASSES, name=name
  )


@functools.cache
def _make_process():
  return registry.build(
    'fed_avg',
    zoo.mlp(_make_data().element_spec, _NUM_CLASSES, widths=(5,)),
    num_epochs=1,
    fine_tune='all',
    fine_tune_num_epochs=2,
    seed=_SEED,
  )


def _run(process, data, directory, **options):
  return loop.run(
    process,
    data,
    str(directory),
    **{
      'num_rounds': 2,
      'cohort_size': _COHORT_SIZE,
      'num_final_evaluations': 1,
      'show_progress': False,
      'pictures': False,
      **options,
    },
  )


@pytest.fixture(scope='module', name='run')
def _run_fixture(tmp_path_factory):
  return _run(
    _make_process(),
    _make_data(),
    tmp_path_factory.mktemp('run'),
    num_rounds=_NUM_ROUNDS,
    rounds_per_evaluation=_ROUNDS_PER_EVALUATION,
  )


def test_summary_is_what_the_clients_add_up_to(run):
  data, summary, scores = run.data, run.summary, run.scores
  options = loop.RunOptions(
    num_rounds=_NUM_ROUNDS,
    cohort_size=_COHORT_SIZE,
    rounds_per_evaluation=_ROUNDS_PER_EVALUATION,
    num_final_evaluations=1,
    runtime=runtime_lib.DEFAULT,
  )
  given = {
    'algorithm': 'fed_avg',
    'dataset': 'toy',
    'num_clients': _NUM_CLIENTS,
    'num_rounds': _NUM_ROUNDS,
    'rounds': fields.to_json(options),
    'seed': _SEED,
  }
  assert {name: summary[name] for name in given} == given
  assert summary['seconds_per_round'] > 0
  # Python with TensorFlow and a worker take at least this much.
  assert 200 < summary['peak_rss_mb'] < 100_000
  tested = [c for c in data.client_ids if data.num_test_examples(c)]
  assert len(tested) == 7 and _CLIENT_WITHOUT_TEST not in tested
  assert scores['client'].tolist() == tested
  for split in ('train', 'test'):
    sizes = [getattr(data, f'num_{split}_examples')(c) for c in tested]
    assert scores[f'num_{split}_examples'].tolist() == sizes
  means = scores.mean(numeric_only=True)
  assert summary['accuracy']['last'] == pytest.approx(means['after/accuracy'])
  # The first round's evaluation is there for the curve alone.
  assert summary['accuracy']['num_last_10'] == len(_EVALUATED) - 1
  assert summary['loss'] == pytest.approx(means['after/loss'])
  shared = summary['global_accuracy']['last'], summary['global_loss']
  expected = means['before/accuracy'], means['before/loss']
  assert shared == pytest.approx(expected)
  assert summary['fairness'] == scores_lib.fairness(
    scores['after/accuracy'],
    scores['num_test_examples'],
    scores['before/accuracy'],
  )


def test_cohorts_are_those_of_the_sampler(run):
  sampler = client_sampling.CohortSampler(_NUM_CLIENTS, _COHORT_SIZE, _SEED)
  history, data = run.history, run.data
  assert history['round'].tolist() == list(range(1, _NUM_ROUNDS + 1))
  evaluated = history.dropna(subset='evaluation/personal/loss')
  assert evaluated['round'].tolist() == _EVALUATED
  took_part = dict.fromkeys(data.client_ids, 0)
  for row in history.itertuples():
    cohort = [data.client_ids[index] for index in sampler.sample(row.round)]
    sizes = [data.num_train_examples(client) for client in cohort]
    # Metrics count every example once an epoch.
    assert row.clients == sum(size > 0 for size in sizes)
    assert row.examples == sum(sizes)
    for client, size in zip(cohort, sizes):
      took_part[client] += size > 0
  actual = run.scores.set_index('client')['num_rounds'].to_dict()
  assert actual == {client: took_part[client] for client in actual}
  assert took_part[_CLIENT_WITHOUT_TRAINING] == 0


@pytest.mark.parametrize(
  ('given', 'made'),
  [
    ({}, {'devices': 'cpu'}),
    ({'devices': ['CPU:0']}, {'devices': ['CPU:0']}),
  ],
)
def test_small_rounds_are_for_the_cpu_and_progress_for_stderr(
  tmp_path, capfd, monkeypatch, runtime, given, made
):
  actual, data = [], _make_data()
  monkeypatch.setattr(
    loop.devices_lib, 'are_open', lambda devices: devices == 'auto'
  )
  monkeypatch.setattr(
    loop.runtime_lib,
    'create_runtime',
    lambda name, **options: (
      actual.append(options) or contextlib.nullcontext(runtime)
    ),
  )
  capfd.readouterr()
  options = {'runtime_options': given, 'show_progress': not given}
  _run(_make_process(), data, tmp_path, **options)
  assert actual == [made]
  out, err = capfd.readouterr()
  assert not out
  if given:
    # Without a progress bar a run is quiet.
    assert not err
  else:
    assert 'Clients compute on the CPU (--devices)' in err
    assert 'fed_avg: 100%' in err and 'personal_accuracy=' in err
    assert err.endswith('\n')


def _data_of(features, classes, **options):
  return datasets.FederatedDataset.from_arrays(
    np.random.default_rng(0).normal(size=[60, features]),
    np.arange(60) % classes,
    **{'num_clients': 3, 'num_classes': classes, 'name': 'other', **options},
  )


_OTHERS = client_sampling.CohortSampler(_NUM_CLIENTS, _COHORT_SIZE, _SEED + 1)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'num_rounds': 0}, '`num_rounds` to be at least 1, found 0'),
    ({'num_round': 1}, '`num_round`. Did you mean num_rounds'),
    ({'callbacks': [print]}, '`callbacks` to be of type Callback'),
    ({'cohort_size': 9}, '`cohort_size` to be 1 to num_clients=8, found 9'),
    ({'participation': 0.5}, '`participation` to be unset with'),
    ({'runtime': 'abacus'}, '`runtime` to be one of in_process, native, ray'),
    ({'data': _data_of(7, 3)}, r"x float32\(6,\).*'other'"),
    ({'data': _data_of(6, 4)}, 'at most the 3 classes.*4 classes'),
    (
      {'data': _data_of(6, 3, test_fraction=0)},
      'at least one client has test examples',
    ),
    (
      {
        'data': _make_data().joining(
          {f'client_{i}': 2 for i in range(1, _NUM_CLIENTS)}
        ),
        'process': {'attacked_clients': (0,)},
      },
      'test examples and joins in round 1 and is not attacked',
    ),
    (
      {'process': {'description': {'hparams': {'total_clients': 3}}}},
      '`hparams.total_clients` to be .*found 3',
    ),
    (
      {'process': {'description': {'hparams': {'max_cohort_size': 2}}}},
      '`hparams.max_cohort_size` to be at least 3, .*found 2',
    ),
    ({'process': {'seed': -1}}, '`seed` to be at least 0, found -1'),
    (
      {'process': {'accounting': privacy.Accounting(1.0, _OTHERS, 0.1)}},
      '`process` to be one whose noise is for the cohorts of the run',
    ),
  ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
  tmp_path, changes, words
):
  options = {'data': _make_data(), **changes}
  process = copy.copy(_make_process())
  vars(process).update(options.pop('process', {}))
  with pytest.raises((TypeError, ValueError), match=words) as caught:
    _run(process, directory=tmp_path / 'run', **options)
  assert '\n' not in str(caught.value)
  assert not (tmp_path / 'run').exists()


def test_run_stopped_without_an_evaluation_needs_another_round(
  tmp_path, monkeypatch
):
  commit_round = run_store.RunStore.commit_round

  def stop_after_round_2(store, **values):
    commit_round(store, **values)
    if store.last_round == 2:
      raise KeyboardInterrupt

  process, data = _make_process(), _make_data()
  options = {'record': {'note': 'mine'}}
  with monkeypatch.context() as patch:
    patch.setattr(run_store.RunStore, 'commit_round', stop_after_round_2)
    with pytest.raises(KeyboardInterrupt):
      _run(process, data, tmp_path, num_rounds=9, **options)
  options['resume'] = True
  with pytest.raises(errors.RunError, match='num_rounds of at least 3'):
    _run(process, data, tmp_path, num_rounds=2, **options)
  run = _run(process, data, tmp_path, num_rounds=3, **options)
  assert run.summary['num_rounds'] == 3
  # It goes on with its record, and without pictures.
  assert run.continue_(4).record['note'] == 'mine'
  assert not [*tmp_path.glob('*.png')]
  # A run that was stopped after its last commit gets its metrics.
  metrics = tmp_path / 'metrics.jsonl'
  written = metrics.read_text()
  metrics.write_text(written.splitlines()[0])
  _run(process, data, tmp_path, num_rounds=4, **options)
  assert metrics.read_text() == written


def test_the_best_models_are_kept_without_reading_each_evaluation_again(
  tmp_path, monkeypatch
):
  reads, told, history = [], [], run_store.RunStore.history
  monkeypatch.setattr(
    run_store.RunStore,
    'history',
    lambda store: reads.append(store) or history(store),
  )
  listener = callbacks.Callback()
  listener.on_round = lambda *_: told.append(len(reads))
  options = {'num_rounds': 3, 'rounds_per_evaluation': 1, 'keep_best': True}
  options['callbacks'] = [listener]
  run = _run(_make_process(), _make_data(), tmp_path, **options)
  assert len(told) == 3 and len({*told}) == 1
  assert run.best.last_round == run.summary['accuracy']['best_round']


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_rounds(tmp_path):
  data = datasets.make_synthetic(
    2000,
    examples_per_client=20,
    # One client is enough to be evaluated at the end.
    test_examples_per_client=1,
    shape=(8, 8, 1),
  )
  tested = data.client_ids[0]
  data.num_test_examples = lambda client_id: int(client_id == tested)
  process = registry.build(
    'fed_rep',
    zoo.mlp(data.element_spec, data.num_classes, widths=(16,)),
    fed_rep.FedRepHParams(num_head_epochs=1),
  )
  _run(process, data, tmp_path, num_rounds=500, rounds_per_evaluation=501)
  with run_store.RunStore.open_for_reading(tmp_path) as store:
    memory = {row['round']: row['rss_mb'] for row in store.history()}
  assert memory[500] < memory[50] * 1.05


def test_a_run_writes_its_files_even_if_all_diverge(tmp_path):
  data = _make_data(regression=True)
  process = registry.build(
    'local_only', zoo.mlp(data.element_spec, None), learning_rate=1e30
  )
  run = _run(process, data, tmp_path, pictures=True)
  pictures = {'mae_by_round.png', 'clients.png', 'partition.png'}
  # Neither a temporary file nor a write-ahead log is left.
  assert set(os.listdir(tmp_path)) == pictures | {
    'run.sqlite',
    'run.lock',
    'summary.json',
    'per_client.csv',
    'metrics.jsonl',
    'metrics.csv',
    'tensorboard',
  }
  assert os.listdir(tmp_path / 'tensorboard')
  for name in pictures:
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b'\x89PNG\r\n\x1a\n')
    assert content.endswith(b'IEND\xaeB`\x82')
  # All but the client without training examples.
  assert run.summary['non_finite_clients'] == len(run.scores) - 1
  assert 'have diverged' in run.table()
  values = run_lib.tidy([run])
  diverged = values.query("when == 'after' and client != 'client_6'")
  assert len(diverged) and not np.isfinite(diverged['value']).any()


def _recording(data):
  """The data, and the clients of which something was read."""
  read = set()

  def load(client_id, split):
    read.add(client_id)
    return data.load(client_id, split)

  return data.replaced(load=load), read


@pytest.mark.parametrize(
  ('given', 'most', 'number'), [(None, 10_000, 7), (None, 3, 3), (4, 3, 4)]
)
def test_the_same_clients_are_evaluated_and_few_others_are_read(
  given, most, number, monkeypatch
):
  monkeypatch.setattr(loop, '_MOST_EVALUATED', most)
  data, read = _recording(_make_data())
  options = loop.RunOptions(num_evaluated_clients=given)

  def evaluated(data, seed=_SEED, attacked=()):
    process = types.SimpleNamespace(seed=seed, attacked_clients=attacked)
    return options.evaluated_clients(process, data)

  clients = evaluated(data)
  assert clients == evaluated(data) == sorted(clients)
  assert len(clients) == number
  ids = {data.client_ids[index] for index in clients}
  assert ids <= read <= ids | {_CLIENT_WITHOUT_TEST}
  if number < 7:
    assert any(evaluated(data, seed) != clients for seed in range(20))
  # Most clients join later or are attacked.
  few = data.joining(dict.fromkeys(data.client_ids[2:], 3))
  for seed in range(20):
    assert {0, 1} & {*evaluated(few, seed)}
    assert evaluated(few, seed, attacked=[0])[:1] == [1]


def test_a_run_reads_only_the_clients_that_it_trains_scores_or_draws(tmp_path):
  data, read = _recording(_make_data())
  data.fingerprint  # noqa: B018  # It reads some clients of many.
  read.clear()
  run = _run(
    _make_process(),
    data,
    tmp_path / 'run',
    num_rounds=1,
    cohort_size=1,
    num_evaluated_clients=2,
    pictures=False,
  )
  assert len(run.scores) == 2
  trained = client_sampling.CohortSampler(_NUM_CLIENTS, 1, _SEED).sample(1)
  few = {*run.scores['client'], *(data.client_ids[i] for i in trained)}
  assert read - {_CLIENT_WITHOUT_TEST} <= few | {*data.client_ids[:1]}
  assert 'mean over 2 of 8 clients' in run.table()


@pytest.mark.parametrize(
  ('num_clients', 'participation', 'expected'),
  [
    (100, 0.1, 10),
    (25, 0.1, 3),  # 2.5: halves go up
    (24, 0.1, 2),
    (3, 0.01, 1),
    (7, 1.0, 7),
  ],
)
def test_cohort_size_is_the_nearest_number_of_clients(
  num_clients, participation, expected
):
  options = loop.RunOptions(participation=participation)
  assert options.cohorts(num_clients, seed=0).cohort_size == expected
