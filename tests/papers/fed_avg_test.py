import collections
import types

import numpy as np
import pytest
import tensorflow as tf

from binaries.papers import fed_avg
from tests.papers import untrained
from tff_pfl.comparisons import claims, tables
from tff_pfl.models import zoo


def _measured(found):
  return [claim.measured for claim in found]


def test_cosine_claims_are_of_pairs_of_one_class_and_of_two():
  within = {'D-SGD': 0.5, 'FedAvg, τ = 10': 0.85, 'FedAvg, τ = 50': 0.9}
  between = {'D-SGD': 0.4, 'FedAvg, τ = 10': 0.2, 'FedAvg, τ = 50': 0.3}
  table = untrained.table(
    ('method', 'class_a', 'class_b'),
    {
      (method, a, b): (within if a == b else between)[method]
      for method in within
      for a in range(3)
      for b in range(3)
    },
    'cosine',
  )
  sizes = fed_avg.Sizes(nums_local_steps=(1, 10, 50))
  found = list(fed_avg.make_cosine_claims(table, sizes))
  assert _measured(found) == pytest.approx([0.9, 0.3, 0.5, 0.55, 0.5, -0.05])
  assert [claim.verdict == claims.HOLDS for claim in found] == [
    True, False, False, True, True, False
  ]  # fmt: skip


def test_claims_of_new_classes_are_fed_avgs_leads_in_both_panels():
  table = untrained.table(
    ('new_clients', 'num_examples', 'method'),
    {
      clients: dict(zip(('D-SGD', 'FedAvg, τ = 50'), accuracies))
      for clients, accuracies in {
        ('new classes of digits', 20): (0.5, 0.6),
        ('new classes of digits', 50): (0.7, 0.7),
        ('mnist', 100): (0.9, 0.8),
      }.items()
    },
  )
  found = list(
    fed_avg.make_new_classes_claims(table, fed_avg.NewClassesSizes())
  )
  assert _measured(found) == pytest.approx([0.1, 0, -0.1])
  assert [claim.source.split(', ')[-1] for claim in found] == [
    'left',
    'left',
    'right',
  ]


def test_cka_claims_leave_out_the_head():
  layers = {
    'dense_1': (0.5, 0.9),
    'dense_2': (0.5, 0.7),
    'dense_3': (0.8, 0.6),
    'dense_4': (0.8, 0.6),
    'head': (0.0, 1.0),
  }
  table = untrained.table(
    ('layer', 'method'),
    {
      layer: dict(zip(('D-SGD', 'FedAvg, τ = 50'), values))
      for layer, values in layers.items()
    },
    'cka',
  )
  found = fed_avg.make_cka_claims(table, fed_avg.CkaSizes())
  assert _measured(found) == pytest.approx([0.8, 0.05, 0.3])


@pytest.mark.parametrize('entry', fed_avg.EXPERIMENTS, ids=lambda e: e.name)
def test_all_methods_make_the_same_number_of_local_updates(entry):
  for sizes in (*entry.full.values(), entry.fast):
    steps = sizes.nums_local_steps
    assert steps[0] == 1
    assert list(np.unique(steps)) == list(steps)
    assert all(sizes.num_rounds % n == 0 for n in steps)


def test_trained_clients_have_none_of_the_new_classes():
  sizes = fed_avg.CkaSizes(dataset='digits', num_seeds=2)
  context = untrained.Context(sizes)
  with pytest.raises(untrained.Opened):
    list(fed_avg.measure_cka(context))
  configs = [wanted.config for wanted in context.trials]
  assert {
    (config.hparams.num_steps, config.num_rounds, config.seed)
    for config in configs
  } == {(1, 2500, 0), (1, 2500, 1), (50, 50, 0), (50, 50, 1)}
  for config in configs:
    classes = config.dataset_arguments['classes']
    assert not set(classes) & set(sizes.new_classes)


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
    config=types.SimpleNamespace(seed=0),
    global_weights=lambda runtime: model.initial_weights,
    tuned=tuned,
  )


def test_features_are_compared_on_test_images(monkeypatch):
  columns = {'method': 'D-SGD', 'seed': 0}
  monkeypatch.setattr(
    fed_avg, '_train', lambda *_: [(columns, _finished_run(), None)]
  )
  context = untrained.Context(fed_avg.CKA_FAST)
  cosines = tables.Table.from_rows(fed_avg.measure_cosine(context))
  matrix = fed_avg._matrices(cosines, 1)[0]
  np.testing.assert_array_equal(matrix, matrix.T)
  assert matrix.shape == (10, 10)
  assert np.trace(matrix) / 10 > matrix.mean()

  monkeypatch.setattr(
    fed_avg.new_clients,
    'fit',
    lambda run, *_, num_samples: {'a': run.tuned, 'b': run.tuned},
  )
  cka = {row['layer']: row['cka'] for row in fed_avg.measure_cka(context)}
  assert list(cka) == ['dense_1', 'dense_2', 'head']
  assert cka['dense_1'] == pytest.approx(1)
  assert cka['head'] < 0.99
