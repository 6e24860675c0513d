"""FedFac's experiments on images, without their training."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fed_fac
from binaries.papers.engine import trials
from tests.papers import untrained


def _scores(before, after):
  return [
    {'before': {'accuracy': b}, 'after': {'accuracy': a}}
    for b, a in zip(before, after)
  ]


def test_new_clients_have_local_training_and_the_ensemble():
  def variant(name):
    if name == 'all':
      return {'new_clients': _scores([0, 0], [0.7, 0.9])}
    return {
      'new_clients': _scores([0, 0], [0.2, 0.4]),
      'new_clients_by_ensemble': _scores([0, 0], [0.5, 0.7]),
    }

  context = untrained.Context(
    fed_fac.FAST, lambda trial: untrained.finished(0, variant=variant)
  )
  rows = list(fed_fac.measure_new_clients(context))
  np.testing.assert_allclose(
    [row['accuracy'] for row in rows],
    [0.3, 0.8, 0.3, 0.8, 0.6, 0.3, 0.3, 0.3, 0.6],
  )
  assert [row['method'] for row in rows] == [
    'FedAvg',
    'FedAvg, after local training',
    'FedProx',
    'FedProx, after local training',
    'LG-FedAvg, ensemble',
    'FedEM',
    'FedRep',
    'FedFac, local training',
    'FedFac, ensemble',
  ]
  for trial in context.trials:
    assert trial.config.data.num_clients + trial.num_new_clients == 10


def test_the_comparison_has_the_loss_by_round_and_the_clients_quantiles():
  accuracies = np.arange(21) / 20
  scores = {
    'clients': _scores(accuracies, accuracies),
    'evaluation': {'personal': {'accuracy': 1}},
  }
  context = untrained.Context(
    fed_fac.FAST,
    lambda trial: untrained.finished(0.5, variant=lambda name: scores),
  )
  table = context.measured(fed_fac.measure_comparison)
  of_fed_avg = table.where(method='FedAvg').frame
  assert of_fed_avg['loss'].tolist() == [1, 0.5]
  last = of_fed_avg.iloc[-1].filter(like='client_')
  np.testing.assert_allclose(list(last[:5]), [0.05, 0.25, 0.5, 0.75, 0.95])
  # What is trained further has no losses of its own.
  tuned = table.where(method='FedAvg, after local training').frame
  assert tuned[['round', 'accuracy']].to_numpy().tolist() == [[2, 1]]
  figure = Figure()
  fed_fac.draw_comparison(table, fed_fac.FAST, figure)
  _, boxes, curves = figure.axes
  names = [label.get_text() for label in boxes.get_yticklabels()]
  assert names == table.distinct('method')
  assert len(curves.get_legend().get_texts()) == len(names) - 2


def test_methods_have_the_hyperparameters_of_partition_and_protocol():
  sizes = dataclasses.replace(
    fed_fac.FAST,
    dataset_arguments={'normalize': True},
    statistics='local',
    weight_decay=0.001,
    initial_weights='of_imagenet.npz',
    hparams={'analysed': 'weights', 'split': 'eigenvectors'},
  )
  context = untrained.Context(sizes)
  own = trials.Method('of updates', 'fed_fac', {'analysed': 'updates'})
  methods = (*fed_fac.BASELINES, own, *fed_fac.RANDOM_SPLITS)
  assert list(fed_fac.run(context, methods, num_new_clients=2))
  for method, made in zip(methods, context.trials):
    config = made.config
    assert config.algorithm == method.algorithm
    assert config.data.partition == 'dirichlet:0.5'
    assert config.data.num_clients + 2 == sizes.num_clients
    assert config.process.personalization.optimizer == 'adam'
    assert (config.method.optimizer, config.method.batch_size) == ('adam', 50)
    assert config.data.arguments == {'normalize': True}
    assert config.process.statistics == 'local'
    assert config.process.training.weight_decay == 0.001
    assert bool(made.fine_tune_variants) == bool(method.fine_tuned)
    # FedEM's models start apart.
    is_fed_em = config.algorithm == 'fed_em'
    assert (config.start.initial_weights is None) == is_fed_em
  hparams = [config.method for config in context.configs[-3:]]
  assert [(h.analysed, h.split, h.layers, h.threshold) for h in hparams] == [
    ('updates', 'eigenvectors', 'dense_1', 0.75),
    ('weights', 'random', 'dense_1', 0.75),
    ('weights', 'random', 'dense_1', 0.75),
  ]
  with pytest.raises(ValueError, match="`hparams`.*a method has.*'analyzed"):
    dataclasses.replace(sizes, hparams={'analyzed': 'weights'})


def test_tuning_goes_on_from_the_best():
  best = {'layers': 'conv_2', 'threshold': 0.9, 'explained_variance': 0.75}

  def finish(trial):
    hparams = trial.config.method
    hits = [getattr(hparams, name) == value for name, value in best.items()]
    # One seed disagrees, but not the mean.
    accuracy = 0.1 * sum(hits) * (1 if trial.config.seed > 2 else -0.5)
    return untrained.finished(accuracy)

  context = untrained.Context(
    dataclasses.replace(fed_fac.FAST, num_seeds=2), finish
  )
  rows = list(fed_fac.measure_tuning(context))
  assert len(rows) == 2 * (3 + 2 + 2)
  tried = [config.method for config in context.configs]
  assert {hparams.layers for hparams in tried[6:10]} == {'conv_2'}
  assert {hparams.threshold for hparams in tried[10:]} == {0.9}
  # The seeds are none of those that the other experiments report.
  assert {row['seed'] for row in rows} == {2, 3}
  # The point that an earlier sweep chose is the same trial.
  names = [trial.name for trial in context.trials]
  assert {*names[2:4]} <= {*names[6:10]}
