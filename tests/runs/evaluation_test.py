import collections
import functools
import types

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics

from tests.methods import toy_problems
from tests.runs import clients
from tff_pfl import datasets
from tff_pfl.core import padding
from tff_pfl.methods import registry
from tff_pfl.models import domain_models, prediction, zoo
from tff_pfl.runs import evaluation, scores

# More than are evaluated in one call; clients 3, 13, … have no test examples.
_NUM_CLIENTS = 57
_RNG = np.random.default_rng(4)


@functools.cache
def _data():
  sizes = [
    (2 + i % 4, 0 if i % 10 == 3 else 1 + i % 3) for i in range(_NUM_CLIENTS)
  ]
  train = [
    toy_problems.labeled_examples(n, seed=i) for i, (n, _) in enumerate(sizes)
  ]
  test = [
    toy_problems.labeled_examples(n, seed=1000 + i)
    for i, (_, n) in enumerate(sizes)
  ]
  return train, test


def _states(process, runtime, num_clients, num_new=1):
  """As after a round: the server's state, and all clients', the new ones last.

  The weights are any, so that all differ.
  """
  state = runtime.run(process.initialize)
  states = runtime.run(process.initialize_client_states, [*range(num_clients)])
  rng = np.random.default_rng(5)
  known = [
    one._replace(
      num_rounds=np.asarray(1, one.num_rounds.dtype),
      local=tf.nest.map_structure(
        lambda value: rng.normal(size=value.shape).astype(value.dtype),
        one.local,
      ),
    )
    for one in states[: num_clients - num_new]
  ]
  weights = toy_problems.jittered(state.global_weights)
  return state._replace(global_weights=weights), known + states[len(known) :]


@pytest.fixture(name='trained', scope='module')
def _trained(runtime):
  """FedRep, a server state, and clients' states: 0 to 4 took part."""
  process = registry.build('fed_rep', toy_problems.classifier())
  return process, *_states(process, runtime, _NUM_CLIENTS, _NUM_CLIENTS - 5)


def test_every_client_with_test_examples_is_scored_once_in_order(
  trained, runtime
):
  process, server_state, states = trained
  data = clients.Clients(*_data())
  asked = []

  def states_of(indices):
    asked.append(list(indices))
    return [states[index] for index in indices]

  rows, summary = evaluation.evaluate(
    process, runtime, server_state, states_of, data
  )
  assert summary == scores.summarize(rows, False, process.model)
  scored = [i for i in range(_NUM_CLIENTS) if i % 10 != 3]
  assert [row['client'] for row in rows] == [f'client {i}' for i in scored]
  assert [index for chunk in asked for index in chunk] == scored
  assert [len(chunk) for chunk in asked] == [20, 20, 11]
  train, test = _data()
  for i, row in zip(scored, rows):
    assert row['num_train_examples'] == len(train[i].y)
    assert row['num_test_examples'] == len(test[i].y)
    assert row['num_rounds'] == (1 if i < 5 else 0)
  # On both sides of the border between two calls, against one call each.
  for position in (0, 19, 20, len(rows) - 1):
    i = scored[position]
    alone = process.evaluate(
      server_state,
      states[i],
      padding.padded(train[i]),
      padding.padded(test[i]),
    )
    for which in ('before', 'after'):
      assert rows[position][which] == {
        metric: pytest.approx(value, rel=1e-5)
        for metric, value in alone[which].items()
      }
      assert all(type(v) is float for v in rows[position][which].values())
  # Known clients have their head already; only new ones need training data.
  assert data.trained == [f'client {i}' for i in scored if i >= 5]


@pytest.mark.parametrize(
  ('batches_clients', 'indices', 'given'),
  # Clients 3 and 4 took part, 5 is new.
  [(False, '345', '5'), (True, '345', '345'), (True, '34', '')],
)
def test_known_clients_of_a_batch_have_the_shapes_of_new_ones(
  batches_clients, indices, given, trained
):
  process, _, states = trained
  actual = evaluation.training_examples(
    process,
    types.SimpleNamespace(batches_clients=batches_clients),
    [states[int(index)] for index in indices],
    dict(zip(indices, indices)),
    indices,
  )
  assert ''.join(one for one in actual if isinstance(one, str)) == given


