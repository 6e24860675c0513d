import collections
import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from binaries.papers import fed_rep
from tests.papers import untrained
from tff_pfl import datasets
from tff_pfl.comparisons import claims
from tff_pfl.models import zoo
from tff_pfl.runs import personalized_evaluation


def _table(accuracies):
  return untrained.table(('method', 'num_epochs'), accuracies)


def test_claims_of_local_epochs_go_through_the_numbers_of_epochs():
  sizes = fed_rep.LocalEpochsSizes(nums_epochs=(1, 2, 5))
  found = list(
    fed_rep.make_local_epochs_claims(
      _table(
        {
          'FedRep': {1: 0.8, 2: 0.795, 5: 0.7},
          'FedAvg': {1: 0.6, 2: 0.75, 5: 0.5},
        }
      ),
      sizes,
    )
  )
  assert [claim.measured for claim in found] == pytest.approx(
    # FedRep with more epochs; FedAvg with most; FedRep's lead over FedAvg.
    [-0.005, -0.095, -0.1, 0.1, -0.05, 0.2]
  )
  # Half a point is no fall.
  assert [claim.verdict == claims.HOLDS for claim in found] == [
    True, False, True, True, False, True
  ]  # fmt: skip


def test_claims_of_new_clients_are_fed_reps_leads():
  accuracies = {
    method: {1: value + 0.01, 2: value + 0.02}
    for method, value in {
      'FedRep': 0.5,
      'FedAvg': 0.4,
      'Per-FedAvg': 0.6,
    }.items()
  }
  found = fed_rep.make_new_clients_claims(
    _table(accuracies), fed_rep.NewClientsSizes(nums_epochs=(1, 2))
  )
  assert [claim.measured for claim in found] == pytest.approx(
    [0.1, 0.1, -0.1, -0.1]
  )


def test_local_epochs_are_of_fed_reps_head_and_of_fed_avgs_model():
  run = types.SimpleNamespace(
    evaluations=[{'personal': {'accuracy': a}} for a in (0.1, 0.2, 0.3)]
  )
  context = untrained.Context(
    fed_rep.LocalEpochsSizes(
      nums_epochs=(1, 3), num_final_evaluations=2, num_seeds=1
    ),
    lambda wanted: run,
  )
  rows = list(fed_rep.measure_local_epochs(context))
  assert [(row['method'], row['num_epochs']) for row in rows] == [
    ('FedRep', 1),
    ('FedAvg', 1),
    ('FedRep', 3),
    ('FedAvg', 3),
  ]
  # The mean of the last two rounds.
  assert {row['accuracy'] for row in rows} == {0.25}
  configs = [wanted.config for wanted in context.trials]
  assert [
    (c.hparams.num_head_epochs, c.hparams.num_body_epochs) for c in configs[::2]
  ] == [(1, 1), (3, 1)]
  assert [c.hparams.num_epochs for c in configs[1::2]] == [1, 3]
  assert {(c.partition, c.num_clients, c.num_rounds) for c in configs} == {
    ('shards:2', 100, 50)
  }
  assert len({wanted.name for wanted in context.trials}) == 4


def test_new_clients_have_new_classes_only():
  sizes = fed_rep.NEW_CLIENTS_FAST
  assert not set(sizes.classes) & set(sizes.new_classes)
  arrays = datasets.load_arrays('digits').class_subset(sizes.new_classes)
  clients = fed_rep._new_clients(arrays, sizes, seed=0)
  assert clients.num_clients == sizes.num_new_clients
  counts = clients.class_counts()
  assert not counts[:, list(sizes.classes)].any()
  assert counts.sum(axis=1).min() >= sizes.num_new_client_examples


class _FinishedRun:
  """A run that added 1 to all weights; the server of FedRep has the body's."""

  def __init__(self, config):
    self.config = config
    self.model = zoo.mlp(
      collections.OrderedDict(
        x=tf.TensorSpec([4], tf.float32), y=tf.TensorSpec([], tf.int32)
      ),
      10,
      widths=(3,),
    )

  def global_weights(self, runtime):
    del runtime
    return collections.OrderedDict(
      (name, value + 1)
      for name, value in self.model.initial_weights.items()
      if self.config.algorithm != 'fed_rep' or not name.startswith('head/')
    )

  def build_process(self, options):
    config = dataclasses.replace(self.config, personalization=options)
    return config.build_process(self.model)


def test_new_clients_start_from_the_initial_head_on_the_trained_body(
  monkeypatch,
):
  scored = []

  def score(process, runtime, state, initial_states, clients):
    assert len(initial_states([0, 1])) == 2
    options = process.description['personalization']
    assert options['fine_tune'] == 'head'
    scored.append((options['num_epochs'], state.global_weights))
    rows = [{'after': {'accuracy': a}} for a in (0.5, 1.0)]
    return personalized_evaluation.Evaluation(rows, {})

  monkeypatch.setattr(personalized_evaluation, 'evaluate', score)
  context = untrained.Context(
    fed_rep.NEW_CLIENTS_FAST,
    lambda wanted: types.SimpleNamespace(
      open=lambda: _FinishedRun(wanted.config)
    ),
  )
  rows = list(fed_rep.measure_new_clients(context))
  assert {row['accuracy'] for row in rows} == {0.75}
  initial = _FinishedRun(None).model.initial_weights
  for row, (num_epochs, weights) in zip(rows, scored):
    assert row['num_epochs'] == num_epochs
    trained = row['method'] != 'Untrained body'
    assert list(weights) == list(initial)
    for name, value in weights.items():
      added = trained and not name.startswith('head/')
      np.testing.assert_allclose(value, initial[name] + added)
  assert [row['method'] for row in rows] == [
    'FedRep',
    'FedAvg',
    'Per-FedAvg',
    'Untrained body',
  ] * 2
