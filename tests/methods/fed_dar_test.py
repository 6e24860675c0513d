import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.methods import toy_problems
from tff_pfl.methods import fed_avg, fed_dar, registry
from tff_pfl.models import augmentation, domain_models

pytestmark = pytest.mark.usefixtures('runtime')

_BODY = np.random.default_rng(7).normal(size=[3, 2]).astype(np.float32)
_HEAD = np.array([[0.5], [-1.0]], np.float32)
# Full batches and plain gradient descent.
_PLAIN = dict(
  num_head_steps=3,
  num_body_steps=2,
  head_learning_rate=0.05,
  body_learning_rate=0.02,
  momentum=0.0,
  batch_size=None,
)
_SECOND_ORDER = dict(
  aggregation='second_order',
  ridge=0.01,
  alternating=True,
  reweight_domains=True,
)


def _client(num_examples, seed, pattern):
  client = toy_problems.regression_examples(num_examples, 3, 1, seed)
  return toy_problems.in_domains(client, pattern)


# The third domain has no example, the first few.
_CLIENTS = (_client(12, 0, [0, 1, 1]), _client(20, 1, [1, 0, 1, 1]))


def _domains(clients=_CLIENTS, names=('a', 'b', 'c')):
  return toy_problems.domains_of(clients, names)


def _model(of_data=None, change='none'):
  network = toy_problems.linear_network(_BODY, _HEAD)
  return domain_models.with_domains(
    augmentation.augmented(network, change), of_data or _domains()
  )


def _doubled(x, unused_seed):
  return 2 * x


@functools.cache
def _build(
  of_data=None,
  aggregator=None,
  weighting='num_examples',
  change='none',
  **hparams,
):
  return registry.build(
    'fed_dar',
    _model(of_data, change),
    fed_dar.FedDarHParams(**{**_PLAIN, **hparams}),
    seed=1,
    **{
      **toy_problems.WEIGHTINGS[weighting],
      **({'aggregator': aggregator()} if aggregator else {}),
    },
  )


# Algorithm 1, written down again.


@dataclasses.dataclass
class _Reference:
  """FedDAR for `linear_network` by numpy."""

  weights_of_domains: np.ndarray
  aggregation: str
  ridge: float
  alternating: bool
  weighting: str = 'num_examples'

  def __post_init__(self):
    self.num_domains = len(self.weights_of_domains)
    self.body = _BODY.astype(np.float64)
    self.heads = [_HEAD.astype(np.float64)] * self.num_domains

  def next(self, clients):
    if self.alternating:
      ends = [self._local_heads(client) for client in clients]
      bodies = [self.body] * len(clients)
    else:
      bodies, ends = zip(*[self._local_models(client) for client in clients])
    self.heads = [
      self._combined(m, clients, bodies, ends) for m in range(self.num_domains)
    ]
    if self.alternating:
      bodies = [self._local_body(client) for client in clients]
    self.body = toy_problems.mean_model(bodies, clients, self.weighting)

  def _local_heads(self, client):
    heads = []
    for m, w in enumerate(self.heads):
      x, y = _of_domain(client, m)
      for _ in range(_PLAIN['num_head_steps'] if len(y) else 0):
        z = x @ self.body
        w = w - _PLAIN['head_learning_rate'] * 2 * z.T @ (z @ w - y) / len(y)
      heads.append(w)
    return heads

  def _slopes(self, client, body, heads):
    """Gradients of the client's weighted mean loss."""
    of_body, of_heads = np.zeros_like(body), []
    for m, w in enumerate(heads):
      x, y = _of_domain(client, m)
      errors = self.weights_of_domains[m] * 2 * (x @ body @ w - y)
      of_body += x.T @ errors @ w.T / len(client.y)
      of_heads.append((x @ body).T @ errors / len(client.y))
    return of_body, of_heads

  def _local_body(self, client):
    body = self.body
    for _ in range(_PLAIN['num_body_steps']):
      slope, _ = self._slopes(client, body, self.heads)
      body = body - _PLAIN['body_learning_rate'] * slope
    return body

  def _local_models(self, client):
    body, heads = self.body, self.heads
    rate = _PLAIN['body_learning_rate']
    for _ in range(_PLAIN['num_body_steps']):
      of_body, of_heads = self._slopes(client, body, heads)
      body = body - rate * of_body
      heads = [w - rate * slope for w, slope in zip(heads, of_heads)]
    return body, heads

  def _combined(self, m, clients, bodies, ends):
    start = self.heads[m]
    counts = [len(_of_domain(client, m)[1]) for client in clients]
    if not sum(counts):
      return start
    if self.aggregation == 'weighted_average':
      return np.average([end[m] for end in ends], axis=0, weights=counts)
    hessians = []
    for client, body in zip(clients, bodies):
      z = _of_domain(client, m)[0] @ body
      hessians.append(2 * z.T @ z)  # Of the sum: L_im times that of the mean.
    added = self.ridge * np.linalg.eigvalsh(sum(hessians))[-1] / sum(counts)
    hessians = [
      h + n * added * np.eye(len(h)) for h, n in zip(hessians, counts)
    ]
    return np.linalg.solve(
      sum(hessians), sum(h @ end[m] for h, end in zip(hessians, ends))
    )