def test_scores_of_domains_are_of_all_clients_predictions(runtime, monkeypatch):
  rng = np.random.default_rng(0)
  keys = np.repeat(['a', 'b', 'c'], 30)
  data = datasets.FederatedDataset.from_arrays(
    rng.normal(size=[90, 5]).astype(np.float32),
    rng.integers(2, size=90),
    keys=keys,
    num_classes=2,
    # The last client has examples of one domain only.
    domain=np.where(keys == 'c', 1, np.arange(90) % 2),
    domain_names=['sea', 'hills'],
    test_fraction=0.5,
  )
  # Without equal scores, which rounding may put in any order.
  model = zoo.mlp(data.element_spec, 2, widths=[4], activation='tanh')
  process = registry.build('fed_avg', domain_models.with_domains(model, data))
  state = runtime.run(process.initialize)
  # Nobody needs training data.
  monkeypatch.setattr(datasets.FederatedDataset, 'train', None)
  rows, summary = evaluation.evaluate(
    process,
    runtime,
    state,
    evaluation.new_states(process, runtime, 0),
    data,
  )
  tests = [data.test(name) for name in data.client_ids]
  predicted = [
    prediction.predict(process.model, state.global_weights, one.x, one.domain)
    for one in tests
  ]
  assert [list(row['domains']) for row in rows] == [['sea', 'hills']] * 2 + [
    ['hills']
  ]
  for row, test, p in zip(rows, tests, predicted):
    assert row['after'] == row['before']
    for name, actual in row['domains'].items():
      own = test.domain == data.domain_names.index(name)
      right = p[own].argmax(axis=1) == test.y[own]
      assert actual['num_test_examples'] == own.sum()
      assert actual['after']['accuracy'] == pytest.approx(right.mean())
  # Without what pads a client's examples.
  y, domain, p = (
    np.concatenate(parts)
    for parts in ([t.y for t in tests], [t.domain for t in tests], predicted)
  )
  personal = summary['domains']['personal']
  for m, name in enumerate(data.domain_names):
    own = domain == m
    area = metrics.roc_auc_score(y[own], p[own, 1])
    right = p[own].argmax(axis=1) == y[own]
    assert personal['auc']['by_domain'][name] == pytest.approx(area)
    assert personal['accuracy']['by_domain'][name] == pytest.approx(
      right.mean()
    )
  assert summary['domains']['global'] == personal
  # All else is as without domains.
  for name in ('domains', 'two_classes'):
    del summary[name]
  assert summary == scores.summarize(rows, True, model)


@pytest.fixture(scope='module', name='fed_per')
def _fed_per():
  body, head = (
    _RNG.normal(size=shape).astype(np.float32) for shape in ([5, 4], [4, 3])
  )
  return registry.build('fed_per', toy_problems.linear_classifier(body, head))


def _labeled(sizes, seed):
  return [
    toy_problems.labeled_examples(n, seed + i) for i, n in enumerate(sizes)
  ]


def _ensemble_scores(process, runtime, known, new, state, states, members=None):
  return evaluation.evaluate_by_ensemble(
    process,
    runtime,
    state,
    lambda indices: [states[index] for index in indices],
    clients.Clients(known, known),
    clients.Clients(new, new),
    members,
  )


def _softmax(values):
  exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
  return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_new_clients_get_the_mean_of_the_known_models_probabilities(
  runtime, fed_per
):
  # More clients than are personalized in one call, and more test examples than
  # are predicted in one.
  num_known, new_sizes = 24, (300, 0, 2)
  known = _labeled([4 + i % 3 for i in range(num_known)], 0)
  new = _labeled(new_sizes, 100)
  state, states = _states(fed_per, runtime, len(known))
  rows = _ensemble_scores(fed_per, runtime, known, new, state, states)

  tested = [i for i, size in enumerate(new_sizes) if size]
  assert [row['client'] for row in rows] == [f'client {i}' for i in tested]
  shared = toy_problems.kernels(state.global_weights)['body']
  for row, index in zip(rows, tested):
    probabilities = np.mean(
      [
        _softmax(new[index].x @ shared @ toy_problems.kernels(s.local)['head'])
        for s in states[:-1]
      ],
      axis=0,
    )
    y = new[index].y
    assert row['num_test_examples'] == new_sizes[index]
    assert row['num_models'] == num_known - 1
    np.testing.assert_allclose(
      row['after']['accuracy'],
      np.mean(np.argmax(probabilities, axis=-1) == y),
      rtol=1e-6,
    )
    np.testing.assert_allclose(
      row['after']['loss'],
      -np.mean(np.log(probabilities[np.arange(len(y)), y])),
      rtol=1e-4,
    )


