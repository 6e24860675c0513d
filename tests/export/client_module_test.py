"""The functions of a client, of a SavedModel and of a TFLite file."""

import collections
import dataclasses
import functools
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import interpreter

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl import errors
from tff_pfl.core import (
  objectives,
  padding,
  personalization,
  scoring,
)
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.export import client_module, saved_model, tflite
from tff_pfl.methods import registry
from tff_pfl.models import class_weights, domains, zoo

pytestmark = pytest.mark.usefixtures('runtime')

_NEW_CLIENT = 99
# One of each kind: a local head, one model, heads of domains, personal units,
# several models, a personal copy, a mixture, inner steps.
_KINDS = """
  fed_rep fed_avg fed_dar fed_split ifca ditto fed_em per_fed_avg
""".split()


@pytest.fixture(scope='module', name='exported')
def _exported_once():
  made = functools.cache(_exported)
  yield made
  # TensorFlow complains of functions that are left at the end.
  made.cache_clear()


def _exported(name):
  """A method after a round, with the model that it gives the new client.

  Examples of FedRep have weights.

  Returns:
    `(client module, model, its examples, its weights, predicted examples)`.
  """
  model = toy_problems.model_for(name, toy_problems.classifier())
  clients = [toy_problems.labeled_examples(n, n) for n in (7, 23, 12)]
  if name == 'fed_rep':
    model = class_weights.with_sample_weight(model)
    clients = [
      toy_problems.changed(c, weight=np.arange(len(c.y), dtype=np.float32))
      for c in clients
    ]
  process = registry.build(name, model, seed=3)
  *clients, new = toy_problems.examples_for(name, clients)
  state, _, _ = toy_problems.train(process, clients)
  client_state = process.initialize_client_state(_NEW_CLIENT)
  client = client_module.ClientModule(
    process, state, client_state, process.model_without_data(state)
  )
  personal = process.personalize(state, client_state, padding.padded(new))
  return client, process.model, new, personal.weights


def _rows(examples):
  """Arguments of `personalize`, `evaluate` and `predict`."""
  rows = client_module.rows_of(examples)
  labeled = {name: rows[name] for name in rows if name != 'weight'}
  return rows, labeled, {name: labeled[name] for name in labeled if name != 'y'}


def _tensors(rows):
  return {name: tf.constant(value) for name, value in rows.items()}


def _expected(model, weights, examples):
  """What `predict` and `evaluate` say with some weights."""
  weights = {name: tf.constant(value) for name, value in weights.items()}
  x, _ = domains.join(_tensors(examples.as_dict()))
  outputs = model.forward(weights, x)[0]
  padded = padding.padded(examples)
  means = objectives.means(scoring.score(model, weights, padded).sums)
  return (
    {
      'outputs': outputs,
      'probabilities': model.classifier.probabilities(outputs),
    },
    {**means, 'examples': len(examples.y)},
  )


