import numpy as np

from tests.datasets import shared
from tff_pfl.datasets.sources import digits5

_SHAPES = {
  'mnist': (28, 28, 1),
  'mnist_m': (32, 32, 3),
  'svhn': (32, 32, 3),
  'usps': (16, 16, 1),
  'synth_digits': (32, 32, 3),
}


def _write(folder, name, **changes):
  return shared.write_image_set(folder, name, _SHAPES[name], **changes)


def _load(folder, **kwargs):
  return digits5.load_digits5(str(folder), **kwargs)


def test_all_five_domains_are_read(tmp_path):
  expected = {name: _write(tmp_path, name) for name in digits5.DOMAINS}
  arrays = _load(tmp_path, image_size=32)
  assert arrays.domain_names == digits5.DOMAINS
  assert arrays.x.shape == (200, 32, 32, 3) and arrays.x.dtype == np.uint8
  assert arrays.x_test.shape == (100, 32, 32, 3)
  for number, name in enumerate(digits5.DOMAINS):
    for end in ('', '_test'):
      is_own = getattr(arrays, f'domain{end}') == number
      for field in ('y', 'x')[: 1 + (_SHAPES[name] == (32, 32, 3))]:
        np.testing.assert_array_equal(
          getattr(arrays, field + end)[is_own], expected[name][field + end]
        )


def test_clients_have_floats_of_one_shape_and_both_labels(tmp_path):
  for name in ('usps', 'mnist', 'svhn'):
    _write(tmp_path, name)
  assert _load(tmp_path).domain_names == ('mnist', 'svhn', 'usps')
  rule = 'domain_mixture:0.3:20'
  dataset = shared.load('digits5', tmp_path, 4, rule, domains=['usps', 'mnist'])
  assert dataset.domain_names == ('usps', 'mnist')
  assert dataset.element_spec == shared.spec(28, 28, 3, domain=True)
  assert dataset.domain_counts().sum(axis=0).tolist() == [40, 40]
  assert dataset.domain_counts().sum(axis=1).tolist() == [20] * 4
  part = dataset.train('client_0')
  assert 0 <= part.x.min() < 0.1 and 0.9 < part.x.max() <= 1


def test_images_are_resampled_with_antialiasing():
  stripes = np.zeros((1, 32, 32, 3), np.uint8)
  stripes[:, :, ::2] = 200
  x = digits5.to_common_size(stripes, 8)
  assert x.shape == (1, 8, 8, 3)
  np.testing.assert_allclose(x[:, :, 1:-1].astype(float), 100, atol=10)
  # Gray images have three equal channels.
  even = np.full((3, 16, 16, 1), 77, np.uint8)
  assert (digits5.to_common_size(even, 28) == 77).all()
  gray = shared.images(_SHAPES['usps'])['x']
  np.testing.assert_array_equal(
    digits5.to_common_size(gray, 16), np.concatenate([gray] * 3, axis=-1)
  )


def test_large_domains_can_be_cut_to_a_fixed_random_choice(tmp_path):
  everything = _write(tmp_path, 'usps')['x'][..., 0]
  few = shared.images(_SHAPES['svhn'], 15, 15)
  _write(tmp_path, 'svhn', **few)
  arrays = _load(tmp_path, max_train_per_domain=25, image_size=16)
  assert np.bincount(arrays.domain).tolist() == [15, 25]
  assert np.bincount(arrays.domain_test).tolist() == [15, 20]
  chosen = arrays.x[arrays.domain == 1][..., 0]
  where = [
    np.flatnonzero((everything == image).all(axis=(1, 2))) for image in chosen
  ]
  where = np.concatenate(where)
  assert len(where) == 25 and (np.diff(where) > 0).all()
  assert where[-1] >= 25
  np.testing.assert_array_equal(arrays.y[arrays.domain == 1], where % 10)
  again = _load(tmp_path, max_train_per_domain=25, image_size=16)
  np.testing.assert_array_equal(again.x, arrays.x)


def test_a_warning_tells_of_mnist_m_in_another_order(tmp_path, caplog):
  _write(tmp_path, 'mnist')
  _write(tmp_path, 'mnist_m')
  _load(tmp_path)
  assert not caplog.text
  _write(tmp_path, 'mnist_m', y_test=np.arange(20)[::-1] % 10)
  _load(tmp_path)
  assert "MNIST-M's test images are not in the order" in caplog.text


def test_missing_files_and_those_of_another_form_are_named(tmp_path):
  _write(tmp_path, 'usps')
  with shared.one_line_error('two or more domains .*no svhn.npz.*prepare'):
    _load(tmp_path)
  _write(tmp_path, 'mnist')
  with shared.one_line_error('found no svhn.npz in .*prepare'):
    _load(tmp_path, domains=['usps', 'svhn'])
  _write(tmp_path, 'usps', x_test=np.zeros((20, 16, 16, 4), np.uint8))
  with shared.one_line_error('usps.npz` .*1 or 3'):
    _load(tmp_path)


def test_real_files_of_three_domains(caplog, real_data):
  folder = real_data('mnist', 'mnist_m', 'usps')
  arrays = _load(folder, max_train_per_domain=500)
  assert arrays.domain_names == ('mnist', 'mnist_m', 'usps')
  assert not caplog.text
  assert arrays.x.shape == (1500, 28, 28, 3)
  assert np.bincount(arrays.domain_test).tolist() == [10_000, 1000, 2007]
  classes = [
    np.bincount(arrays.y[arrays.domain == i], minlength=10) for i in range(3)
  ]
  assert np.min(classes) > 25
  # White digits on black, of which most is background, and photographs.
  means = [arrays.x[arrays.domain == i].mean() for i in range(3)]
  assert means[0] < means[2] < means[1]
