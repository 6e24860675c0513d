import dataclasses
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from binaries.papers import fed_fac, fed_fac_units
from tests.papers import untrained
from tff_pfl.studies import claims, trials
from tff_pfl.studies.numbers import Numbers

_STUDIES = {study.name: study.at('small') for study in fed_fac.STUDIES}
_NEURONS = _STUDIES['fedsplit_neurons']
_FEATURES = _STUDIES['fedfac_features']


def test_the_entropy_of_uniform_values_is_the_logarithm_of_their_range():
  values = np.random.default_rng(0).uniform(size=[400, 1]) * [1, np.e, 0]
  actual = fed_fac_units.entropy(values, num_neighbors=3)
  np.testing.assert_allclose(actual[:2], [0, 1], atol=0.1)
  # What does not differ at all is far below, and finite.
  assert -8 < actual[2] < 0


def test_specificity_is_the_share_between_classes():
  labels = np.array([0, 0, 1, 1])
  outputs = np.array([[1, 1, 5], [1, 2, 5], [3, 1, 5], [3, 2, 5]])
  actual = fed_fac_units.specificity(outputs, labels)
  np.testing.assert_allclose(actual, [1, 0, np.nan])


def test_likeness_does_not_depend_on_scale_and_offset():
  maps = np.random.default_rng(0).normal(size=[3, 4, 2])
  others = maps * [2, -1] + 3
  np.testing.assert_allclose(fed_fac_units.likeness(maps, others), [1, -1])


def test_figure_1_tells_neurons_that_are_alike_from_those_of_some_clients():
  assert fed_fac_units.share_between_clients(np.outer([3, 1], np.ones(4))) == 0
  of_some = np.array([[4, 0, 0, 0], [3, 3, 3, 0], [0, 0, 0, 0]])
  # Of variances 3, 27 / 16 and 0, and of all, 43 / 12 - (13 / 12)^2.
  assert fed_fac_units.share_between_clients(of_some) == pytest.approx(
    (3 + 27 / 16) / 3 / (43 / 12 - (13 / 12) ** 2)
  )
  # By their means the second neuron comes first.
  np.testing.assert_array_equal(
    fed_fac_units.shares_of_clients(of_some), [0.75, 0.25, 0]
  )


def test_claims_on_figure_1_are_of_the_trained_networks():
  outputs = {
    'IID': np.outer(np.arange(10.0), np.ones(4)),
    # A neuron of most clients, and nine of one.
    'one digit each': np.array([[9, 9, 9, 0]] + 9 * [[4, 0, 0, 0]]),
  }
  rows = [
    dict(condition=condition, network=network, seed=0, neuron=n, entropy=0.0)
    | {f'client/{i}': value for i, value in enumerate(own)}
    for condition, of_clients in outputs.items()
    for network in ('trained', 'initial')
    for n, own in enumerate(of_clients * (network == 'trained'))
  ]
  actual = claims.check(_NEURONS.claims, Numbers(rows), _NEURONS)
  between = fed_fac_units.share_between_clients(outputs['one digit each'])
  measured = [claim.measured for claim in actual[:4]]
  assert measured == pytest.approx([0, between, 0.75, 0.25])


def test_clients_train_alone_and_neurons_are_on_for_their_images():
  def weights(scale):
    kernel = scale * np.array([[1.0, -1.0]])
    return {'dense_1/kernel': kernel, 'dense_1/bias': np.zeros(2)}

  def train(client_id):
    return mock.Mock(x=np.array([[[1.0]], [[3.0]]]), y=-client_id)

  run = mock.Mock(
    personal_weights=lambda client_id, runtime: weights(client_id)
  )
  run.data = mock.Mock(client_ids=range(5), train=train)
  run.model.initial_weights = weights(1)
  finished = mock.Mock(open=lambda: run)
  numbers = untrained.Context(_NEURONS, lambda expected: finished).measured()
  values = numbers.frame['entropy']
  # Neuron 0 has twice the client's number, neuron 1 is off; all alike at first.
  outputs = np.transpose([[0, 2, 4, 6, 8], np.zeros(5)])
  trained = fed_fac_units.entropy(outputs, num_neighbors=3)
  np.testing.assert_allclose(values, [*trained, trained[1], trained[1]] * 2)
  # Clients are in the order of their labels.
  shown = numbers.where(network='trained').frame.filter(like='client/')
  np.testing.assert_array_equal(shown, [*np.transpose(outputs[::-1])] * 2)

  _NEURONS.draw(numbers, _NEURONS, Figure())


def _opened(personal_weights, layer, **values):
  """A stand-in for a run of two units, of which the first is shared."""
  run = mock.MagicMock(personal_weights=personal_weights, **values)
  is_shared = {layer: np.array([True, False])}
  run.server_state.return_value.algorithm = {'is_shared': is_shared}
  return run


