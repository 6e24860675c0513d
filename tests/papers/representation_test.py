import collections

import numpy as np
import pytest
import scipy.linalg

from binaries.papers import representation
from tests.methods import toy_problems


def _rng(seed=0):
  return np.random.default_rng(seed)


def _orthogonal(size, seed=0):
  return np.linalg.qr(_rng(seed).normal(size=(size, size)))[0]


# Principal angle distance.


def test_distance_of_two_lines_is_the_sine_of_their_angle():
  angle = np.pi / 6
  line = [[1.0], [0.0]]
  other = [[3 * np.cos(angle)], [3 * np.sin(angle)]]
  distance = representation.principal_angle_distance
  assert distance(line, other) == pytest.approx(0.5, abs=1e-15)
  identity = np.eye(4)
  assert distance(identity[:, :2], identity[:, 1:3]) == 1
  # A space of more dimensions has a direction that the other lacks.
  assert distance(identity[:, :1], identity[:, :2]) == 1
  assert distance(identity[:, :2], identity[:, :1]) == 0
  assert distance(identity, _rng().normal(size=(4, 3))) < 1e-14


def test_small_angles_are_right():
  angle, basis = 1e-12, _orthogonal(9)
  line = np.cos(angle) * basis[:, 2] + np.sin(angle) * basis[:, 3]
  distance = representation.principal_angle_distance(
    basis[:, :3], np.column_stack([basis[:, :2], line])
  )
  assert distance == pytest.approx(angle, rel=1e-3)


def test_distance_equals_scipys_and_depends_on_the_spaces_only():
  a, b = _rng().normal(size=(2, 10, 3))
  distance = representation.principal_angle_distance
  # Close and far spaces.
  for other in (b, a + 1e-3 * b):
    expected = np.sin(scipy.linalg.subspace_angles(a, other).max())
    actual = [distance(a, other), distance(other, a)]
    assert actual == pytest.approx([expected] * 2, rel=1e-9)
  expected = distance(a, b)
  change = _rng(1).normal(size=(3, 3))
  # Columns of very different lengths are a basis all the same.
  scaled = b @ np.diag([1e-12, 1.0, 1e12])
  turn = _orthogonal(10)
  for other_a, other_b in ((a @ change, b), (a, scaled), (turn @ a, turn @ b)):
    assert distance(other_a, other_b) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
  'function, arguments, reason',
  [
    ('principal_angle_distance', [np.ones((3, 2)), np.eye(3)], '`a`.*rank 2'),
    ('principal_angle_distance', [np.eye(3), np.zeros((3, 1))], '`b`.*rank 1'),
    ('principal_angle_distance', [[[np.nan]], [[1.0]]], '`a` to be finite'),
    ('linear_cka', [np.eye(5), np.full((5, 1), np.inf)], '`b` to be finite'),
    ('class_cosine_similarity', [[[np.inf]], [0], 1], '`features` to be fin'),
  ],
)
def test_what_has_no_such_measure_is_refused(function, arguments, reason):
  with pytest.raises(ValueError, match=reason):
    getattr(representation, function)(*arguments)


# Linear CKA.


def _hsic_cka(a, b):
  """CKA by its definition, with the centring matrix."""
  centring = np.eye(len(a)) - 1 / len(a)
  k, other = (np.float64(x) @ np.float64(x).T @ centring for x in (a, b))
  norms = np.trace(k @ k) * np.trace(other @ other)
  return np.trace(k @ other) / np.sqrt(norms)


def test_cka_computed_by_hand():
  a = [[1.0], [-1.0], [0.0], [0.0]]
  b = [[1.0], [0.0], [-1.0], [0.0]]
  # One feature each: the squared correlation, 1/2 squared.
  assert representation.linear_cka(a, b) == pytest.approx(0.25)
  orthogonal = [[0.0], [0.0], [1.0], [-1.0]]
  assert representation.linear_cka(a, orthogonal) == 0


@pytest.mark.parametrize(
  'widths',
  # More examples than features, fewer, and more columns than a block has.
  [(3, 5), (2, 50), (9000, 30)],
)
def test_cka_equals_that_of_its_definition(widths):
  rng = _rng(widths[0])
  common = rng.normal(size=(20, 2))
  a, b = (
    common @ rng.normal(size=(2, width)) + rng.normal(size=(20, width)) + 3
    for width in widths
  )
  value = representation.linear_cka(a, b)
  assert value == pytest.approx(_hsic_cka(a, b), rel=1e-9)
  assert 0 < value < 1
  assert representation.linear_cka(b, a) == pytest.approx(value, rel=1e-12)
  assert type(value) is float


