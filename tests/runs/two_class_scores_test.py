import math

import numpy as np
import pytest

from tff_pfl.runs import two_class_scores


def test_scores_are_those_computed_by_hand():
  predictions = [
    two_class_scores.Predictions(
      before=np.array([1.0, 1.0]),
      after=np.array([-2.0, 3.0]),
      y=np.array([0, 1]),
    ),
    # Of one class only, as many a client is.
    two_class_scores.Predictions(
      before=np.array([1.0, 1.0, 1.0]),
      after=np.array([-1.0, 4.0, 1.0]),
      y=np.array([0, 0, 0]),
    ),
  ]
  found = two_class_scores.summarize(predictions, has_global_model=True)
  assert found['personal'] == {
    # The example of class 1 is above 3 of the 4 others.
    'auc': 0.75,
    # Of class 0 two are right of four, of class 1 one of one.
    'balanced_accuracy': 0.75,
    # Precision 1/3, recall 1.
    'f1': pytest.approx(0.5),
    'client_auc': 1.0,
  }
  assert found['global']['auc'] == 0.5
  alone = two_class_scores.summarize(predictions[1:], has_global_model=False)
  assert alone == {
    'personal': dict.fromkeys(found['personal']),
    'global': None,
  }


def test_scores_of_several_labels_are_means_over_those_with_both_classes():
  scores = np.array([[1.0, -1.0, 5.0], [-2.0, 2.0, 5.0], [-1.0, 1.0, 5.0]])
  predictions = two_class_scores.Predictions(
    before=scores, after=scores, y=np.array([[0, 0, 1], [1, 1, 1], [0, 1, 1]])
  )
  found = two_class_scores.summarize([predictions], has_global_model=False)
  # Of the first label all is wrong but one of two negatives; the second is
  # right, the third has one class only.
  assert found['personal'] == {
    'auc': (0 + 1) / 2,
    'balanced_accuracy': (1 / 4 + 1) / 2,
    'f1': (0 + 1) / 2,
    'client_auc': 1 / 2,
  }


@pytest.mark.parametrize(
  'y, scores, area',
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
def test_area_under_curve_is_the_share_of_pairs_in_order(y, scores, area):
  assert two_class_scores.area_under_curve(y, scores) == area


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_count_as_wrong(bad):
  assert two_class_scores.area_under_curve([0, 1], [bad, bad]) == 0.0
  assert two_class_scores.area_under_curve([0, 1, 1], [0.1, 0.2, bad]) == 0.5
  assert two_class_scores.area_under_curve([0, 0, 1], [0.1, bad, 0.2]) == 0.5
  scores = np.array([bad, bad])
  diverged = two_class_scores.Predictions(scores, scores, np.array([0, 1]))
  found = two_class_scores.summarize([diverged], has_global_model=False)
  assert set(found['personal'].values()) == {0.0}
