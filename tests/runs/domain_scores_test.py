import collections
import json
import math

import numpy as np
import pytest

from tff_pfl.runs import domain_scores, two_class_scores

_NAMES = ('sea', 'hills', 'desert')


def _sums(loss, accuracy):
  return collections.OrderedDict(
    loss=np.array(loss, np.float32), accuracy=np.array(accuracy, np.float32)
  )


def _domains(examples, before, after):
  return collections.OrderedDict(
    examples=np.array(examples, np.float32), before=before, after=after
  )


def _rows():
  """Of two clients: 4 examples by the sea, 2 + 2 in the hills, no desert."""
  first = domain_scores.client_domains(
    _domains(
      [4, 2, 0],
      _sums([4, 1, 0], [1, 1, 0]),
      _sums([2, 1, 0], [3, 2, 0]),
    ),
    _NAMES,
  )
  second = domain_scores.client_domains(
    _domains([0, 2, 0], _sums([0, 5, 0], [0, 0, 0]), _sums([0, 3, 0], [0] * 3)),
    _NAMES,
  )
  return [
    {
      'before': {'loss': 5 / 6, 'accuracy': 2 / 6},
      'after': {'loss': 0.5, 'accuracy': 5 / 6},
      'domains': first,
    },
    {
      'before': {'loss': 2.5, 'accuracy': 0.0},
      'after': {'loss': 1.5, 'accuracy': 0.0},
      'domains': second,
    },
  ]


def _predictions(y, domain, before, after):
  return two_class_scores.Predictions(
    before=np.array(before, np.float32),
    after=np.array(after, np.float32),
    y=np.array(y, np.int32),
    domain=np.array(domain, np.int32),
  )


def test_a_row_has_means_of_the_domains_that_the_client_has():
  first, second = (row['domains'] for row in _rows())
  assert first == {
    'sea': {
      'num_test_examples': 4,
      'before': {'loss': 1.0, 'accuracy': 0.25},
      'after': {'loss': 0.5, 'accuracy': 0.75},
    },
    'hills': {
      'num_test_examples': 2,
      'before': {'loss': 0.5, 'accuracy': 0.5},
      'after': {'loss': 0.5, 'accuracy': 1.0},
    },
  }
  assert list(second) == ['hills']
  # Nothing of NumPy, for rows are stored as JSON.
  json.dumps(first)


def test_summary_pools_the_clients_examples_of_a_domain():
  summary = domain_scores.summarize(_rows(), _NAMES, has_global_model=True)
  assert summary['num_test_examples'] == {'sea': 4, 'hills': 4, 'desert': 0}
  assert summary['without_test_examples'] == ['desert']
  assert list(summary['personal']) == ['loss', 'accuracy']
  assert summary['personal']['accuracy'] == {
    'by_domain': {'sea': 0.75, 'hills': 0.5, 'desert': None},
    'min': 0.5,
    'mean': 0.625,
    'max': 0.75,
    'client_mean': pytest.approx(5 / 12),
  }
  by_domain = summary['global']['accuracy']['by_domain']
  assert by_domain == {'sea': 0.25, 'hills': 0.25, 'desert': None}
  json.dumps(summary)
  alone = domain_scores.summarize(_rows(), _NAMES, has_global_model=False)
  assert alone == {**summary, 'global': None}


def test_a_loss_that_is_not_finite_is_not_hidden():
  rows = _rows()
  rows[1]['domains']['hills']['after']['loss'] = math.nan
  loss = domain_scores.summarize(rows, _NAMES, has_global_model=False)[
    'personal'
  ]['loss']
  assert loss['by_domain']['sea'] == 0.5
  for name in ('min', 'mean', 'max'):
    assert math.isnan(loss[name])


def test_auc_is_of_all_clients_predictions_and_its_client_mean_of_each():
  # By the sea, sorted by score: 0 0.1, 1 0.2, 0 0.3, 1 0.4: 3 of 4 pairs.
  # In the hills, only class 1.
  predictions = [
    _predictions([0, 1, 1], [0, 0, 1], [0.9, 0.1, 0.5], [0.1, 0.2, 0.05]),
    _predictions([0, 1, 1], [0, 0, 1], [0.8, 0.2, 0.5], [0.3, 0.4, 0.9]),
    _predictions([1], [1], [0.5], [0.5]),
  ]
  summary = domain_scores.summarize(
    [*_rows(), _rows()[1]],
    _NAMES,
    has_global_model=True,
    predictions=predictions,
  )
  assert summary['personal']['auc'] == {
    'by_domain': {'sea': 0.75, 'hills': None, 'desert': None},
    'min': 0.75,
    'mean': 0.75,
    'max': 0.75,
    # 1 of 2 pairs and 2 of 2; the last client has one class only.
    'client_mean': 0.75,
  }
  assert summary['global']['auc']['by_domain']['sea'] == 0.0


def test_auc_without_both_classes_anywhere_is_none():
  summary = domain_scores.summarize(
    _rows()[:1],
    _NAMES,
    has_global_model=False,
    predictions=[_predictions([1, 1], [0, 1], [0, 1], [0, 1])],
  )
  assert summary['personal']['auc'] == {
    'by_domain': dict.fromkeys(_NAMES),
    **dict.fromkeys(['min', 'mean', 'max', 'client_mean']),
  }
