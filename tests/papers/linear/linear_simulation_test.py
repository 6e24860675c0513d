"""Rounds of every method against NumPy, and what the papers say they do."""

import numpy as np
import pytest
import tensorflow as tf

from binaries.papers.linear import (
  initialization,
  methods,
  simulation,
)
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tests.papers.linear import arrays
from tff_pfl import errors
from tff_pfl.evaluation import representation as representation_lib

_NUM_CLIENTS, _DIMENSION, _RANK, _NUM_SAMPLES = 4, 5, 2, 6
_RATE = 0.1


def _problem(**kwargs):
  return problem_lib.LinearProblem(
    _NUM_CLIENTS,
    _DIMENSION,
    _RANK,
    **{
      'samples_per_client': _NUM_SAMPLES,
      'noise_std': 0.1,
      'seed': 1,
      **kwargs,
    },
  )


def _initial(seed=0):
  return arrays.initial_model(_DIMENSION, _RANK, seed)


def _assert_close(model, expected):
  for part, other in zip(model, expected):
    np.testing.assert_allclose(part, other, atol=1e-12)


def _numpy_gradients(x, y, representation, head):
  g = x.T @ (x @ representation @ head - y) / len(y)
  return np.outer(g, head), representation.T @ g


def _numpy_personal_heads(num_head_steps, num_rounds):
  """FedRep (no head steps: exact heads) and GD-GD, written with loops."""
  samples = [value.numpy() for value in _problem().samples()]
  representation, head = _initial()
  heads = [head] * _NUM_CLIENTS
  for _ in range(num_rounds):
    representations = []
    for i, (x, y) in enumerate(zip(*samples)):
      if num_head_steps:
        for _ in range(num_head_steps):
          slope = _numpy_gradients(x, y, representation, heads[i])[1]
          heads[i] = heads[i] - _RATE * slope
      else:
        heads[i] = np.linalg.lstsq(x @ representation, y, rcond=None)[0]
      slope = _numpy_gradients(x, y, representation, heads[i])[0]
      representations.append(representation - _RATE * slope)
    representation = arrays.positive_q(np.mean(representations, axis=0))
  return representation, np.stack(heads)


def _numpy_joint(num_local_steps, num_rounds):
  """Per client, the model after local steps on B and w."""
  samples = [value.numpy() for value in _problem().samples()]
  models = [_initial()] * _NUM_CLIENTS
  for _ in range(num_rounds):
    stepped = []
    for (x, y), (representation, head) in zip(zip(*samples), models):
      for _ in range(num_local_steps):
        slopes = _numpy_gradients(x, y, representation, head)
        representation = representation - _RATE * slopes[0]
        head = head - _RATE * slopes[1]
      stepped.append((representation, head))
    yield stepped
    mean = tuple(np.mean(part, axis=0) for part in zip(*stepped))
    models = [mean] * _NUM_CLIENTS


@pytest.mark.parametrize(
  'method, num_head_steps',
  [
    (methods.fed_rep(_RATE), 0),
    (methods.gd_gd(_RATE), 1),
    (methods.gd_gd(_RATE, num_head_steps=10), 10),
  ],
  ids=lambda value: getattr(value, 'name', None),
)
def test_rounds_with_personal_heads_equal_numpy(method, num_head_steps):
  history = simulation.run(method, _problem(), 3, initial=_initial())
  representation, heads = _numpy_personal_heads(num_head_steps, 3)

  _assert_close(history.model, (representation, heads))


@pytest.mark.parametrize(
  'method, num_local_steps',
  [
    (methods.fed_avg(_RATE, num_local_steps=3), 3),
    (methods.fed_avg(_RATE, num_local_steps=1), 1),
    # A batch of all samples leaves only their order to chance.
    (methods.fed_sgd(_RATE, batch_size=_NUM_SAMPLES), 1),
  ],
  ids=lambda value: getattr(value, 'name', None),
)
def test_rounds_with_one_model_equal_numpy(method, num_local_steps):
  history = simulation.run(method, _problem(), 3, initial=_initial())
  *_, last = _numpy_joint(num_local_steps, 3)

  _assert_close(history.model, (np.mean(part, axis=0) for part in zip(*last)))


def test_local_only_shares_nothing():
  history = simulation.run(
    methods.local_only(_RATE), _problem(), 6, initial=_initial()
  )
  # Six steps alone are one round of six steps without its mean.
  (models,) = _numpy_joint(6, 1)

  _assert_close(history.model, map(np.stack, zip(*models)))
  assert history.distance[-1] == pytest.approx(
    np.mean(
      [
        representation_lib.principal_angle_distance(
          representation, _problem().representation
        )
        for representation, _ in models
      ]
    )
  )


def test_series_are_of_the_global_loss_and_the_ground_truth():
  problem, initial = _problem(), _initial()
  series = simulation.run(
    methods.fed_avg(_RATE, num_local_steps=1), problem, 2, initial=initial
  )
  x, y = (value.numpy() for value in problem.samples())
  slopes = [
    _numpy_gradients(*client, initial.representation, initial.head)
    for client in zip(x, y)
  ]
  mean = [np.mean(part, axis=0) for part in zip(*slopes)]
  assert len(series.distance) == len(series.gradient_norm) == 3
  assert series.gradient_norm[0] == pytest.approx(
    np.sqrt(sum((part**2).sum() for part in mean))
  )
  assert series.distance[0] == pytest.approx(
    representation_lib.principal_angle_distance(
      initial.representation, problem.representation
    )
  )