def test_cka_of_float32_is_as_precise_as_the_features_are():
  a, b = _rng().normal(size=(2, 30, 12)).astype(np.float32) + 1000
  assert representation.linear_cka(a, b) == pytest.approx(
    _hsic_cka(a - 1000, b - 1000), rel=1e-9
  )


@pytest.mark.parametrize('width', [2, 40])
def test_cka_with_features_that_are_constant_is_undefined(width):
  varied = _rng().normal(size=(7, width))
  constant = np.full((7, width), 0.1)
  for a, b in ((varied, constant), (constant, varied), (constant, constant)):
    assert np.isnan(representation.linear_cka(a, b))
  assert np.isnan(representation.linear_cka(varied[:1], varied[:1]))


# Cosine similarity of classes.


def test_class_similarity_computed_by_hand():
  root = np.sqrt(0.5)
  features = [[2.0, 0.0], [0.0, 5.0], [1.0, 1.0], [-3.0, 0.0]]
  similarity = representation.class_cosine_similarity(features, [0, 0, 1, 2], 4)
  nan = np.nan
  # The two of class 0 are orthogonal.
  rows = [0, root, -0.5], [root, nan, -root], [-0.5, -root, nan]
  expected = [*([*row, nan] for row in rows), [nan] * 4]
  np.testing.assert_allclose(similarity, expected, atol=1e-15)


def test_class_similarity_equals_the_mean_over_pairs():
  rng = _rng()
  features = rng.normal(size=(40, 6)) + 0.5
  # A network may be dead on an example.
  features[[0, 7]] = 0
  labels = rng.integers(0, 4, size=40)
  lengths = np.linalg.norm(features, axis=1, keepdims=True)
  units = features / np.maximum(lengths, 1e-300)
  products = units @ units.T
  np.fill_diagonal(products, np.nan)
  actual = representation.class_cosine_similarity(features, labels, 4)
  for i, j in np.ndindex(4, 4):
    expected = np.nanmean(products[np.ix_(labels == i, labels == j)])
    assert actual[i, j] == pytest.approx(expected, rel=1e-10, abs=1e-12)


# Features of models.


@pytest.fixture(scope='module')
def normalizing_model():
  return toy_problems.classifier_from(toy_problems.dropout_and_normalization())


def test_layer_features_computed_by_hand(normalizing_model):
  model = normalizing_model
  weights = toy_problems.jittered(model.initial_weights)
  # More examples than go through at once, and not a multiple of that.
  x = _rng(1).normal(size=(600, 5)).astype(np.float32)
  features = {
    layer: representation.layer_features(model, weights, x, layer)
    for layer in model.layers
  }
  assert list(features) == ['dense', 'norm', 'head']
  dense = x @ weights['dense/kernel'] + weights['dense/bias']
  # Inference: moving statistics, no dropout.
  norm = (dense - weights['norm/moving_mean']) * weights['norm/gamma']
  norm /= np.sqrt(weights['norm/moving_variance'] + 1e-3)
  norm += weights['norm/beta']
  head = np.maximum(norm, 0) @ weights['head/kernel'] + weights['head/bias']
  features['body'] = representation.body_features(model, weights, x)
  of_body = np.maximum(norm, 0)
  for name, expected in zip(features, (dense, norm, head, of_body)):
    np.testing.assert_allclose(features[name], expected, rtol=1e-4, atol=1e-5)


def test_outputs_of_images_and_sequences_are_one_row_an_example():
  layers = toy_problems.convolutional_and_recurrent()
  model = toy_problems.classifier_from(layers)
  x = _rng().normal(size=(6, 5)).astype(np.float32)
  features = {
    layer: representation.layer_features(model, model.initial_weights, x, layer)
    for layer in model.layers
  }
  shapes = {name: value.shape for name, value in features.items()}
  assert shapes == {'conv': (6, 4 * 2), 'lstm': (6, 3), 'head': (6, 3)}
  # The convolution's own activation is part of its output.
  assert np.all(features['conv'] >= 0)


def test_layer_cka_is_that_of_the_features(normalizing_model):
  model = normalizing_model
  before = model.initial_weights
  head = np.float32(_rng().normal(size=before['head/kernel'].shape))
  after = collections.OrderedDict(before, **{'head/kernel': head})
  x = _rng(1).normal(size=(50, 5)).astype(np.float32)
  features = representation.layer_features
  heads = (features(model, w, x, 'head') for w in (before, after))
  of_head = _hsic_cka(*heads)
  assert of_head < 0.99
  cka = representation.layer_cka(model, before, after, x)
  assert list(cka) == ['dense', 'norm', 'head']
  assert list(cka.values()) == pytest.approx([1, 1, of_head], rel=1e-6)