def test_an_ensemble_for_regression_takes_the_mean_of_the_outputs(runtime):
  body = _RNG.normal(size=[4, 2]).astype(np.float32)
  head = _RNG.normal(size=[2, 3]).astype(np.float32)
  process = registry.build('fed_per', toy_problems.linear_network(body, head))
  known = [toy_problems.regression_examples(6, 4, 3, seed=i) for i in range(4)]
  new = [toy_problems.regression_examples(7, 4, 3, seed=9)]
  state, states = _states(process, runtime, len(known))
  (row,) = _ensemble_scores(process, runtime, known, new, state, states)
  mean_head = np.mean(
    [toy_problems.kernels(s.local)['head'] for s in states[:-1]], axis=0
  )
  shared = toy_problems.kernels(state.global_weights)['body']
  np.testing.assert_allclose(
    row['after']['loss'],
    np.mean((new[0].x @ shared @ mean_head - new[0].y) ** 2),
    rtol=1e-4,
  )


@pytest.fixture(scope='module', name='ensemble')
def _ensemble(runtime, fed_per):
  """Four clients' examples, the server's state and the clients' states."""
  known = _labeled((4, 5, 6, 7), 0)
  return known, *_states(fed_per, runtime, len(known))


def test_an_ensemble_is_of_the_members_whose_models_are_finite(
  runtime, fed_per, ensemble
):
  known, state, states = ensemble
  new = _labeled((8,), 50)

  def score(known, states, members=None):
    return _ensemble_scores(
      fed_per, runtime, known, new, state, states, members
    )

  everyone = score(known, states)
  part = score(known[:3:2], states[:3:2])
  assert score(known, states, [0, 2]) == part != everyone
  assert part[0]['num_models'] == 2
  # A model that diverged has no say.
  broken = states[1]._replace(
    local=tf.nest.map_structure(
      lambda value: np.full_like(value, np.nan), states[1].local
    )
  )
  assert score(known, [states[0], broken, *states[2:]]) == part


def test_an_ensemble_takes_a_trained_model(runtime, fed_per, ensemble):
  known, state, states = ensemble
  untrained = states[-1:] * len(known)
  with pytest.raises(evaluation.NoModelsError, match='finite model'):
    _ensemble_scores(fed_per, runtime, known, known, state, untrained)


def test_fine_tuned_models_predict_as_such_in_an_ensemble(runtime):
  # Per-FedAvg's clients keep nothing; their models need their data.
  process = registry.build(
    'per_fed_avg', toy_problems.classifier(), variant='first_order'
  )
  known, new = _labeled((4, 5, 6), 0), _labeled((8,), 50)
  state, states = _states(process, runtime, len(known))
  (row,) = _ensemble_scores(process, runtime, known, new, state, states)
  data = toy_problems.padded(known)
  probabilities = []
  for client_state, examples_of in zip(states[:-1], data):
    weights = runtime.run(
      process.personalize, state, client_state, examples_of
    ).weights
    outputs, _ = process.model.forward(weights, tf.constant(new[0].x))
    probabilities.append(_softmax(np.asarray(outputs)))
  mean = np.mean(probabilities, axis=0)
  np.testing.assert_allclose(
    row['after']['loss'],
    -np.mean(np.log(mean[np.arange(8), new[0].y])),
    rtol=1e-4,
  )


@pytest.mark.slow
def test_an_ensembles_examples_with_domains_are_predicted_by_domain(runtime):
  model = domain_models.with_domains(
    toy_problems.classifier(), toy_problems.DOMAINS
  )
  process = registry.build(
    'fed_dar', model, toy_problems.hparams_for('fed_dar')
  )
  known = [toy_problems.in_turn(c) for c in _labeled((6, 7, 8), 0)]
  (of_new,) = _labeled((9,), 50)
  new = toy_problems.in_turn(of_new)
  state, states = _states(process, runtime, len(known))
  (row,) = _ensemble_scores(process, runtime, known, [new], state, states)
  # All clients' models are the global one.
  outputs, _ = process.model.forward(
    runtime.run(
      process.personalize, state, states[0], toy_problems.padded(known)[0]
    ).weights,
    collections.OrderedDict(
      inputs=tf.constant(new.x), domain=tf.constant(new.domain)
    ),
  )
  expected = _softmax(np.asarray(outputs))[np.arange(9), new.y]
  np.testing.assert_allclose(
    row['after']['loss'], -np.mean(np.log(expected)), rtol=1e-4
  )
