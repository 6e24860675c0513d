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
from tff_pfl.studies import claims
from tff_pfl.studies.numbers import Numbers

_STUDIES = {study.name: study for study in fed_avg.STUDIES}
_ON_IMAGES = [study for study in fed_avg.STUDIES if study.methods]


@pytest.mark.parametrize('study', _ON_IMAGES, ids=lambda study: study.name)
@pytest.mark.parametrize('scale', ['paper', 'cpu'])
def test_all_methods_make_the_same_number_of_local_updates(study, scale):
  context = untrained.Context(study.at(scale))
  context.run()
  steps = [config.method.num_steps for config in context.configs]
  assert min(steps) == 1 < max(steps)
  for config, num_steps in zip(context.configs, steps):
    assert num_steps * config.rounds.num_rounds == 2500


def test_new_clients_have_classes_or_a_data_set_that_training_had_not():
  study = _STUDIES['fedavg_new_classes'].at('small')
  context = untrained.Context(study.with_settings(nums_examples=(7,)))
  for arguments, classes, nums_examples in (
    ({'classes': [*range(8)]}, {8, 9}, (7,)),
    ({}, {*range(10)}, (20,)),
  ):
    data = pfl.Settings(dataset='digits', dataset_arguments=arguments).data
    arrays, nums = fed_avg._new_examples(context, data)
    assert ({*arrays.y}, nums) == (classes, nums_examples)


def _finished_run():
  """A run with initial weights, of which fine-tuning changes the head only."""
  y = tf.TensorSpec([], tf.int32)
  spec = collections.OrderedDict(x=tf.TensorSpec([8, 8, 1]), y=y)
  model = zoo.mlp(spec, 10, widths=(6, 5))
  tuned = {
    name: np.cos(9 * value) if name.startswith('head/') else value
    for name, value in model.initial_weights.items()
  }
  return types.SimpleNamespace(
    model=model,
    settings=pfl.Settings(dataset='digits'),
    global_weights=lambda runtime: model.initial_weights,
    tuned=tuned,
  )


def _measured(name, **parameters):
  """The numbers of a study's D-SGD, of untrained models."""
  study = _STUDIES[name].at('small').select(methods=['D-SGD'])
  study = study.with_settings(**parameters)
  finished = untrained.finished(0.5, open=_finished_run)
  return untrained.Context(study, lambda _: finished).measured()


def test_features_are_compared_on_test_images(monkeypatch):
  (matrix,) = fed_avg._matrices(_measured('fedavg_cosine'), 'D-SGD')
  np.testing.assert_array_equal(matrix, matrix.T)
  assert matrix.shape == (10, 10)
  assert np.trace(matrix) / 10 > matrix.mean()

  def personalize(run, **_):
    return {'a': run.tuned, 'b': run.tuned}

  monkeypatch.setattr(fed_avg.evaluation, 'personalize', personalize)
  numbers = _measured('fedavg_cka', other_dataset='digits')
  cka = dict(zip(numbers.frame['layer'], numbers.frame['cka']))
  assert list(cka) == ['dense_1', 'dense_2', 'head']
  assert cka['dense_1'] == pytest.approx(1)
  assert cka['head'] < 0.99


def test_new_clients_are_fine_tuned_as_they_were_trained(monkeypatch):
  calls = []

  def score(run, clients, personalization, runtime, num_samples):
    calls.append((clients.num_clients, personalization, num_samples))
    return [{'after': {'accuracy': 0.2}}, {'after': {'accuracy': 0.4}}]

  monkeypatch.setattr(fed_avg.evaluation, 'score', score)
  numbers = _measured('fedavg_new_classes')
  np.testing.assert_allclose(numbers.frame['accuracy'], 0.3)
  own = _finished_run().settings.process.personalization
  expected = dataclasses.replace(own, fine_tune='all', num_epochs=10)
  assert calls == [(2, expected, 20)] * len(numbers.distinct('condition'))


def test_claims_are_on_the_most_local_steps():
  study = _STUDIES['fedavg_cka'].at('cpu')
  by_layer = {'D-SGD': (0.5, 0.6, 0.1, 0.2, 0.9)}
  by_layer['FedAvg, τ = 50'] = (0.9, 0.7, 0.3, 0.1, 0.0)
  rows = [
    {'method': method, 'seed': seed, 'layer': layer, 'cka': value}
    for method, cka in by_layer.items()
    for seed in study.seeds
    for layer, value in zip('abcde', cka)
  ]
  early, body, first = fed_avg.cka_claims(Numbers(rows), study)
  assert early.measured == pytest.approx(0.8)
  assert body.measured == pytest.approx(0.5 - 0.35)
  assert first.measured == pytest.approx(0.8 - 0.55)
  assert "FedAvg's first 2 layers" in early.statement


def _linear_claims(name):
  study = _STUDIES[name].at('small')
  numbers = Numbers(list(study.measure(untrained.context(study))))
  return study, claims.check(study.claims, numbers, study)


def test_fed_avg_finds_the_linear_representation_and_d_gd_does_not():
  _, actual = _linear_claims('fedavg_linear_representation')
  *_, d_gd, fed_avg_left = actual
  assert d_gd.measured < 1e-3 < 0.1 < fed_avg_left.measured
  for claim in actual[:7]:
    # One seed decides nothing.
    claim = {**claim._asdict(), 'values': [*claim.values] * claims.MIN_SEEDS}
    assert claims.recomputed(claim).verdict == claims.HOLDS, claim


def test_new_clients_of_a_linear_model_have_small_errors_with_fed_avg():
  study, actual = _linear_claims('fedavg_linear_new_client')
  assert len(actual) == len(study.parameters.sample_counts)
  assert min(claim.measured for claim in actual) > 0
