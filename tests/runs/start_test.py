"""Tests of what is before a run: another run, and rounds of FedAvg."""

import dataclasses
import shutil
import types

import numpy as np
import pytest

import tff_pfl as pfl
from tests.methods import toy_problems
from tff_pfl import errors
from tff_pfl.runs import run_store, start

_SETTINGS = pfl.Settings(
  method='fed_dar',
  num_head_epochs=1,
  num_body_epochs=2,
  body_learning_rate=0.1,
  aggregation='weighted_average',
  dataset='relabelled_digits',
  partition='domain_mixture:1:40',
  num_clients=2,
  cohort_size=2,
  model_arguments={'widths': (8,)},
  num_warmup_rounds=2,
  num_rounds=1,
  num_final_evaluations=1,
)


pytestmark = pytest.mark.usefixtures(
  'no_pictures', 'one_runtime', 'one_process'
)


@pytest.fixture(name='directory', scope='module')
def _directory(tmp_path_factory):
  """A run as if it had been stopped after the warm-up."""
  directory = str(tmp_path_factory.mktemp('run') / 'run')
  _started(_SETTINGS, directory)
  return directory


def _started(settings, directory):
  """The model that a run starts from, for which it has a warm-up."""
  data = settings.load_data()
  settings._begin(data, str(directory), None, {'show_progress': False})
  return settings.initial_model(data, str(directory))


def _global_weights(directory):
  return pfl.open_run(directory).global_weights()


def test_training_of_the_warm_up_is_that_of_the_body():
  warm_up = _SETTINGS._warm_up()
  assert (warm_up.algorithm, warm_up.rounds.num_rounds) == ('fed_avg', 2)
  assert warm_up.method.num_epochs == 2
  assert warm_up.method.learning_rate == 0.1
  assert warm_up.method.batch_size == _SETTINGS.method.batch_size
  assert warm_up.model.reweight_domains
  warm_up = dataclasses.replace(_SETTINGS, num_warmup_epochs=1)._warm_up()
  assert warm_up.method.num_epochs == 1
  assert warm_up.start.num_warmup_epochs is None
  in_steps = dataclasses.replace(_FED_AVG, num_steps=3, num_warmup_epochs=2)
  training = in_steps._warm_up().method
  assert (training.num_epochs, training.num_steps) == (2, None)


_FED_AVG = pfl.Settings(
  method='fed_avg',
  num_steps=2,
  model='linear',
  num_clients=4,
  cohort_size=4,
  num_warmup_rounds=3,
  num_rounds=2,
  num_final_evaluations=1,
)


def test_clients_that_keep_statistics_have_the_initial_ones_after_it(tmp_path):
  settings = dataclasses.replace(
    _FED_AVG,
    model='cnn',
    model_arguments={'filters': 1, 'widths': (2,), 'normalization': 'batch'},
    statistics='local',
    num_warmup_rounds=1,
  )
  data = settings.load_data()
  model = settings.build_model(data)
  initial = {name: v + 0.5 for name, v in model.initial_weights.items()}
  path = str(tmp_path / 'weights.npz')
  np.savez(path, **initial)
  settings = dataclasses.replace(settings, initial_weights=path)
  started = _started(settings, tmp_path / 'run').initial_weights
  assert list(started) == list(initial)
  for name, value in started.items():
    same = np.array_equal(value, initial[name])
    assert same == (name in model.statistics), name


@pytest.mark.parametrize('kind', ['multi_head', 'input'])
def test_the_warm_up_has_one_model_for_all_domains(kind, directory, tmp_path):
  settings = dataclasses.replace(
    _SETTINGS,
    method='fed_avg',
    num_epochs=2,
    learning_rate=0.1,
    batch_size=32,
    domain_model=kind,
    reweight_domains=True,
  )
  started = _started(settings, tmp_path)
  assert started.domains.reweighted
  # It is the same training as FedDAR's.
  weights = dict(started.initial_weights)
  expected = dict(_global_weights(f'{directory}/warmup'))
  if kind == 'input':
    assert not weights.pop('domain_input/kernel').any()
  else:
    head = {n: expected.pop(n) for n in ('head/kernel', 'head/bias')}
    for m in range(started.domains.number):
      expected |= {f'domain_{m}/{name}': v for name, v in head.items()}
  toy_problems.assert_same(weights, expected)


