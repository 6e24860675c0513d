import functools
import types

import numpy as np
import pytest

from tests.methods import toy_problems
from tests.runs import clients
from tff_pfl import datasets
from tff_pfl.core import client_examples
from tff_pfl.methods import registry
from tff_pfl.models import domains as domains_lib
from tff_pfl.models import split_model
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


@functools.cache
def _process(name):
  return registry.build(name, toy_problems.classifier())


def _trained(name):
  """A server state, and states of all clients of which 0 to 4 took part."""
  process = _process(name)
  output = process.next(
    process.initialize(),
    process.initialize_client_states(list(range(5))),
    toy_problems.padded(_data()[0][:5]),
  )
  new = process.initialize_client_states(list(range(5, _NUM_CLIENTS)))
  return output.state, [*output.client_states, *new]


def _evaluate(name, runtime):
  server_state, states = _trained(name)
  data = clients.Clients(*_data())
  asked = []

  def states_of(indices):
    asked.append(list(indices))
    return [states[index] for index in indices]

  rows, summary = personalized_evaluation.evaluate(
    _process(name), runtime, server_state, states_of, data
  )
  has_global_model = _process(name).has_global_model
  assert summary == personalized_evaluation.summarize(rows, has_global_model)
  return rows, data, asked, server_state, states