@pytest.mark.parametrize('statistics', ['global', 'local'])
def test_channels_are_compared_with_those_of_fed_avg(statistics, monkeypatch):
  # Channel 0 is shared, and FedAvg's is its double; 1 is personal. With local
  # statistics FedAvg's second client has other maps.
  study = _FEATURES.select(conditions=['dirichlet:0.5'])
  changes = {'statistics': statistics, 'fed_fac.layers': 'conv_1'}
  study = study.with_settings(**changes)
  labels = np.array([0, 0, 1, 1])
  shared, personal, other = np.random.default_rng(0).normal(size=[3, 4, 9])
  shared[2:] += 5

  def finish(target):
    def personal_weights(client_id, runtime):
      del runtime
      channels = (shared, personal)
      if target.settings.algorithm == 'fed_avg':
        is_other = statistics == 'local' and client_id == 'b'
        channels = (other if is_other else 2 * shared, other)
      kernel = np.zeros([3, 3, 1, 2])
      return {'conv_1/kernel': kernel, 'maps': np.stack(channels, axis=-1)}

    run = _opened(personal_weights, 'conv_1', settings=target.settings)
    run.data.client_ids = ['a', 'b', 'not shown']
    return types.SimpleNamespace(open=lambda: run)

  context = untrained.Context(study, finish)
  arrays = mock.Mock(x_test=np.zeros([4, 3]), y_test=labels, transform=None)
  monkeypatch.setattr(context, 'load_arrays', lambda *_, **__: arrays)

  def layer_features(model, weights, x, layer):
    assert layer == 'conv_1'
    return weights['maps'].reshape(4, -1)

  of = fed_fac_units.representation
  monkeypatch.setattr(of, 'layer_features', layer_features)
  monkeypatch.setattr(fed_fac_units, '_NUM_SHOWN_CLIENTS', 2)

  def likeness(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]

  def specificity(maps):
    return fed_fac_units.specificity(maps.mean(1)[:, None], labels)[0]

  of_second = likeness(shared, other) if statistics == 'local' else 1
  rows = fed_fac_units.measure_features(context)
  actual = {(row['channels'], row['quantity']): row['value'] for row in rows}
  expected = {
    ('shared', 'likeness to FedAvg'): (1 + of_second) / 2,
    ('personal', 'likeness to FedAvg'): likeness(personal, other),
    ('shared', 'specificity'): specificity(shared),
    ('personal', 'specificity'): specificity(personal),
    ('personal', "FedAvg's specificity"): specificity(other),
  }
  assert {key: actual[key] for key in expected} == pytest.approx(expected)
  alone = untrained.Context(study.select(methods=['FedFac']))
  with pytest.raises(ValueError, match='`methods` to be FedFac and FedAvg'):
    list(fed_fac_units.measure_features(alone))


@dataclasses.dataclass
class _Settings:
  """Settings with which all weights are initialized to 0."""

  seed: int
  method: types.SimpleNamespace

  def build_model(self, data):
    del data
    names = ('dense_1/kernel', 'dense_1/bias')
    return types.SimpleNamespace(initial_weights=dict.fromkeys(names, 0.0))


@pytest.mark.parametrize('divided', ['all', 'kernels'])
def test_masks_replace_what_fed_fac_divides(divided, monkeypatch):
  names = ('dense_1/kernel', 'dense_1/bias', 'head/kernel')
  weights = dict(zip(names, map(np.ones, ([3, 2], [2], [2, 1]))))
  hparams = types.SimpleNamespace(divided=divided, layers='dense_1')
  settings = _Settings(3, hparams)
  run = _opened(lambda *_: weights, 'dense_1', settings=settings)
  run.data.client_ids = ['a']
  gates, kernels = dict.fromkeys(names[:2], 1), names[:1]
  of = types.SimpleNamespace(gates=gates, kernels=kernels)
  run.model.units = {'dense_1': of}

  # The share of the weights that are those of the client.
  def score(model, weights, test):
    kernel, bias = weights['dense_1/kernel'], weights['dense_1/bias']
    accuracy = tf.reduce_mean(kernel) + 10 * tf.reduce_mean(bias)
    return types.SimpleNamespace(sums={'accuracy': accuracy})

  monkeypatch.setattr(fed_fac_units.scoring, 'score', score)
  monkeypatch.setattr(fed_fac_units.objectives, 'means', dict)
  monkeypatch.setattr(fed_fac_units.pfl, 'padded', lambda data: 0.0)
  half = 5.5 if divided == 'all' else 10.5
  actual = fed_fac_units.masked_accuracies(run, None)
  assert [*actual.values()] == [11, half, half]


def test_half_of_the_last_divided_layer_is_masked():
  study = next(s for s in fed_fac.STUDIES if s.name == 'fedfac_ablation')
  study = study.at('paper').select(methods=['random split'])
  halves = fed_fac_units.halved(study)
  layers = {'CIFAR-10, pi = 0.1': 'conv_17', 'FEMNIST': 'conv_2'}
  for condition, layer in layers.items():
    half = halves.settings_of(condition, 'half', 0).method
    assert (half.layers, half.threshold) == (layer, 0.5)
  assert halves.method_names == ('half',)


@pytest.mark.slow
def test_the_ablation_masks_shared_and_personal_neurons(tmp_path):
  part = {'methods': ['factor analysis'], 'conditions': ['dirichlet:0.5']}
  study = _STUDIES['fedfac_ablation'].select(**part)
  # A folder that is for other studies' data does no harm.
  study = study.with_settings(data_dir='elsewhere')
  place = trials.Place(num_processes=0, show_progress=False)
  context = fed_fac_units.measures.Context(study, str(tmp_path), place)
  _, *masked = fed_fac_units.measure_ablation(context)
  (result,) = context.run(fed_fac_units.halved(study))
  actual = {row['method']: row['score'] for row in masked}
  assert [*actual] == ['nothing masked', 'shared masked', 'personal masked']
  # With nothing masked it is what the run's own evaluation found.
  own = result.scores['evaluation']['personal']['accuracy']
  np.testing.assert_allclose(actual['nothing masked'], own, rtol=1e-6)
  assert len({*actual.values()}) == 3
