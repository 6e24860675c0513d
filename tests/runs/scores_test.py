import json
import math
import types

import numpy as np
import pytest

from tff_pfl.models import split_model
from tff_pfl.runs import scores

_NAMES = ('sea', 'hills', 'desert')


def _domains(examples, before, after):
  """A client's row domains, of sums of the loss and of the accuracy."""
  sums = {
    which: dict(zip(('loss', 'accuracy'), np.array(values, np.float32)))
    for which, values in (('before', before), ('after', after))
  }
  counts = np.array(examples, np.float32)
  return scores.client_domains({'examples': counts, **sums}, _NAMES)


def _rows():
  """Of two clients: 4 examples by the sea, 2 + 2 in the hills, no desert."""
  return [
    {
      'num_test_examples': 6,
      'before': {'loss': 5 / 6, 'accuracy': 2 / 6},
      'after': {'loss': 0.5, 'accuracy': 5 / 6},
      'domains': _domains(
        [4, 2, 0], [[4, 1, 0], [1, 1, 0]], [[2, 1, 0], [3, 2, 0]]
      ),
    },
    {
      'num_test_examples': 2,
      'before': {'loss': 2.5, 'accuracy': 0.0},
      'after': {'loss': 1.5, 'accuracy': 0.0},
      'domains': _domains(
        [0, 2, 0], [[0, 5, 0], [0] * 3], [[0, 3, 0], [0] * 3]
      ),
    },
  ]


def _summary(
  rows, predictions=(), *, metric=split_model.ACCURACY, reported=(), shared=True
):
  model = types.SimpleNamespace(
    primary_metric=metric,
    reported=[split_model.PrimaryMetric(name, True) for name in reported],
    domains=types.SimpleNamespace(names=_NAMES)
    if 'domains' in rows[0]
    else None,
  )
  return scores.summarize(rows, shared, model, predictions)


def _predictions(y, before, after, domain=()):
  return {
    'before': np.array(before, np.float32),
    'after': np.array(after, np.float32),
    'y': np.array(y, np.int32),
    'domain': np.array(domain, np.int32),
  }


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
  # Nothing of NumPy, as rows are stored as JSON.
  json.dumps(first)


def test_summary_pools_the_clients_examples_of_a_domain():
  summary = _summary(_rows())['domains']
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
  alone = _summary(_rows(), shared=False)['domains']
  assert alone == {**summary, 'global': None}


def test_a_loss_that_is_not_finite_is_not_hidden():
  rows = _rows()
  rows[1]['domains']['hills']['after']['loss'] = math.nan
  loss = _summary(rows)['domains']['personal']['loss']
  assert loss['by_domain']['sea'] == 0.5
  for name in ('min', 'mean', 'max'):
    assert math.isnan(loss[name])


def test_auc_is_of_all_clients_predictions_and_its_client_mean_of_each():
  # By the sea, sorted by score: 0 0.1, 1 0.2, 0 0.3, 1 0.4: 3 of 4 pairs.
  # In the hills, only class 1.
  predictions = [
    _predictions([0, 1, 1], [0.9, 0.1, 0.5], [0.1, 0.2, 0.05], [0, 0, 1]),
    _predictions([0, 1, 1], [0.8, 0.2, 0.5], [0.3, 0.4, 0.9], [0, 0, 1]),
    _predictions([1], [0.5], [0.5], [1]),
  ]
  summary = _summary([*_rows(), _rows()[1]], predictions)['domains']
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
  predictions = [_predictions([1, 1], [0, 1], [0, 1], [0, 1])]
  summary = _summary(_rows()[:1], predictions)
  assert summary['domains']['personal']['auc'] == {
    'by_domain': dict.fromkeys(_NAMES),
    **dict.fromkeys(['min', 'mean', 'max', 'client_mean']),
  }


def test_fairness_is_that_computed_by_hand():
  summary = scores.fairness(
    personal=[1.0, 0.5, 0.0, 0.5],
    weights=[10, 20, 30, 40],
    # The second client is equal, which is not hurt.
    reference=[0.5, 0.5, 0.25, 0.75],
  )
  # Deviations from the mean 0.5: 0.5, 0, -0.5, 0; variance 0.5 / 4.
  assert summary == {
    'mean': 0.5,
    'weighted_mean': pytest.approx((10 + 10 + 0 + 20) / 100),
    'std': pytest.approx(0.125**0.5),
    'min': 0.0,
    'max': 1.0,
    'worst_10_percent': 0.0,
    'fraction_hurt': 0.5,
  }
  assert json.loads(json.dumps(summary)) == summary


def test_of_an_error_the_highest_are_the_worst():
  summary = scores.fairness(
    personal=[1.0, 0.5, 3.0, math.nan],
    weights=[1, 1, 1, 1],
    reference=[0.5, 0.75, 3.0, 9.0],
    metric=split_model.LOSS,
  )
  assert summary['fraction_hurt'] == 0.5
  assert math.isnan(summary['worst_10_percent'])
  summary = scores.fairness(range(20), np.ones(20), metric=split_model.LOSS)
  assert summary['worst_10_percent'] == 18.5