def test_every_client_with_test_examples_is_scored_once_in_order(runtime):
  rows, data, asked, server_state, states = _evaluate('fed_rep', runtime)
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
    alone = _process('fed_rep').evaluate(
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


def test_training_data_are_not_read_where_nobody_needs_them(runtime):
  rows, data, _, _, _ = _evaluate('fed_avg', runtime)
  assert rows
  assert data.trained == []
  for row in rows:
    assert row['after'] == row['before']


def _row(client, before, after, num_test_examples):
  return {
    'client': client,
    'num_train_examples': 10,
    'num_test_examples': num_test_examples,
    'num_rounds': 1,
    'before': before,
    'after': after,
  }


def test_summary_is_that_computed_by_hand():
  rows = [
    _row(
      'a', {'loss': 2.0, 'accuracy': 0.5}, {'loss': 1.0, 'accuracy': 1.0}, 1
    ),
    _row(
      'b', {'loss': 1.0, 'accuracy': 0.5}, {'loss': 2.0, 'accuracy': 0.0}, 3
    ),
  ]
  summary = personalized_evaluation.summarize(rows, has_global_model=True)
  assert summary['personal'] == {'loss': 1.5, 'accuracy': 0.5}
  assert summary['global'] == {'loss': 1.5, 'accuracy': 0.5}
  fairness = summary['fairness']
  assert fairness['weighted_mean'] == 0.25
  assert fairness['fraction_hurt'] == 0.5
  summary = personalized_evaluation.summarize(rows, has_global_model=False)
  assert summary['global'] is None
  assert summary['fairness']['fraction_hurt'] is None


def test_fairness_of_a_regression_is_of_its_error():
  rows = [
    _row('a', {'loss': 1.0, 'mae': 0.5}, {'loss': 0.5, 'mae': 0.25}, 4),
    _row('b', {'loss': 2.0, 'mae': 0.5}, {'loss': 1.5, 'mae': 0.75}, 4),
  ]
  mae = split_model.PrimaryMetric('mae', False)
  summary = personalized_evaluation.summarize(rows, True, mae)
  assert summary['personal'] == {'loss': 1.0, 'mae': 0.5}
  assert summary['primary_metric'] == {'name': 'mae', 'higher_is_better': False}
  assert summary['fairness']['worst_10_percent'] == 0.75
  assert summary['fairness']['fraction_hurt'] == 0.5


def test_summary_of_nobody_is_refused():
  with pytest.raises(ValueError, match='at least one client with test'):
    personalized_evaluation.summarize([], has_global_model=True)


def test_models_that_diverged_are_counted():
  rows = [
    {
      'num_test_examples': 1,
      'before': {'loss': 1.0},
      'after': {'loss': loss},
    }
    for loss in (0.5, float('nan'), float('inf'))
  ]
  summary = personalized_evaluation.summarize(rows, True, split_model.LOSS)
  assert summary['non_finite_clients'] == 2
  assert summary['primary_metric'] == {
    'name': 'loss',
    'higher_is_better': False,
  }
  # None is hurt but those whose model diverged.
  assert summary['fairness']['fraction_hurt'] == 2 / 3


class _DomainProcess:
  """A process of two domains; clients' results are their test data."""

  evaluate_clients = 'evaluate_clients'
  has_global_model = True

  model = types.SimpleNamespace(
    domains=domains_lib.Domains(('sea', 'hills'), (5, 5)),
    primary_metric=split_model.ACCURACY,
    reported=(),
    element_spec=toy_problems.classifier().element_spec,
  )

  def needs_training_data(self, client_state):
    return False


class _DomainRuntime:
  """Gives each client what `process.evaluate_clients` would."""

  clients_per_call = 20

  def __init__(self, results):
    self._results = iter(results)

  def share(self, *mappings):
    return mappings

  def run(self, computation, server_state, states, train, test):
    assert computation == 'evaluate_clients'
    return [next(self._results) for _ in states]


def _domain_result(examples, correct, scores=None):
  total = sum(examples)
  means = {'loss': 1.0, 'accuracy': np.float32(sum(correct) / total)}
  sums = {
    'loss': np.array(examples, np.float32),
    'accuracy': np.array(correct, np.float32),
  }
  result = {
    'before': means,
    'after': means,
    'examples': np.int32(total),
    'domains': {
      'examples': np.array(examples, np.float32),
      'before': sums,
      'after': sums,
    },
  }
  if scores is not None:
    y, domain = scores
    padding = [0, 0, 0]
    values = np.array([*range(len(y)), *padding], np.float32)
    result['scores'] = {
      'before': values,
      'after': -values,
      'y': np.array(y + padding, np.int32),
      'domain': np.array(domain + padding, np.int32),
    }
  return result


def _evaluate_domains(results):
  data = datasets.FederatedDataset.from_arrays(
    np.zeros([8, 5], np.float32),
    np.zeros([8], np.int32),
    num_clients=len(results),
    partition='iid',
    seed=0,
  )
  new = _process('fed_avg').initialize_client_state(0)
  return personalized_evaluation.evaluate(
    _DomainProcess(),
    _DomainRuntime(results),
    None,
    lambda positions: [new for _ in positions],
    data,
  )


def test_scores_by_domain_are_in_rows_and_in_the_summary():
  results = [_domain_result([2, 2], [2, 1]), _domain_result([0, 2], [0, 0])]
  rows, summary = _evaluate_domains(results)
  assert [list(row['domains']) for row in rows] == [['sea', 'hills'], ['hills']]
  assert rows[0]['domains']['hills']['after']['accuracy'] == 0.5
  domains = summary['domains']
  assert domains['personal']['accuracy']['by_domain'] == {
    'sea': 1.0,
    'hills': 0.25,
  }
  assert domains['global'] == domains['personal']
  assert 'auc' not in domains['personal']
  # All else is as without domains.
  without = {name: v for name, v in summary.items() if name != 'domains'}
  assert without == personalized_evaluation.summarize(rows, True)


def test_areas_under_curves_are_of_pooled_predictions_without_padding():
  results = [
    _domain_result([3, 0], [3, 0], ([0, 1, 0], [0, 0, 0])),
    _domain_result([1, 2], [1, 2], ([1, 0, 1], [0, 1, 1])),
  ]
  rows, summary = _evaluate_domains(results)
  assert not any('scores' in row for row in rows)
  # By the sea, 0, 1, 0 with scores 0, 1, 2, and the other client's 1 with 0.
  auc = summary['domains']['global']['auc']
  assert auc['by_domain'] == {'sea': pytest.approx(1.5 / 4), 'hills': 1.0}
  assert summary['domains']['personal']['auc']['by_domain'] == {
    'sea': pytest.approx(2.5 / 4),
    'hills': 0.0,
  }
