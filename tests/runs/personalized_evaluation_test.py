import functools
import math
import types

import numpy as np
import pytest
from sklearn import metrics

from tests.methods import toy_problems
from tests.runs import clients
from tff_pfl import datasets
from tff_pfl.core import client_examples
from tff_pfl.methods import registry
from tff_pfl.models import domain_models, prediction, split_model, zoo
from tff_pfl.runs import personalized_evaluation

# More than are evaluated in one call; clients 3, 13, … have no test examples.
_NUM_CLIENTS = 57


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


@pytest.fixture(name='trained', scope='module')
def _trained():
  """FedRep, a server state, and clients' states: 0 to 4 took part."""
  process = registry.build('fed_rep', toy_problems.classifier())
  output = process.next(
    process.initialize(),
    process.initialize_client_states(list(range(5))),
    toy_problems.padded(_data()[0][:5]),
  )
  new = process.initialize_client_states(list(range(5, _NUM_CLIENTS)))
  return process, output.state, [*output.client_states, *new]


def test_every_client_with_test_examples_is_scored_once_in_order(
  trained, runtime
):
  process, server_state, states = trained
  data = clients.Clients(*_data())
  asked = []

  def states_of(indices):
    asked.append(list(indices))
    return [states[index] for index in indices]

  rows, summary = personalized_evaluation.evaluate(
    process, runtime, server_state, states_of, data
  )
  assert summary == personalized_evaluation.summarize(rows, False)
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
      client_examples.padded(train[i]),
      client_examples.padded(test[i]),
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
  found = personalized_evaluation.training_examples(
    process,
    types.SimpleNamespace(batches_clients=batches_clients),
    [states[int(index)] for index in indices],
    dict(zip(indices, indices)),
    indices,
  )
  assert ''.join(one for one in found if isinstance(one, str)) == given


def test_models_that_diverged_are_counted_and_hurt():
  rows = [
    {'before': {'loss': 1.0}, 'after': {'loss': loss}, 'num_test_examples': 1}
    for loss in (0.5, math.nan, math.inf)
  ]
  summary = personalized_evaluation.summarize(rows, True, split_model.LOSS)
  assert summary['non_finite_clients'] == 2
  assert summary['primary_metric'] == split_model.LOSS._asdict()
  assert summary['fairness']['fraction_hurt'] == 2 / 3
  with pytest.raises(ValueError, match='at least one client with test'):
    personalized_evaluation.summarize([], has_global_model=True)


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
  rows, summary = personalized_evaluation.evaluate(
    process,
    runtime,
    state,
    lambda positions: runtime.run(process.initialize_client_states, positions),
    data,
  )
  tests = [data.test(name) for name in data.client_ids]
  scores = [
    prediction.predict(process.model, state.global_weights, one.x, one.domain)
    for one in tests
  ]
  assert [list(row['domains']) for row in rows] == [['sea', 'hills']] * 2 + [
    ['hills']
  ]
  for row, test, p in zip(rows, tests, scores):
    assert row['after'] == row['before']
    for name, found in row['domains'].items():
      own = test.domain == data.domain_names.index(name)
      right = p[own].argmax(axis=1) == test.y[own]
      assert found['num_test_examples'] == own.sum()
      assert found['after']['accuracy'] == pytest.approx(right.mean())
  # Without what pads a client's examples.
  y, domain, p = (
    np.concatenate(parts)
    for parts in ([t.y for t in tests], [t.domain for t in tests], scores)
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
  assert summary == personalized_evaluation.summarize(rows, True)