@pytest.mark.slow
def test_interrupted_run_resumes_with_the_same_results(directory, tmp_path):
  whole, resumed = str(tmp_path / 'whole'), str(tmp_path / 'resumed')
  _SETTINGS.run(whole, show_progress=False)
  shutil.copytree(directory, resumed)
  _SETTINGS.run(resumed, resume=True, show_progress=False)
  toy_problems.assert_same(
    dict(_global_weights(resumed)), dict(_global_weights(whole))
  )


def test_the_warm_up_of_a_run_that_has_begun_is_not_trained_on(
  directory, tmp_path
):
  begun = str(shutil.copytree(directory, tmp_path / 'run'))
  with run_store.RunStore.open(begun, {}) as store:
    store.commit_round(server_state=b'', client_states={}, metrics={})
  longer = dataclasses.replace(_SETTINGS, num_warmup_rounds=3)
  with pytest.raises(errors.RunError, match='the 3 rounds .* found 2'):
    longer.run(begun, resume=True, show_progress=False)
  with pytest.raises(errors.RunError, match='There is a run in'):
    _SETTINGS.run(begun, show_progress=False)
  with run_store.RunStore.open_for_reading(f'{begun}/warmup') as store:
    assert store.last_round == 2


@pytest.mark.parametrize(
  ('algorithm', 'setting'),
  [
    ('fed_dar', {'domain_model': 'multi_head'}),
    ('fed_rep', {'reweight_domains': True}),
    # Their models are drawn apart, which trained weights do not stand.
    ('ifca', {'num_warmup_rounds': 1}),
    ('ifca', {'initial_run': 'run'}),
  ],
)
def test_settings_that_a_method_has_no_use_for_are_refused(algorithm, setting):
  (name,) = setting
  with pytest.raises(ValueError, match=f'`{name}`.*for {algorithm}'):
    pfl.Settings(method=algorithm, **setting)


_BEFORE = pfl.Settings(
  method='fed_avg',
  num_steps=2,
  learning_rate=0.1,
  dataset_arguments={'classes': (0, 1, 2)},
  partition='iid',
  num_clients=1,
  cohort_size=1,
  model_arguments={'widths': (64,)},
  num_rounds=2,
  num_final_evaluations=1,
)


@pytest.fixture(name='before', scope='module')
def _before(tmp_path_factory):
  directory = str(tmp_path_factory.mktemp('before') / 'run')
  _BEFORE.run(directory, show_progress=False)
  return directory


def _after(before, **changes):
  """A run on other classes that starts from the one before."""
  settings = {
    'method': 'fed_per',
    'num_steps': 1,
    'dataset_arguments': {'classes': (3, 4, 5)},
    'num_clients': 2,
    'cohort_size': 2,
    # Other initial weights than those of the run before.
    'seed': 1,
    'initial_run': before,
    **changes,
  }
  return dataclasses.replace(_BEFORE, **settings)


@pytest.mark.parametrize('part', ['all', 'body'])
def test_a_run_starts_at_the_weights_of_the_initial_run(part, before, tmp_path):
  settings = _after(before, initial_run_part=part)
  model = _started(settings, tmp_path)
  own = settings.build_model(settings.load_data()).initial_weights
  random = model.weight_names(model.head_layers) if part == 'body' else ()
  for name, value in _global_weights(before).items():
    assert not np.array_equal(value, own[name])
    expected = own[name] if name in random else value
    np.testing.assert_array_equal(model.initial_weights[name], expected)


def test_a_run_of_other_inputs_or_classes_is_refused(before):
  run = pfl.open_run(before)
  model, data = run.model, run.data
  described = [
    data.replaced(
      encoding=types.SimpleNamespace(input_names=inputs), class_names=classes
    )
    for inputs in (('a', 'b'), ('b', 'a'))
    for classes in ('xyz', 'xzy')
  ]
  run.data = described[0]

  def starts_with(data, part):
    start.weights_of_run(model, run, part, data)
    return True

  for one in (data, described[0]):
    assert starts_with(one, 'all')
  words = 'a run with the {} {}, in this order, found '.format
  with pytest.raises(ValueError, match=words('classes', 'x, z, y')):
    starts_with(described[1], 'all')
  # The body does not depend on them.
  assert starts_with(described[1], 'body')
  with pytest.raises(ValueError, match=words('inputs', 'b, a')):
    starts_with(described[2], 'body')


