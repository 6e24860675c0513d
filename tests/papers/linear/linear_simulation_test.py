"""Rounds of every method client by client, and what the papers say they do."""

import numpy as np
import pytest

from binaries.papers import representation as representation_lib
from binaries.papers.linear import methods, simulation
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tests.papers.linear import arrays
from tff_pfl import errors

_NUM_CLIENTS, _DIMENSION, _RANK, _NUM_SAMPLES = 4, 5, 2, 6
_RATE = 0.1


def _problem(num_clients=_NUM_CLIENTS, samples_per_client=_NUM_SAMPLES):
  sizes, own = (num_clients, _DIMENSION, _RANK), samples_per_client
  return problem_lib.LinearProblem(
    *sizes, samples_per_client=own, noise_std=0.1, seed=1
  )


def _initial():
  return arrays.initial_model(_DIMENSION, _RANK)


def _run(method, num_rounds, problem=None, **options):
  return simulation.run_method(
    method, problem or _problem(), num_rounds, initial=_initial(), **options
  )


def _assert_close(model, expected):
  for part, other in zip(model, expected):
    np.testing.assert_allclose(part, other, atol=1e-12)


def _distance(representation):
  return representation_lib.principal_angle_distance(
    representation, _problem().representation
  )


def _clients():
  """Inputs and labels of each client."""
  x, y, _ = _problem().samples()
  return list(zip(x, y))


def _gradients_of_one(x, y, representation, head):
  g = x.T @ (x @ representation @ head - y) / len(y)
  return np.outer(g, head), representation.T @ g


def _personal_heads_one_by_one(num_head_steps, num_rounds):
  """FedRep (no head steps: exact heads) and GD-GD, written with loops."""
  representation, head = _initial()
  heads = [head] * _NUM_CLIENTS
  for _ in range(num_rounds):
    representations = []
    for i, (x, y) in enumerate(_clients()):
      if num_head_steps:
        for _ in range(num_head_steps):
          slope = _gradients_of_one(x, y, representation, heads[i])[1]
          heads[i] = heads[i] - _RATE * slope
      else:
        heads[i] = np.linalg.lstsq(x @ representation, y, rcond=None)[0]
      slope = _gradients_of_one(x, y, representation, heads[i])[0]
      representations.append(representation - _RATE * slope)
    representation = model_lib.orthonormalize(np.mean(representations, axis=0))
  return representation, np.stack(heads)


def _joint_one_by_one(num_local_steps, num_rounds):
  """Per client, the model after local steps on B and w, of each round."""
  models = [_initial()] * _NUM_CLIENTS
  for _ in range(num_rounds):
    stepped = []
    for client, (representation, head) in zip(_clients(), models):
      for _ in range(num_local_steps):
        slopes = _gradients_of_one(*client, representation, head)
        representation = representation - _RATE * slopes[0]
        head = head - _RATE * slopes[1]
      stepped.append((representation, head))
    mean = tuple(np.mean(part, axis=0) for part in zip(*stepped))
    models = [mean] * _NUM_CLIENTS
  return stepped, mean


def test_rounds_with_personal_heads_are_those_of_each_client():
  for method, num_head_steps in (
    (methods.fed_rep(_RATE), 0),
    (methods.gd_gd(_RATE, num_head_steps=10), 10),
  ):
    expected = _personal_heads_one_by_one(num_head_steps, 3)
    _assert_close(_run(method, 3).model, expected)


def test_rounds_with_one_model_are_those_of_each_client():
  for method, num_local_steps in (
    (methods.fed_avg(_RATE, num_local_steps=3), 3),
    # A batch of all samples leaves only their order to chance.
    (methods.fed_sgd(_RATE, batch_size=_NUM_SAMPLES), 1),
  ):
    _, mean = _joint_one_by_one(num_local_steps, 3)
    history = _run(method, 3)
    _assert_close(history.model, mean)
    _assert_close(history.regressors, [mean[0] @ mean[1]] * _NUM_CLIENTS)