def _of_domain(client, m):
  rows = client.domain == m
  return client.x[rows].astype(np.float64), client.y[rows, np.newaxis]


def _reference(hparams, of_data, weighting='num_examples'):
  ones = np.ones(of_data.number)
  return _Reference(
    np.array(of_data.loss_weights) if hparams['reweight_domains'] else ones,
    hparams['aggregation'],
    hparams['ridge'],
    hparams['alternating'],
    weighting,
  )


def _assert_is(weights, reference, rtol=1e-4):
  np.testing.assert_allclose(
    weights['body/kernel'], reference.body, rtol=rtol, atol=1e-6
  )
  for m, head in enumerate(reference.heads):
    np.testing.assert_allclose(
      weights[f'domain_{m}/head/kernel'], head, rtol=rtol, atol=1e-6
    )


# Each choice with either aggregation.
@pytest.mark.parametrize(
  'aggregation, alternating, reweight_domains, weighting',
  [
    ('second_order', True, True, 'num_examples'),
    ('second_order', False, False, 'uniform'),
    ('weighted_average', True, True, 'unweighted'),
    pytest.param(
      *('weighted_average', False, True, 'num_examples'),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_rounds_are_those_of_the_algorithm(
  aggregation, alternating, reweight_domains, weighting
):
  hparams = {
    **_SECOND_ORDER,
    'aggregation': aggregation,
    'alternating': alternating,
    'reweight_domains': reweight_domains,
  }
  process = _build(weighting=weighting, **hparams)
  state, _, metrics = toy_problems.train(process, _CLIENTS, 2)
  # Heads are combined by the domains' examples, whatever clients weigh.
  reference = _reference(hparams, _domains(), weighting)
  for _ in range(2):
    reference.next(_CLIENTS)
  _assert_is(state.global_weights, reference)
  # A domain without examples keeps its head, bit for bit.
  np.testing.assert_array_equal(
    state.global_weights['domain_2/head/kernel'], _HEAD
  )
  assert ('effective_rank' in metrics) == (aggregation == 'second_order')


def test_heads_train_on_changed_inputs_as_the_body_does():
  hparams = {**_SECOND_ORDER, 'aggregation': 'weighted_average'}
  process = _build(change=_doubled, **hparams)
  state, _, _ = toy_problems.train(process, _CLIENTS)
  reference = _reference(hparams, _domains())
  reference.next(
    [toy_problems.changed(client, x=2 * client.x) for client in _CLIENTS]
  )
  _assert_is(state.global_weights, reference)


def test_joint_training_of_one_domain_is_fed_avg():
  clients = [toy_problems.in_domains(c, [0]) for c in _CLIENTS]
  of_data = _domains(clients, ('all',))
  joint = _build(of_data, aggregation='weighted_average', alternating=False)
  avg = registry.build(
    'fed_avg',
    _model(of_data),
    fed_avg.FedAvgHParams(
      num_steps=2, learning_rate=0.02, momentum=0.0, batch_size=None
    ),
  )
  of_joint = toy_problems.train(joint, clients)[0].global_weights
  of_avg = toy_problems.train(avg, clients)[0].global_weights
  toy_problems.assert_close(
    list(of_joint.values()), list(of_avg.values()), rtol=1e-5
  )


def test_one_head_that_takes_the_domain_is_trained_in_turn():
  process = _build(heads='domain_as_input', aggregation='weighted_average')
  found = toy_problems.train(process, _CLIENTS)[0].global_weights
  of_domains = np.array(_domains().loss_weights)
  counts = [len(client.y) for client in _CLIENTS]
  # The head's rows, with those of the domains.
  start = np.concatenate([_HEAD, np.zeros([3, 1])])
  heads, bodies = [], []

  def errors(client, body, head):
    z = np.concatenate([client.x @ body, np.eye(3)[client.domain]], axis=1)
    weights = of_domains[client.domain, np.newaxis] / len(client.y)
    return z, 2 * weights * (z @ head - client.y[:, np.newaxis])

  for client in _CLIENTS:
    head = start
    for _ in range(_PLAIN['num_head_steps']):
      z, slopes = errors(client, _BODY, head)
      head = head - _PLAIN['head_learning_rate'] * z.T @ slopes
    heads.append(head)
  new_head = np.average(heads, axis=0, weights=counts)
  for client in _CLIENTS:
    body = _BODY
    for _ in range(_PLAIN['num_body_steps']):
      _, slopes = errors(client, body, new_head)
      step = client.x.T @ slopes @ new_head[:2].T
      body = body - _PLAIN['body_learning_rate'] * step
    bodies.append(body)
  for name, value in (
    ('body/kernel', np.average(bodies, axis=0, weights=counts)),
    ('head/kernel', new_head[:2]),
    ('domain_input/kernel', new_head[2:]),
  ):
    np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  'others', [{}, {'aggregation': 'weighted_average', 'alternating': False}]
)
def test_one_head_is_averaged_and_trained_in_turn_only(others):
  with pytest.raises(ValueError, match='heads.*by_domain, unless'):
    fed_dar.FedDarHParams(heads='domain_as_input', **others)


def test_domain_absent_from_a_cohort_keeps_its_head():
  process = _build(**_SECOND_ORDER)
  first, states, _ = toy_problems.train(process, _CLIENTS)
  only_b = [toy_problems.in_domains(c, [1]) for c in _CLIENTS]
  second = process.next(first, states, toy_problems.padded(only_b))
  before, after = first.global_weights, second.state.global_weights
  moved = {
    name for name in after if toy_problems.differ(before[name], after[name])
  }
  assert moved == {'body/kernel', 'domain_1/head/kernel'}
  assert second.metrics['effective_rank']['a'] == 0


# Aggregators.


def _private():
  # Its clipping norm and noise are such that they hardly change anything.
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=1e-10, clients_per_round=2, clip=100.0
  )


def _secure():
  return tff.aggregators.MeanFactory(
    tff.aggregators.SecureSumFactory(1000.0, -1000.0), no_nan_division=True
  )


# Private means are of clients, not of examples: these have as many.
_ALIKE = (_client(12, 0, [0, 1, 1]), _client(12, 1, [1, 0, 1, 1]))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('aggregation', 'aggregator', 'clients'),
  [
    ('second_order', _secure, _ALIKE),
    ('second_order', _private, _ALIKE),
    ('weighted_average', _private, _ALIKE),
    # It clips reports, by which a client with large Hessians counts less than
    # by its examples; the scale of all is irrelevant.
    ('second_order', tff.learning.secure_aggregator, _ALIKE[:1]),
  ],
)
def test_any_aggregator_serves(aggregation, aggregator, clients):
  of_data = _domains(clients)
  process = _build(of_data, aggregation=aggregation, aggregator=aggregator)
  found = toy_problems.train(process, clients, 2)[0].global_weights
  exact = _build(of_data, aggregation=aggregation)
  expected = toy_problems.train(exact, clients, 2)[0].global_weights
  toy_problems.assert_close(found, expected, rtol=0, atol=1e-4)
  # Nobody has the third domain.
  np.testing.assert_array_equal(found['domain_2/head/kernel'], _HEAD)


@pytest.mark.slow
def test_empty_cohort_is_no_error_where_the_mean_over_nobody_is_nan():
  process = _build(aggregator=tff.learning.robust_aggregator, **_SECOND_ORDER)
  state, states, metrics = toy_problems.train(process, [_client(0, 0, [0])])
  toy_problems.assert_same(
    state.global_weights, process.initialize().global_weights
  )
  assert states[0].num_rounds == 0 and metrics['clients'] == 0


# As a process of TFF's own.


def test_two_exchanges_in_a_round_compile_to_no_form_of_production():
  learning_process = _build().to_learning_process()
  with pytest.raises(ValueError, match='broadcast dependent on aggregate'):
    tff.backends.mapreduce.get_map_reduce_form_for_computation(
      learning_process.next
    )


# Arguments.


def test_head_of_second_order_must_be_linear_and_that_of_the_average_not():
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='body'),
      keras.layers.Dense(3, 'softmax', name='head'),
    ]
  )
  model = toy_problems.model_for(
    'fed_dar', toy_problems.classifier_from(network)
  )
  with pytest.raises(ValueError, match='without an activation'):
    registry.build('fed_dar', model)
  registry.build(
    'fed_dar', model, fed_dar.FedDarHParams(aggregation='weighted_average')
  )