def test_a_head_that_would_start_at_random_is_not_taken(before):
  settings = pfl.Settings(
    method='fed_dar',
    projection_dim=4,
    initial_run=before,
    initial_run_part='body',
  )
  with pytest.raises(ValueError, match="`initial_run_part` to be 'body' with"):
    dataclasses.replace(settings, initial_run_part='all')


@pytest.mark.parametrize(
  'widths, words',
  [
    (
      (9,),
      r'`initial_run` to be a run of the same network, with dense_1/kernel of '
      r'shape \(64, 9\), found .dense_1/kernel of shape \(64, 64\) in ',
    ),
    ((), r'with no dense_1/kernel, found .'),
  ],
)
def test_a_run_of_another_network_is_refused(before, tmp_path, widths, words):
  settings = _after(before, model_arguments={'widths': widths})
  with pytest.raises(ValueError, match=words):
    _started(settings, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_run_without_a_global_model_is_refused(before, tmp_path):
  personal = str(tmp_path / 'personal')
  _after(None).run(personal, show_progress=False)
  with pytest.raises(
    ValueError,
    match='global model.*fed_per with statistics=global, which has none',
  ):
    _started(_after(personal), tmp_path / 'run')


def test_an_unfinished_run_is_refused(before, tmp_path):
  unfinished = str(tmp_path / 'before')
  shutil.copytree(before, unfinished)
  with run_store.RunStore.open_for_reading(unfinished) as store:
    record = store.config
  record['rounds'] |= {'num_rounds': 3}
  # As of a run that was interrupted after two rounds.
  run_store.RunStore.open(unfinished, record, resume=True).close()
  with pytest.raises(ValueError, match='with its 3 rounds, found .2 in '):
    _started(_after(unfinished), tmp_path / 'run')


def test_a_run_whose_beginning_is_gone_cannot_be_opened(tmp_path):
  for settings, words in (
    (_SETTINGS, 'found no run. Give the number'),
    (_after('elsewhere'), 'There is no initial_weights.npz'),
  ):
    with pytest.raises(errors.RunError, match=words):
      settings.initial_model(settings.load_data(), str(tmp_path))
  with pytest.raises(errors.RunError, match='There is no run in .*nowhere'):
    _started(_after('nowhere'), tmp_path)


def test_a_run_keeps_the_weights_of_a_file(tmp_path, caplog):
  weights, folder = str(tmp_path / 'weights.npz'), str(tmp_path / 'run')
  settings = _after(None, initial_weights=weights, method=_BEFORE.method)
  own = settings.build_model(settings.load_data()).initial_weights
  # The head is of other classes.
  given = {
    'dense_1/kernel': np.full((64, 64), 0.01, np.float32),
    'dense_1/bias': np.zeros(64, np.float32),
    'head/kernel': np.zeros((64, 7), np.float32),
  }
  np.savez(weights, **given)
  started = _started(settings, folder).initial_weights
  assert 'head, which start at random' in caplog.text
  np.testing.assert_array_equal(
    started['dense_1/kernel'], given['dense_1/kernel']
  )
  np.testing.assert_array_equal(started['head/kernel'], own['head/kernel'])
  settings.run(folder, show_progress=False)
  # The run needs the file no more, but its own copy as it was.
  (tmp_path / 'weights.npz').unlink()
  run = pfl.open_run(folder)
  toy_problems.assert_same(dict(run.model.initial_weights), dict(started))
  longer = dataclasses.replace(settings, num_rounds=3)
  assert len(longer.run(folder, resume=True, show_progress=False).history) == 3
  changed = {name: value + 1 for name, value in started.items()}
  np.savez(f'{folder}/initial_weights.npz', **changed)
  with pytest.raises(errors.RunError, match='initial_weights_sha256 was'):
    longer.run(folder, resume=True, show_progress=False)
