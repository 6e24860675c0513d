import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import synthetic


def test_sizes_classes_and_element_spec_are_as_asked_for():
  dataset = synthetic.make_synthetic(
    5,
    examples_per_client=9,
    test_examples_per_client=4,
    shape=(6,),
    num_classes=4,
    classes_per_client=3,
  )
  assert dataset.element_spec == shared.spec(6)
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert set(train.ravel()) == {0, 3}
  assert (test.sum(axis=1) == 4).all()
  np.testing.assert_array_equal(train > 0, test > 0)
  part = dataset.train('client_3')
  assert part.x.shape == (9, 6) and part.x.dtype == np.float32
  assert part.y.dtype == np.int32
  assert dataset.num_train_examples('client_3') == 9
  assert dataset.num_test_examples('client_3') == 4


def test_examples_are_prototypes_of_length_four_plus_noise():
  clean = synthetic.make_synthetic(3, num_classes=2, noise=0)
  a, b = clean.train('client_0'), clean.test('client_2')
  for label in range(2):
    of_class = np.concatenate([p.x[p.y == label] for p in (a, b)])
    assert np.ptp(of_class, axis=0).max() == 0
    assert np.linalg.norm(of_class[0]) == pytest.approx(4, rel=1e-5)
  noisy = synthetic.make_synthetic(3, num_classes=2, noise=0.5).train(
    'client_0'
  )
  np.testing.assert_array_equal(noisy.y, a.y)
  assert (noisy.x - a.x).std() == pytest.approx(0.5, rel=0.02)


def test_examples_depend_on_seed_client_and_split_only():
  small, large = (synthetic.make_synthetic(n, seed=5) for n in (10, 100))
  other = synthetic.make_synthetic(10, seed=6)
  np.testing.assert_array_equal(
    small.train('client_3').x, large.train('client_03').x
  )
  np.testing.assert_array_equal(
    small.train('client_3').x, small.train('client_3').x
  )
  for different in (
    small.train('client_4').x[:20],
    small.test('client_3').x,
    other.train('client_3').x[:20],
  ):
    assert not np.array_equal(small.train('client_3').x[:20], different)


def test_clients_may_have_no_examples():
  dataset = synthetic.make_synthetic(
    2, examples_per_client=0, test_examples_per_client=1
  )
  assert dataset.train('client_0').x.shape == (0, 28, 28, 1)
  assert dataset.class_counts().sum() == 0
