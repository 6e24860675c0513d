import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import tff_api as tff
from tff_pfl.core import private_mean
from tff_pfl.methods import registry
from tff_pfl.models import augmentation, domain_models

_BODY = np.random.default_rng(7).normal(size=[3, 2]).astype(np.float32)
_HEAD = np.array([[0.5], [-1.0]], np.float32)
# Full batches and plain gradient descent.
_HEAD_RATE, _BODY_RATE = 0.05, 0.02
_HPARAMS = dict(
  num_head_steps=3,
  num_body_steps=2,
  head_learning_rate=_HEAD_RATE,
  body_learning_rate=_BODY_RATE,
  momentum=0.0,
  batch_size=None,
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
_DOMAINS = toy_problems.domains_of(_CLIENTS)


@functools.cache
def _build(domains=_DOMAINS, change='none', **options):
  network = toy_problems.linear_network(_BODY, _HEAD)
  model = domain_models.with_domains(
    augmentation.augmented(network, change), domains
  )
  return registry.build('fed_dar', model, seed=1, **{**_HPARAMS, **options})


# Algorithm 1, written down again.


class _Reference:
  """FedDAR for `linear_network` by numpy."""

  def __init__(self, domains=_DOMAINS, weighting='num_examples', **hparams):
    hparams = {**_HPARAMS, **hparams}
    self.weighting = weighting
    self.ridge = hparams['ridge']
    self.aggregation = hparams['aggregation']
    self.alternating = hparams['alternating']
    self.num_domains = domains.number
    self.weights_of_domains = np.ones(self.num_domains)
    if hparams['reweight_domains']:
      self.weights_of_domains = np.array(domains.loss_weights)
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
    sizes = [len(client.y) for client in clients]
    weights = None if self.weighting == 'uniform' else sizes
    self.body = np.average(bodies, axis=0, weights=weights)

  def _local_heads(self, client):
    heads = []
    for m, w in enumerate(self.heads):
      x, y = _of_domain(client, m)
      for _ in range(3 if len(y) else 0):
        z = x @ self.body
        w = w - _HEAD_RATE * 2 * z.T @ (z @ w - y) / len(y)
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
    for _ in range(2):
      slope, _ = self._slopes(client, body, self.heads)
      body = body - _BODY_RATE * slope
    return body

  def _local_models(self, client):
    body, heads = self.body, self.heads
    for _ in range(2):
      of_body, of_heads = self._slopes(client, body, heads)
      body = body - _BODY_RATE * of_body
      heads = [w - _BODY_RATE * slope for w, slope in zip(heads, of_heads)]
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


def _rounds(clients, num_rounds, **hparams):
  reference = _Reference(**hparams)
  for _ in range(num_rounds):
    reference.next(clients)
    heads = {f'domain_{m}/head': w for m, w in enumerate(reference.heads)}
    yield {'global_weights': {'body': reference.body, **heads}}


@pytest.mark.parametrize(
  ('weighting', 'changes'),
  [
    ('num_examples', {}),
    ('uniform', {'alternating': False, 'reweight_domains': False}),
  ],
)
def test_rounds_are_those_of_the_algorithm(weighting, changes):
  options = {}
  if weighting != 'num_examples':
    options = toy_problems.WEIGHTINGS[weighting]
  process = _build(**options, **changes)
  # Heads are combined by the domains' examples, whatever clients weigh.
  state, _, _ = toy_problems.check_rounds(
    process, _CLIENTS, _rounds(_CLIENTS, 2, weighting=weighting, **changes)
  )
  # A domain without examples keeps its head, bit for bit.
  np.testing.assert_array_equal(
    state.global_weights['domain_2/head/kernel'], _HEAD
  )


def test_heads_train_on_changed_inputs_as_the_body_does():
  hparams = {'aggregation': 'weighted_average'}
  process = _build(change=lambda x, unused_seed: 2 * x, **hparams)
  changed = [toy_problems.changed(c, x=2 * c.x) for c in _CLIENTS]
  toy_problems.check_rounds(process, _CLIENTS, _rounds(changed, 1, **hparams))


def test_joint_training_of_one_domain_is_fed_avg():
  clients = [toy_problems.in_domains(c, [0]) for c in _CLIENTS]
  joint = _build(
    toy_problems.domains_of(clients, ('all',)),
    aggregation='weighted_average',
    alternating=False,
  )
  avg = toy_problems.full_batches(
    'fed_avg', joint.model, num_steps=2, learning_rate=_BODY_RATE
  )
  (actual, _, _), (expected, _, _) = (
    toy_problems.train(process, clients) for process in (joint, avg)
  )
  toy_problems.assert_close(actual.global_weights, expected.global_weights)


def test_one_head_that_takes_the_domain_is_trained_in_turn():
  process = _build(heads='domain_as_input', aggregation='weighted_average')
  actual = toy_problems.train(process, _CLIENTS)[0].global_weights
  of_domains = np.array(_DOMAINS.loss_weights)
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
    for _ in range(3):
      z, slopes = errors(client, _BODY, head)
      head = head - _HEAD_RATE * z.T @ slopes
    heads.append(head)
  new_head = np.average(heads, axis=0, weights=counts)
  for client in _CLIENTS:
    body = _BODY
    for _ in range(2):
      _, slopes = errors(client, body, new_head)
      step = client.x.T @ slopes @ new_head[:2].T
      body = body - _BODY_RATE * step
    bodies.append(body)
  expected = {
    'body': np.average(bodies, axis=0, weights=counts),
    'head': new_head[:2],
    'domain_input': new_head[2:],
  }
  toy_problems.assert_part(actual, expected)


def test_domain_absent_from_a_cohort_keeps_its_head():
  process = _build()
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


# Its clipping norm and noise are such that they hardly change anything. With
# this seed, noise makes the share that nobody has positive.
_private = functools.partial(
  private_mean.PrivateMeanFactory, 1e-10, 2, 'fixed:100', seed=1
)


# Private means are of clients, not of examples: these have as many.
_ALIKE = (_client(12, 0, [0, 1, 1]), _client(12, 1, [1, 0, 1, 1]))


@pytest.mark.parametrize(
  ('aggregator', 'clients'),
  [
    (_private, _ALIKE),
    # It clips reports, by which a client with large Hessians counts less than
    # by its examples; the scale of all is irrelevant.
    pytest.param(
      tff.learning.secure_aggregator, _ALIKE[:1], marks=pytest.mark.slow
    ),
  ],
)
def test_any_aggregator_serves(aggregator, clients):
  domains = toy_problems.domains_of(clients)
  process = _build(domains, aggregator=aggregator(), ridge=1e-3)
  state, _, _ = toy_problems.check_rounds(
    process,
    clients,
    _rounds(clients, 2, domains=domains, ridge=1e-3),
    rtol=0,
    atol=1e-4,
  )
  # Nobody has the third domain.
  np.testing.assert_array_equal(
    state.global_weights['domain_2/head/kernel'], _HEAD
  )
