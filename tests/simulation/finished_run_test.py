import collections
import dataclasses
import gc
import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms import toy_problems
from tff_pfl import datasets, errors
from tff_pfl.algorithms import fed_rep
from tff_pfl.datasets.sources import csv_files, table_columns, table_encoding
from tff_pfl.models import domain_models, keras_bridge, prediction, zoo
from tff_pfl.simulation import finished_run, run_config
from tff_pfl.templates import personalization

_CONFIG = run_config.RunConfig(
  hparams=fed_rep.FedRepHParams(num_head_epochs=1),
  num_clients=6,
  cohort_size=2,
  num_rounds=2,
  model_arguments={'widths': [16]},
)


@pytest.fixture(scope='module', name='directory')
def _directory(tmp_path_factory):
  directory = tmp_path_factory.mktemp('run')
  _CONFIG.run(str(directory), show_progress=False)
  return str(directory)


@pytest.fixture(name='run')
def _run(directory):
  with finished_run.FinishedRun(directory) as run:
    yield run


def _new_clients(run, num_clients=2):
  rng = np.random.default_rng(1)
  return datasets.FederatedDataset.from_arrays(
    rng.uniform(size=[30 * num_clients, 8, 8, 1]),
    rng.integers(10, size=30 * num_clients),
    keys=np.repeat([f'new_{i}' for i in range(num_clients)], 30),
    num_classes=10,
  )


def test_run_is_built_again_from_its_folder(run):
  # With what the method does before a model is scored spelt out.
  assert run.config == dataclasses.replace(
    _CONFIG, personalization=personalization.NO_ADAPTATION
  )
  assert run.data.num_clients == 6
  assert not os.path.exists(os.path.join(run.directory, 'warmup'))
  expected = _CONFIG.build_model(_CONFIG.load_data()).initial_weights
  for name, value in run.model.initial_weights.items():
    np.testing.assert_array_equal(value, expected[name])


def test_personal_weights_are_the_global_body_and_the_clients_own_head(
  run, runtime
):
  process = run.build_process()
  assert run.server_state(process, runtime).round_number == 2
  shared = run.global_weights(runtime)
  heads = []
  for client_id in run.data.client_ids:
    weights = run.personal_weights(client_id, runtime)
    assert list(weights) == list(run.model.initial_weights)
    np.testing.assert_array_equal(
      weights['dense_1/kernel'], shared['dense_1/kernel']
    )
    heads.append(np.asarray(weights['head/kernel']).tobytes())
  assert len(set(heads)) == 6


def test_new_clients_are_fitted_to_nested_samples_of_their_data(
  run, runtime, monkeypatch
):
  clients = _new_clients(run)
  seen = []
  padded = finished_run.client_examples.padded

  def record(examples):
    seen.append(examples)
    return padded(examples)

  monkeypatch.setattr(finished_run.client_examples, 'padded', record)
  options = personalization.Personalization(new_client_epochs=1)
  for num_samples in (3, 10, None, 1000):
    run.fit_new_clients(clients, options, runtime, num_samples=num_samples)
  trains = [examples.x for examples in seen[::2]]
  assert [len(x) for x in trains] == [3, 10, 24, 24]

  def rows(x):
    return {row.tobytes() for row in x}

  assert rows(trains[0]) < rows(trains[1]) < rows(trains[2])


def test_new_clients_that_do_not_fit_the_model_are_refused(run, runtime):
  clients = datasets.make_synthetic(2)
  for use in (run.score_new_clients, run.fit_new_clients):
    with pytest.raises(ValueError, match=r'float32\(8, 8, 1\)'):
      use(clients, personalization.Personalization(), runtime)


def test_folders_without_a_run_that_can_be_used_are_refused(tmp_path, runtime):
  with pytest.raises(errors.RunError, match='There is no run'):
    finished_run.FinishedRun(str(tmp_path))
  settings = {**_CONFIG.settings(), 'model': {'name': 'mine'}}
  finished_run.run_store.RunStore.open(tmp_path / 'run', settings).close()
  with warnings.catch_warnings():
    # Nothing may be left open.
    warnings.simplefilter('error', ResourceWarning)
    with pytest.raises(errors.RunError, match='another version or another'):
      finished_run.FinishedRun(str(tmp_path / 'run'))
    gc.collect()
  started = tmp_path / 'started'
  finished_run.run_store.RunStore.open(started, _CONFIG.settings()).close()
  with finished_run.FinishedRun(str(started)) as run:
    with pytest.raises(errors.RunError, match='committed no state yet'):
      run.personal_weights('client_0', runtime)


def test_rows_of_a_table_need_the_encoding_of_the_run(directory):
  with finished_run.FinishedRun(directory) as run:
    with pytest.raises(errors.RunError, match='run on a table .* on digits'):
      run.encoding  # noqa: B018
    run.data.encoding = 'of a table'
    with pytest.raises(ValueError, match='encoding.json.* a file, found none'):
      run.encoding  # noqa: B018


def test_rows_of_a_table_are_predicted_in_parts_and_in_their_unit(
  run, monkeypatch
):
  encoding = table_encoding.TableEncoding(
    table_columns.Columns('y', task='regression'),
    numbers=['a', 'b'],
    categories={},
    grouped=[],
    indicators=[],
    classes=[],
    domains=[],
    means=[1, 0, 100],
    deviations=[2, 1, 10],
  )
  model = zoo.linear(
    collections.OrderedDict(
      x=tf.TensorSpec([2], tf.float32), y=tf.TensorSpec([], tf.float32)
    ),
    None,
  )
  monkeypatch.setattr(finished_run.FinishedRun, 'model', model)
  monkeypatch.setattr(finished_run, '_MAX_INPUTS', 4)
  run.encoding = encoding
  weights = {
    'head/kernel': np.float32([[1], [2]]),
    'head/bias': np.float32([0.5]),
  }
  table = csv_files.Table('', {'b': ['1', '0', ''], 'a': ['1', '3', '5']})
  outputs = run.predict_rows(encoding.encode(table), weights)
  np.testing.assert_allclose(outputs, [[125], [115], [125]])