def test_gradient_norm_counts_the_heads_that_clients_keep():
  problem, initial = _problem(), _initial()
  series = simulation.run(methods.gd_gd(_RATE), problem, 0, initial=initial)
  slopes = [
    _numpy_gradients(x, y, initial.representation, initial.head)
    for x, y in zip(*(value.numpy() for value in problem.samples()))
  ]
  representation = np.mean([part for part, _ in slopes], axis=0)
  heads = np.stack([part for _, part in slopes]) / _NUM_CLIENTS

  assert series.gradient_norm[0] == pytest.approx(
    np.sqrt((representation**2).sum() + (heads**2).sum())
  )
  np.testing.assert_array_equal(
    series.model.representation, initial.representation
  )


def test_population_rounds_equal_rounds_on_the_populations_design():
  population = _problem(samples_per_client=None)
  history = simulation.run(
    methods.fed_avg(_RATE, num_local_steps=2), population, 2, initial=_initial()
  )
  models = [_initial()] * _NUM_CLIENTS
  for _ in range(2):
    stepped = []
    for target, (representation, head) in zip(population.targets, models):
      for _ in range(2):
        difference = representation @ head - target
        representation, head = (
          representation - _RATE * np.outer(difference, head),
          head - _RATE * representation.T @ difference,
        )
      stepped.append((representation, head))
    models = [
      tuple(np.mean(part, axis=0) for part in zip(*stepped))
    ] * _NUM_CLIENTS

  _assert_close(history.model, models[0])


def test_gd_gd_with_many_head_steps_tends_to_fed_rep():
  exact, many = (
    simulation.run(method, _problem(), 3, initial=_initial())
    for method in (
      methods.fed_rep(0.5),
      methods.gd_gd(0.5, num_head_steps=2000),
    )
  )

  np.testing.assert_allclose(
    many.model.representation, exact.model.representation, atol=1e-10
  )


def test_mini_batches_depend_on_the_seed():
  # A step shows which of the 50 samples of each client was drawn.
  first, again, other = (
    simulation.run(
      methods.fed_sgd(_RATE, batch_size=1),
      _problem(samples_per_client=50),
      1,
      initial=_initial(),
      seed=seed,
    ).model.head
    for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.isclose(first, other).any()


def test_each_client_has_a_seed_of_its_own_in_each_round():
  def keep_seed(model, samples, seed):
    del samples
    head = tf.cast(seed, tf.float64)
    return {}, model._replace(head=head)._asdict()

  probe = methods.LinearMethod(
    'probe', (), (methods.Phase(keep_seed, lambda shared, mean: shared),)
  )
  seeds = [
    simulation.run(
      probe, _problem(), num_rounds, initial=_initial(), seed=seed
    ).model.head
    for num_rounds, seed in ((1, 0), (2, 0), (1, 1))
  ]
  assert len(np.unique(np.concatenate(seeds), axis=0)) == 3 * _NUM_CLIENTS


def test_fed_rep_contracts_geometrically_to_rounding():
  problem = problem_lib.LinearProblem(100, 20, 2, samples_per_client=5, seed=0)
  initial = initialization.with_zero_head(
    initialization.random_representation(20, 2)
  )
  distance = simulation.run(
    methods.fed_rep(0.5), problem, 150, initial=initial
  ).distance
  first, last = np.argmax(distance < 0.5), np.argmax(distance < 1e-7)
  rounds = np.arange(first, last)
  correlation = np.corrcoef(rounds, np.log(distance[first:last]))[0, 1]

  assert distance.min() < 1e-6
  assert correlation**2 > 0.98


def test_fed_avg_finds_the_representation_that_d_gd_does_not():
  problem = problem_lib.LinearProblem(
    20, 20, 3, head_distribution='gaussian', seed=1
  )
  start = initialization.representation_at_distance(problem.representation, 0.9)
  initial = initialization.with_zero_head(start / np.sqrt(0.4))
  fed_avg, d_gd = (
    simulation.run(method, problem, 500, initial=initial)
    for method in (
      methods.fed_avg(0.4, num_local_steps=2),
      methods.fed_avg(0.4, num_local_steps=1),
    )
  )

  assert fed_avg.distance[-1] < 1e-6
  assert fed_avg.gradient_norm[-1] > 1e-3
  assert d_gd.distance.min() > 0.7 * d_gd.distance[0]
  assert d_gd.gradient_norm[-1] < 1e-6 * d_gd.gradient_norm[0]


def test_divergence_names_the_round_and_the_remedy():
  with pytest.raises(
    errors.RunError, match='fed_avg diverged.*Choose a smaller step size'
  ):
    simulation.run(methods.fed_avg(50.0), _problem(), 100, initial=_initial())


def test_rank_deficient_representation_is_at_distance_one():
  initial = model_lib.LinearModel(
    np.repeat(_problem().representation[:, :1], 2, axis=1), np.ones(2)
  )
  series = simulation.run(
    methods.fed_avg(_RATE, num_local_steps=1), _problem(), 0, initial=initial
  )

  assert series.distance[0] == 1.0
