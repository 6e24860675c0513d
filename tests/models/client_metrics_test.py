import math

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sklearn_metrics

from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import client_metrics, zoo

_RNG = np.random.default_rng(5)


def _model(num_classes, names, y=()):
  dtype = tf.float32 if num_classes is None else tf.int32
  spec = examples_lib.element_spec(
    tf.TensorSpec([4], tf.float32), tf.TensorSpec(y, dtype)
  )
  return client_metrics.with_metrics(zoo.linear(spec, num_classes), names)


def _probabilities(num_examples, num_classes):
  return _RNG.dirichlet(np.ones(num_classes), num_examples).astype(np.float32)


def test_those_of_classes_are_scikit_learns():
  names = [n for n in client_metrics.NAMES if n not in ('rmse', 'r2')]
  for num_classes in (2, 4):
    y = _RNG.permutation(np.arange(40) % num_classes)
    p = _probabilities(40, num_classes)
    actual = p.argmax(axis=1)
    expected = {
      'auc': sklearn_metrics.roc_auc_score(
        y, p[:, 1] if num_classes == 2 else p, multi_class='ovr'
      ),
      'balanced_accuracy': sklearn_metrics.balanced_accuracy_score(y, actual),
      'log_loss': sklearn_metrics.log_loss(y, p),
    }
    for name in ('f1', 'precision', 'recall'):
      function = getattr(sklearn_metrics, f'{name}_score')
      for average in ('macro', 'weighted'):
        expected[f'{name}_{average}'] = function(y, actual, average=average)
      own = 'binary' if num_classes == 2 else 'macro'
      expected[name] = function(y, actual, average=own)
    for labels in (y, y.astype(np.float32)):
      scores = client_metrics.scores(_model(num_classes, names), labels, p)
      assert list(scores) == names
      assert scores == {
        n: pytest.approx(v, abs=1e-6) for n, v in expected.items()
      }


def test_those_of_numbers_are_scikit_learns():
  for shape in ([], [3]):
    model = _model(None, ['rmse', 'r2'], shape)
    y, outputs = _RNG.normal(size=[2, 9, *shape])
    assert client_metrics.scores(model, y, outputs.reshape(9, -1)) == {
      'rmse': pytest.approx(
        math.sqrt(sklearn_metrics.mean_squared_error(y, outputs))
      ),
      'r2': pytest.approx(sklearn_metrics.r2_score(y, outputs)),
    }


def test_clients_without_a_figure_have_none():
  names = ['auc', 'f1', 'recall', 'precision', 'f1_macro']
  right = np.array([[0.9, 0.1]] * 3, np.float32)
  scores = client_metrics.scores(_model(2, names), np.array([0, 0, 0]), right)
  assert scores == dict.fromkeys(names[:-1]) | {'f1_macro': 1.0}
  # Nothing is found of class 1, which is there.
  scores = client_metrics.scores(_model(2, names), np.array([0, 1, 0]), right)
  assert scores == {
    'auc': 0.5,
    'f1': 0.0,
    'recall': 0.0,
    'precision': 0.0,
    'f1_macro': pytest.approx(0.4),
  }
  # The area of the classes that there are: 0 and 2, each perfect.
  three = np.array([[0.5, 0.4, 0.1], [0.2, 0.5, 0.3]], np.float32)
  model = _model(3, ['auc'])
  assert client_metrics.scores(model, np.array([0, 2]), three) == {'auc': 1.0}
  assert client_metrics.scores(model, np.array([2, 2]), three) == {'auc': None}
  one = client_metrics.scores(
    _model(None, ['rmse', 'r2']), np.array([1.0]), np.array([[3.0]])
  )
  assert one == {'rmse': 2.0, 'r2': None}


def test_models_that_diverged_are_wrong():
  nan = np.full([4, 3], np.nan, np.float32)
  scores = client_metrics.scores(
    _model(3, ['auc', 'balanced_accuracy']), np.array([0, 0, 1, 2]), nan
  )
  assert scores['balanced_accuracy'] == 0
  assert scores['auc'] < 0.5
  numbers = _model(None, ['rmse', 'r2'])
  scores = client_metrics.scores(numbers, np.zeros(4), nan[:, :1])
  assert all(math.isnan(value) for value in scores.values())


def test_what_is_nearly_certain_keeps_its_order():
  # Of which class 1 has probability 1 in float32.
  p = np.array([[1e-12, 1], [1e-9, 1], [1e-10, 1]], np.float32)
  scores = client_metrics.scores(_model(2, ['auc']), np.array([1, 0, 1]), p)
  assert scores == {'auc': 1.0}


def test_means_over_examples_are_those_of_keras():
  model = _model(5, ['accuracy', 'top_2_accuracy', 'auc'])
  assert list(model.metrics) == ['accuracy', 'top_2_accuracy']
  assert [tuple(metric) for metric in model.reported] == [
    ('top_2_accuracy', True),
    ('auc', True),
  ]
  y, logits = np.arange(30) % 5, _RNG.normal(size=[30, 5]).astype(np.float32)
  np.testing.assert_allclose(
    np.mean(model.metrics['top_2_accuracy'](y, logits)),
    sklearn_metrics.top_k_accuracy_score(y, logits, k=2),
  )
  of_numbers = _model(None, ['mse'])
  assert of_numbers.reported == (('mse', False),)
  np.testing.assert_allclose(
    of_numbers.metrics['mse'](tf.constant([1.0, 3.0]), tf.zeros([2, 1])), [1, 9]
  )


@pytest.mark.parametrize(
  'num_classes, y, names, reason',
  [
    (3, (), 5, '`metrics` to be a list, found 5'),
    (3, (), ['r2'], 'metrics of a classifier'),
    (3, (), ['top_0_accuracy'], "found 'top_0_accuracy'"),
    (None, (), ['auc'], 'as auc demands'),
    (2, (3,), ['f1'], 'as f1 demands'),
  ],
)
def test_metrics_that_do_not_fit_are_refused(num_classes, y, names, reason):
  with pytest.raises((TypeError, ValueError), match=reason):
    _model(num_classes, names, y)
