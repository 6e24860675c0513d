"""FedFac's studies on images, without their training."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fed_fac
from tests.papers import untrained

_STUDIES = {study.name: study for study in fed_fac.STUDIES}
_DIRICHLET = 'dirichlet:0.5'


def _small(name, *conditions, **settings):
  study = _STUDIES[name].at('small').with_settings(**settings)
  return study.select(conditions=conditions) if conditions else study


def _scores(before, after):
  return [
    {'before': {'accuracy': b}, 'after': {'accuracy': a}}
    for b, a in zip(before, after)
  ]


def test_new_clients_have_local_training_and_the_ensemble():
  def variant(name):
    return {
      'evaluation': {'personal': {'accuracy': 0}},
      'new_clients': _scores([0, 0], [0.7, 0.9] if name else [0.2, 0.4]),
      'new_clients_by_ensemble': _scores([0, 0], [0.5, 0.7]),
    }

  finished = untrained.finished(0, variant=variant)
  study = _small('fedfac_new_clients', _DIRICHLET)
  context = untrained.Context(study, lambda trial: finished)
  frame = context.measured().frame
  assert len(frame) == 10
  for name, score in zip(frame['method'], frame['score']):
    expected = 0.8 if 'after local training' in name else 0.3
    expected = 0.6 if 'ensemble' in name else expected
    assert score == pytest.approx(expected), name
  # Rows that differ in what is scored share a run, but those of FedFac, whose
  # new clients train all weights or their own.
  assert len(context.trials) == 7
  assert {trial.num_new_clients for trial in context.trials} == {2}


def test_the_comparison_has_the_loss_by_round_and_the_clients_quantiles():
  accuracies = np.arange(21) / 20
  scores = {'clients': _scores(accuracies, accuracies)}
  scores['evaluation'] = {'personal': {'accuracy': 1}}
  finished = untrained.finished(0.5, variant=lambda name: scores)
  study = _small('fedfac_comparison', _DIRICHLET)
  numbers = untrained.Context(study, lambda trial: finished).measured()
  (of_fed_avg,) = numbers.where(method='FedAvg').frame.to_dict('records')
  assert (of_fed_avg['loss/1'], of_fed_avg['loss/2']) == (1, 0.5)
  quantiles = [of_fed_avg[column] for column in fed_fac._QUANTILES]
  np.testing.assert_allclose(quantiles, [0.05, 0.25, 0.5, 0.75, 0.95])
  tuned = numbers.values('score', method='FedAvg, after local training')
  assert tuned.tolist() == [1]
  figure = Figure()
  study.draw(numbers, study, figure)
  _, boxes, curves = figure.axes
  names = [label.get_text() for label in boxes.get_yticklabels()]
  assert names == numbers.distinct('method')
  # What is trained further has no losses of its own.
  assert len(curves.get_legend().get_texts()) == len(names) - 2


def test_methods_have_the_hyperparameters_of_condition_and_protocol():
  study = _STUDIES['fedfac_comparison'].at('paper')
  context = untrained.Context(study.select(conditions=['CIFAR-10, pi = 1']))
  context.run()
  assert len(context.configs) == 8
  for config in context.configs:
    assert config.data.partition == 'client_dirichlet:10'
    assert config.data.arguments == {'normalize': True}
    assert config.process.statistics == 'local'
    assert config.process.training.weight_decay == 3.125e-7
  for hparams in [config.method for config in context.configs[-2:]]:
    assert (hparams.layers, hparams.threshold) == ('conv_17', 0.05)
    assert (hparams.analysed, hparams.split) == ('weights', 'eigenvectors')
  study = _STUDIES['fedfac_ablation'].at('cpu')
  context = untrained.Context(study.select(conditions=[_DIRICHLET], seeds=[0]))
  context.run()
  actual = [f'{one.method.split} {one.method.mode}' for one in context.configs]
  assert actual == [
    'factor_analysis dynamic',
    'random dynamic',
    'random static',
  ]


def test_tuning_goes_on_from_the_best():
  best = {'layers': 'conv_2', 'threshold': 0.9, 'explained_variance': 0.75}

  def finish(trial):
    hparams = trial.settings.method
    hits = [getattr(hparams, name) == value for name, value in best.items()]
    # One seed disagrees, but not the mean.
    accuracy = 0.1 * sum(hits) * (1 if trial.settings.seed > 5 else -0.5)
    return untrained.finished(accuracy)

  study = _small('fedfac_tuning', _DIRICHLET).select(seeds=[5, 6])
  context = untrained.Context(study, finish)
  numbers = context.measured()
  assert len(numbers.frame) == 2 * (3 + 2 + 2)
  tried = {trial.name: trial.settings.method for trial in context.trials}
  # The point that an earlier sweep chose is the same trial.
  assert len(tried) == 2 * (3 + 1 + 1)
  tried = [*tried.values()]
  assert {hparams.layers for hparams in tried[6:]} == {'conv_2'}
  assert {hparams.threshold for hparams in tried[8:]} == {0.9}
  # The seeds are none of those that the other studies report.
  own = _STUDIES['fedfac_tuning'].at('cpu').seeds
  assert not {*own} & {*_STUDIES['fedfac_comparison'].at('cpu').seeds}