@pytest.mark.parametrize(
  ('num_clients', 'expected'),
  [(1, 0.0), (9, 0.0), (10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)],
)
def test_worst_tenth_is_rounded_up_to_whole_clients(num_clients, expected):
  values = np.random.default_rng(0).permutation(num_clients)
  summary = scores.fairness(values, np.ones(num_clients))
  assert summary['worst_10_percent'] == expected
  assert summary['fraction_hurt'] is None


def test_models_that_diverged_are_counted_and_hurt():
  rows = [
    {'before': {'loss': 1.0}, 'after': {'loss': loss}, 'num_test_examples': 1}
    for loss in (0.5, math.nan, math.inf)
  ]
  summary = _summary(rows, metric=split_model.LOSS)
  assert summary['non_finite_clients'] == 2
  assert summary['primary_metric'] == split_model.LOSS._asdict()
  assert summary['fairness']['fraction_hurt'] == 2 / 3
  with pytest.raises(ValueError, match='at least one client with test'):
    scores.summarize([], True, None)


def test_a_metric_that_some_clients_have_is_a_mean_over_those():
  rows = [
    {'after': {'loss': 1.0, 'r2': r2, 'auc': None}, 'num_test_examples': 1}
    for r2 in (0.5, None, 0.25)
  ]
  summary = _summary(
    rows, metric=split_model.LOSS, reported=['r2', 'auc'], shared=False
  )
  assert summary['personal']['r2'] == 0.375
  assert math.isnan(summary['personal']['auc'])
  assert summary['reported'] == {
    name: {'higher_is_better': True, 'num_clients': number, 'num_scored': 3}
    for name, number in (('r2', 2), ('auc', 0))
  }


_METRICS = {'loss': 1.0, 'accuracy': 0.5}


def _two_classes(predictions, shared=False):
  row = {'before': _METRICS, 'after': _METRICS, 'num_test_examples': 1}
  return _summary([row], predictions, shared=shared)['two_classes']


def test_scores_of_two_classes_are_those_computed_by_hand():
  predictions = [
    _predictions(y=[0, 1], before=[1.0, 1.0], after=[-2.0, 3.0]),
    # Of one class only, as many a client is.
    _predictions(y=[0, 0, 0], before=[1.0, 1.0, 1.0], after=[-1.0, 4.0, 1.0]),
  ]
  actual = _two_classes(predictions, shared=True)
  assert actual['personal'] == {
    # The example of class 1 is above 3 of the 4 others.
    'auc': 0.75,
    # Of class 0 two are right of four, of class 1 one of one.
    'balanced_accuracy': 0.75,
    # Precision 1/3, recall 1.
    'f1': pytest.approx(0.5),
    'client_auc': 1.0,
  }
  assert actual['global']['auc'] == 0.5
  alone = _two_classes(predictions[1:])
  assert alone == {
    'personal': dict.fromkeys(actual['personal']),
    'global': None,
  }


def test_scores_of_several_labels_are_means_over_those_with_both_classes():
  after = [[1.0, -1.0, 5.0], [-2.0, 2.0, 5.0], [-1.0, 1.0, 5.0]]
  y = [[0, 0, 1], [1, 1, 1], [0, 1, 1]]
  actual = _two_classes([_predictions(y, after, after)])
  # Of the first label all is wrong but one of two negatives; the second is
  # right, the third has one class only.
  assert actual['personal'] == {
    'auc': (0 + 1) / 2,
    'balanced_accuracy': (1 / 4 + 1) / 2,
    'f1': (0 + 1) / 2,
    'client_auc': 1 / 2,
  }


@pytest.mark.parametrize(
  'y, values, area',
  [
    # A tie is half of a pair in the right order.
    ([0, 1], [0.5, 0.5], 0.5),
    ([0, 0, 1, 1], [1.0, 3.0, 2.0, 3.0], 0.625),
    # Scores are compared only: they need not be probabilities.
    ([1, 0], [-1e30, -2e30], 1.0),
    ([1, 1], [0.5, 0.7], None),
    ([], [], None),
  ],
)
def test_area_under_curve_is_the_share_of_pairs_in_order(y, values, area):
  assert scores.two_class_score(y, values) == area


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_count_as_wrong(bad):
  assert scores.two_class_score([0, 1], [bad, bad]) == 0.0
  assert scores.two_class_score([0, 1, 1], [0.1, 0.2, bad]) == 0.5
  assert scores.two_class_score([0, 0, 1], [0.1, bad, 0.2]) == 0.5
  diverged = _predictions([0, 1], [bad, bad], [bad, bad])
  actual = _two_classes([diverged])
  assert set(actual['personal'].values()) == {0.0}
