import collections
import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

import tff_pfl as pfl
from binaries.papers import fed_avg
from tests.papers import untrained
from tff_pfl.models import zoo


def test_all_methods_make_the_same_number_of_local_updates():
  for entry in fed_avg.EXPERIMENTS:
    for sizes in (*entry.full.values(), entry.fast):
      first, *others = sizes.nums_local_steps
      assert first == 1 < min(others)
      assert sorted(others) == others
      assert all(sizes.num_rounds % n == 0 for n in others)


def test_trained_clients_have_none_of_the_new_classes():
  sizes = fed_avg.CkaSizes(dataset='digits', num_seeds=2)
  context = untrained.Context(sizes)
  with pytest.raises(untrained.Opened):
    context.measured(fed_avg.measure_cka)
  assert {
    (config.method.num_steps, config.rounds.num_rounds, config.seed)
    for config in context.configs
  } == {(1, 2500, 0), (1, 2500, 1), (50, 50, 0), (50, 50, 1)}
  for config in context.configs:
    classes = config.data.arguments['classes']
    assert not set(classes) & set(sizes.new_classes)
  # Clients of another data set need no classes of their own.
  context = untrained.Context(dataclasses.replace(sizes, new_dataset='digits'))
  with pytest.raises(untrained.Opened):
    context.measured(fed_avg.measure_cka)
  assert {c.data.arguments['classes'] for c in context.configs} == {None}


def _finished_run():
  """A run with initial weights, of which fine-tuning changes the head only."""
  model = zoo.mlp(
    collections.OrderedDict(
      x=tf.TensorSpec([8, 8, 1], tf.float32), y=tf.TensorSpec([], tf.int32)
    ),
    10,
    widths=(6, 5),
  )
  tuned = collections.OrderedDict(
    (name, np.cos(9 * value) if name.startswith('head/') else value)
    for name, value in model.initial_weights.items()
  )
  return types.SimpleNamespace(
    model=model,
    settings=pfl.Settings(),
    global_weights=lambda runtime: model.initial_weights,
    tuned=tuned,
  )


def test_features_are_compared_on_test_images(monkeypatch):
  columns = {'method': 'D-SGD', 'seed': 0}
  monkeypatch.setattr(
    fed_avg, '_train', lambda *_: [(columns, _finished_run(), None)]
  )
  context = untrained.Context(fed_avg.CKA_FAST)
  matrix = fed_avg._matrices(context.measured(fed_avg.measure_cosine), 1)[0]
  np.testing.assert_array_equal(matrix, matrix.T)
  assert matrix.shape == (10, 10)
  assert np.trace(matrix) / 10 > matrix.mean()

  monkeypatch.setattr(
    fed_avg.evaluation,
    'personalize',
    lambda run, *_, num_samples: {'a': run.tuned, 'b': run.tuned},
  )
  cka = {row['layer']: row['cka'] for row in fed_avg.measure_cka(context)}
  assert list(cka) == ['dense_1', 'dense_2', 'head']
  assert cka['dense_1'] == pytest.approx(1)
  assert cka['head'] < 0.99