def _assert_close(actual, expected):
  assert set(actual) == set(expected)
  for name in expected:
    np.testing.assert_allclose(
      actual[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name
    )


def test_names_that_are_alike_are_refused():
  layers = keras.layers
  encoder = keras.Sequential([layers.Dense(3, name='a')], name='encoder')
  network = keras.Sequential(
    [keras.Input([4]), encoder, layers.Dense(3, name='encoder_a')]
  )
  model = keras_models.bridge(network, ['encoder_a'])
  process = types.SimpleNamespace(model=model)
  with pytest.raises(
    ValueError, match='`model` .*encoder/a/kernel, .*encoder_a'
  ):
    client_module.ClientModule(process, None, None, model.initial_weights)


def test_a_saved_model_that_cannot_be_written_leaves_the_earlier_one(
  exported, tmp_path, monkeypatch
):
  client, *_ = exported('fed_rep')
  (tmp_path / '3').mkdir()
  (tmp_path / '3' / 'earlier').touch()

  def expect_failure():
    with pytest.raises(errors.RunError, match='Cannot write .*3: .*no space'):
      saved_model.save(tmp_path, client, version=3)
    assert os.listdir(tmp_path) == ['3']
    assert os.listdir(tmp_path / '3') == ['earlier']

  def fill(_, path, **__):
    os.makedirs(path)
    raise tf.errors.ResourceExhaustedError(None, None, 'no space left')

  monkeypatch.setattr(tf.saved_model, 'save', fill)
  expect_failure()
  replace = os.replace

  def fail_at_the_new_one(source, target):
    if source.endswith('.new'):
      raise OSError('no space left')
    replace(source, target)

  monkeypatch.setattr(tf.saved_model, 'save', lambda *_, **__: None)
  monkeypatch.setattr(os, 'replace', fail_at_the_new_one)
  expect_failure()


@toy_problems.named(_KINDS, fast=('fed_rep',))
def test_a_saved_model_does_what_the_process_does(name, exported, tmp_path):
  client, model, examples, weights = exported(name)
  path = saved_model.save(tmp_path, client, version=3)
  assert path == str(tmp_path / '3')
  signatures = tf.saved_model.load(path).signatures
  rows, labeled, inputs = map(_tensors, _rows(examples))
  before = {k: v.numpy() for k, v in client.weights.items()}
  predicted, evaluated = _expected(model, before, examples)
  _assert_close(signatures['serving_default'](**inputs), predicted)
  _assert_close(signatures['evaluate'](**labeled), evaluated)
  personal = signatures['personalize'](**rows)
  _assert_close(
    personal, {client_module.plain_name(n): v for n, v in weights.items()}
  )
  _assert_close(
    signatures['predict_with_weights'](**personal, **inputs),
    _expected(model, weights, examples)[0],
  )
  # It has changed nothing.
  _assert_close(signatures['predict'](**inputs), predicted)


@toy_problems.named(registry.ALGORITHMS, fast=('fed_rep',))
def test_a_tflite_file_is_personalized_and_keeps_weights(name, exported):
  client, model, examples, weights = exported(name)
  content = tflite.convert(client)
  rows, labeled, inputs = _rows(examples)
  run = _runner(content)
  before = {k: v.numpy() for k, v in client.weights.items()}
  predicted, evaluated = _expected(model, before, examples)
  _assert_close(run('predict')(**inputs), predicted)
  _assert_close(run('evaluate')(**labeled), evaluated)
  personal, scores = _expected(model, weights, examples)
  _assert_close(run('personalize')(**rows), scores)
  _assert_close(run('predict')(**inputs), personal)

  kept = run('weights')()
  _assert_close(
    kept, {client_module.plain_name(n): v for n, v in weights.items()}
  )
  # The same file, started anew.
  again = _runner(content)
  _assert_close(again('set_weights')(**kept), kept)
  _assert_close(again('predict')(**inputs), personal)


def _runner(content):
  """An interpreter, which has no operations but LiteRT's own."""
  return interpreter.Interpreter(model_content=content).get_signature_runner


@pytest.mark.parametrize('quantization', ['int8', 'float16'])
def test_a_quantized_file_predicts_nearly_the_same(quantization, exported):
  client, model, examples, _ = exported('fed_rep')
  content = tflite.convert(client, quantization)
  file = interpreter.Interpreter(model_content=content)
  assert list(file.get_signature_list()) == ['predict']
  before = {k: v.numpy() for k, v in client.weights.items()}
  np.testing.assert_allclose(
    tflite.predictor(content)(**_rows(examples)[2])['probabilities'],
    _expected(model, before, examples)[0]['probabilities'],
    atol=0.02,
  )


@pytest.mark.slow
def test_a_file_trains_convolutions():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[12, 8, 8, 1]).astype(np.float32)
  new = examples_lib.Examples(x, np.argmax(x[:, 0, :3, 0], 1).astype(np.int32))
  spec = {'x': tf.TensorSpec([8, 8, 1]), 'y': tf.TensorSpec([], tf.int32)}
  model = zoo.cnn(
    collections.OrderedDict(spec),
    3,
    filters=2,
    widths=(4, 3),
    normalization='batch',
    dropout=0.5,
  )
  process = registry.build(
    'ditto', dataclasses.replace(model, jit_compile=False)
  )
  state = process.initialize()
  client_state = process.initialize_client_state(_NEW_CLIENT)
  client = client_module.ClientModule(
    process, state, client_state, process.model_without_data(state)
  )
  run = _runner(tflite.convert(client))
  run('personalize')(**_rows(new)[0])
  personal = process.personalize(state, client_state, padding.padded(new))
  _assert_close(
    run('weights')(),
    {client_module.plain_name(n): v for n, v in personal.weights.items()},
  )


def _not_of_litert():
  return keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, activation=tf.math.erfc),
      keras.layers.Dense(3, name='head'),
    ]
  )


def _client(process, state, runtime):
  weights = process.model_without_data(state)
  return client_module.new_client_module(
    process, state, _NEW_CLIENT, weights=weights, runtime=runtime
  )


@pytest.mark.parametrize(
  ('make', 'operation'),
  [
    (_not_of_litert, 'Erfc'),
    pytest.param(
      toy_problems.convolutional_and_recurrent,
      'TensorListReserve',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_what_litert_does_not_have_is_refused_by_name(
  make, operation, capfd, runtime
):
  process = registry.build('fed_avg', toy_problems.classifier_from(make()))
  state = process.initialize()
  client = _client(process, state, runtime)
  with pytest.raises(ValueError) as caught:
    tflite.convert(client, 'float16')
  assert str(caught.value) == (
    'Expected `model` to be one that LiteRT can run (a SavedModel can have '
    f"any), found 'with {operation}'."
  )
  assert 'error: ' not in capfd.readouterr().err


def test_personalize_trains_where_the_method_would_not(runtime):
  (new,) = clients = [toy_problems.labeled_examples(20, 0)]
  process = toy_problems.full_batches('fed_avg', toy_problems.classifier())
  state, _, _ = toy_problems.train(process, clients)
  client = _client(process, state, runtime)
  tuned = process.with_personalization(
    personalization.Personalization(fine_tune='all')
  ).personalize(
    state,
    process.initialize_client_state(_NEW_CLIENT),
    padding.padded(new),
  )
  actual = client.personalize(**_tensors(_rows(new)[0]))
  _assert_close(actual, tuned.weights)
  assert toy_problems.differ(tuned.weights, state.global_weights)