def test_run_whose_data_have_changed_is_refused(
  directory, run, runtime, monkeypatch
):
  digits = datasets.load_arrays('digits')
  x = digits.x.copy()
  x[700] += 0.1
  changed = dataclasses.replace(digits, x=x).to_clients(6)
  monkeypatch.setattr(run_config.RunConfig, 'load_data', lambda config: changed)
  with pytest.raises(errors.RunError, match='data have changed since the run'):
    finished_run.FinishedRun(directory)
  with pytest.raises(errors.RunError, match='data have changed since the run'):
    finished_run.personal_weights(
      directory, run.build_process(), changed, 'client_0'
    )


def test_saved_model_is_read_back_if_it_is_of_these_weights(tmp_path, run):
  path = str(tmp_path / 'model.npz')
  weights = dict(run.model.initial_weights)
  finished_run.save_personal_model(path, dict(reversed(weights.items())))
  found = finished_run.load_personal_model(path, run.model)
  assert list(found) == list(weights)
  toy_problems.assert_same(dict(found), weights)
  for changed, words in (
    ({'head/bias': weights['head/bias']}, 'npz file with dense_1/kernel and'),
    (
      {**weights, 'dense_1/kernel': np.zeros([64, 9])},
      r"shape \(64, 16\) for 'dense_1/kernel'",
    ),
  ):
    finished_run.save_personal_model(path, changed)
    with pytest.raises(ValueError, match=words):
      finished_run.load_personal_model(path, run.model)


def test_every_client_id_has_a_file_of_its_own_in_the_folder(tmp_path, run):
  folder = tmp_path / finished_run.PERSONAL_MODELS_DIR
  folder.mkdir()
  for number, client_id in enumerate(
    (
      '../../x',
      '..',
      '.',
      '',
      '/etc/x',
      'a\\b',
      'a\0b',
      'Zoë 1',
      # These look alike when escaped, or cut.
      'a/b',
      'a%2Fb',
      'a%252Fb',
      'a_b',
      'x' * 246,
      'x' * 247,
      'x' * 248,
    )
  ):
    path = finished_run.personal_model_path(str(tmp_path), client_id)
    finished_run.save_personal_model(path, run.model.initial_weights)
    assert len(list(folder.iterdir())) == number + 1, client_id
    assert len(list(tmp_path.iterdir())) == 1
    assert finished_run.load_personal_model(path, run.model)


def test_predictions_of_many_examples_are_those_of_each(run):
  weights = run.model.initial_weights
  x = np.random.default_rng(0).uniform(size=[2050, 8, 8, 1])
  outputs = prediction.predict(run.model, weights, x.astype(np.float32))
  assert outputs.shape == (2050, 10)
  for index in (0, 1023, 1024, 2049):
    np.testing.assert_allclose(
      prediction.predict(run.model, weights, x[index : index + 1])[0],
      outputs[index],
      atol=1e-6,
    )
  assert prediction.predict(run.model, weights, x[:0]).shape == (0, 10)


def test_fractions_are_no_indices():
  keras_model = keras.Sequential(
    [
      keras.layers.Input([2], dtype=tf.int32),
      keras.layers.Embedding(5, 3),
      keras.layers.Flatten(),
      keras.layers.Dense(2, name='head'),
    ]
  )
  model = keras_bridge.from_keras(
    keras_model,
    head_layers=['head'],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  weights = model.initial_weights
  with pytest.raises(ValueError, match='`x` to be integers'):
    prediction.predict(model, weights, np.float32([[0.5, 1]]))
  assert prediction.predict(model, weights, np.array([[0, 1]])).shape == (
    1,
    2,
  )


@pytest.mark.slow
def test_model_is_the_one_that_the_method_makes(tmp_path, runtime):
  """FedEM's is a mixture of what the run's settings name."""
  config = dataclasses.replace(_CONFIG, algorithm='fed_em', hparams=None)
  config.run(str(tmp_path), show_progress=False)
  with finished_run.FinishedRun(str(tmp_path)) as run:
    weights = run.personal_weights('client_0', runtime)
    assert list(weights) == list(run.model.initial_weights)
    probabilities = prediction.predict(
      run.model, weights, run.data.test('client_0').x
    )
  np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_domain_decides_which_head_predicts():
  model = domain_models.of_domains(
    toy_problems.model_for('fed_dar', toy_problems.classifier()), 'multi_head'
  )
  weights = toy_problems.jittered(model.initial_weights)
  examples = toy_problems.in_turn(toy_problems.labeled_examples(20, 0))
  x, domain = examples.x, examples.domain
  outputs = [
    prediction.predict(model, weights, x, np.full_like(domain, m))
    for m in range(3)
  ]
  assert not any(
    np.allclose(outputs[m], outputs[n]) for m in range(3) for n in range(m)
  )
  np.testing.assert_allclose(
    prediction.predict(model, weights, x, domain),
    [outputs[m][i] for i, m in enumerate(domain)],
    rtol=1e-5,
  )
  for wrong, words in (
    (None, '`domain`.*given'),
    (domain[1:], '`domain`.*examples'),
    (np.full_like(domain, 5), 'domain.*5'),
  ):
    with pytest.raises(ValueError, match=words):
      prediction.predict(model, weights, x, wrong)
