import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.methods import fed_em, registry

_SHARES = 'mixture/log_weights'


def test_responsibilities_by_hand():
  losses = np.log(np.float32([[1, 2], [4, 2], [1, 1], [np.nan, 0]]))
  q, log_shares = fed_em.responsibilities(
    losses, np.log(np.float32([0.2, 0.8])), np.int32(3)
  )
  # q_j(m) is proportional to pi_m / exp(loss); the last row is padding.
  expected = np.array([[0.2, 0.4], [0.05, 0.4], [0.2, 0.8]])
  expected /= expected.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(q[:3], expected, rtol=1e-5)
  np.testing.assert_array_equal(q[3], [0, 0])
  np.testing.assert_allclose(
    np.exp(log_shares), expected.mean(axis=0), rtol=1e-5
  )


_PLANTED_SHARES = [(1.0, 0.0), (0.8, 0.2), (0.2, 0.8), (0.0, 1.0)]


def _train_planted(**options):
  """Trains on clients of the planted mixtures; returns these, too."""
  clients = [
    toy_problems.planted_examples(200, p, i)
    for i, p in enumerate(_PLANTED_SHARES)
  ]
  process = registry.build(
    'fed_em',
    toy_problems.classifier(),
    fed_em.FedEmHParams(
      num_components=2, num_epochs=2, learning_rate=0.1, batch_size=20
    ),
    seed=1,
    **options,
  )
  state, states, _ = toy_problems.train(process, clients, 40)
  return clients, process, state, states


def _assert_planted(shares):
  # Which component is which rule is arbitrary.
  if shares[0, 0] < 0.5:
    shares = shares[:, ::-1]
  np.testing.assert_allclose(shares, _PLANTED_SHARES, atol=0.12)


@pytest.fixture(name='trained', scope='module')
def _trained():
  return _train_planted()[1:]


@pytest.mark.slow
def test_planted_mixtures_are_recovered(trained):
  process, state, states = trained
  shares = np.exp([s.local[_SHARES] for s in states])
  np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
  _assert_planted(shares)
  # The mixture of one rule is a good model of it.
  pure = toy_problems.planted_examples(400, _PLANTED_SHARES[0], 99)
  (data,) = toy_problems.padded([pure])
  scores = process.evaluate(state, states[0], data, data)
  assert scores['after']['accuracy'] > 0.85
  assert scores['before']['accuracy'] < scores['after']['accuracy'] - 0.2


def test_new_client_finds_its_mixture(trained):
  process, state, states = trained
  client = toy_problems.planted_examples(300, (0.2, 0.8), 50)
  personal = toy_problems.new_client(process, state, client)
  np.testing.assert_allclose(
    np.exp(personal.client_state.local[_SHARES]),
    np.exp(states[2].local[_SHARES]),
    atol=0.15,
  )
  for name, value in state.global_weights.items():
    np.testing.assert_array_equal(personal.weights[name], value)


def test_prediction_is_the_mixture_of_the_components_predictions(trained):
  process, state, states = trained
  model = process.model
  x = np.random.default_rng(0).normal(size=[6, 5]).astype(np.float32)
  weights = {**state.global_weights, **states[1].local}
  base = toy_problems.classifier()
  components = [
    tf.nn.softmax(
      base.forward(
        {
          name: state.global_weights[f'component_{m}/{name}']
          for name in base.initial_weights
        },
        x,
      )[0]
    )
    for m in range(2)
  ]
  shares = np.exp(states[1].local[_SHARES])
  expected = shares[0] * components[0] + shares[1] * components[1]
  actual = model.classifier.probabilities(model.forward(weights, x)[0])
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.slow
def test_stateless_clients_find_their_mixtures_anew():
  clients, process, state, states = _train_planted(stateless=True)
  assert not states[0].local
  assert process.needs_training_data(states[0])
  shares = np.stack(
    [
      tf.nn.softmax(process.personalize(state, s, data).weights[_SHARES])
      for s, data in zip(states, toy_problems.padded(clients))
    ]
  )
  _assert_planted(shares)