def test_local_only_shares_nothing():
  history = _run(methods.local_only(_RATE), 6)
  # Six steps alone are one round of six steps without its mean.
  models, _ = _joint_one_by_one(6, 1)
  distances = [_distance(representation) for representation, _ in models]
  _assert_close(history.model, map(np.stack, zip(*models)))
  assert history.distance[-1] == pytest.approx(np.mean(distances))
  _assert_close(history.regressors, [b @ w for b, w in models])


def test_series_are_of_the_global_loss_and_the_ground_truth():
  initial = _initial()
  slopes = [_gradients_of_one(*client, *initial) for client in _clients()]
  # Slopes of the clients' mean loss.
  bodies, heads = (np.stack(part) / _NUM_CLIENTS for part in zip(*slopes))
  distance = _distance(initial.representation)
  for method, of_heads in (
    (methods.fed_avg(_RATE), heads.sum(axis=0)),
    # Each client has a head of its own.
    (methods.gd_gd(_RATE), heads),
  ):
    series = _run(method, 2)
    assert len(series.distance) == len(series.gradient_norm) == 3
    squares = np.square(bodies.sum(axis=0)).sum() + np.square(of_heads).sum()
    assert series.gradient_norm[0] == pytest.approx(np.sqrt(squares))
    assert series.distance[0] == pytest.approx(distance)


@pytest.mark.parametrize(
  'participation, cohort_size', [(0.25, 2), (0.01, 1), (1.0, 10)]
)
def test_a_round_is_that_of_a_cohort_of_the_fractions_size(
  participation, cohort_size
):
  problem = _problem(10)
  method, options = methods.fed_rep(_RATE), {'participation': participation}
  once, twice, other = (
    _run(method, rounds, problem, seed=seed, **options).model
    for rounds, seed in ((1, 0), (2, 0), (1, 1))
  )
  has_changed = (once.head != _initial().head).any(axis=-1)
  assert has_changed.sum() == cohort_size
  if cohort_size < 10:
    # The cohort is another one in the next round, and with another seed.
    assert ((twice.head != once.head).any(axis=-1) != has_changed).any()
    assert ((other.head != _initial().head).any(axis=-1) != has_changed).any()
  samples = problem.samples().at(np.flatnonzero(has_changed))
  alone = method.one_round(_initial(), samples, None)
  _assert_close(once._replace(head=once.head[has_changed]), alone)


@pytest.mark.parametrize('rounds_per_record', [1, 100])
def test_divergence_names_the_round_and_the_remedy(rounds_per_record):
  message = r'fed_avg diverged.*round \d\. Choose a smaller step size'
  with pytest.raises(errors.RunError, match=message):
    _run(methods.fed_avg(50.0), 100, rounds_per_record=rounds_per_record)


def test_rank_deficient_representation_is_at_distance_one():
  columns = np.repeat(_problem().representation[:, :1], 2, axis=1)
  initial = model_lib.LinearModel(columns, np.ones(2))
  method = methods.fed_avg(_RATE, num_local_steps=1)
  series = simulation.run_method(method, _problem(), 0, initial=initial)
  assert series.distance[0] == 1.0


def test_seeds_draw_batches_and_records_may_be_of_some_rounds_only():
  # A step shows which of the 50 samples of each client was drawn.
  method = methods.fed_sgd(_RATE, batch_size=1)
  problem = _problem(samples_per_client=50)
  every, some, other = (
    _run(method, 6, problem, seed=seed, rounds_per_record=number)
    for seed, number in ((0, 1), (0, 3), (1, 3))
  )
  assert every.rounds.tolist() == list(range(7))
  assert some.rounds.tolist() == [0, 3, 6]
  np.testing.assert_array_equal(some.distance, every.distance[::3])
  np.testing.assert_array_equal(some.gradient_norm, every.gradient_norm[::3])
  np.testing.assert_array_equal(some.model.head, every.model.head)
  assert not np.isclose(some.model.head, other.model.head).any()
