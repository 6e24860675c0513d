import functools

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import heart_disease


def _patient(i, site):
  """Cells in the order of `heart_disease.COLUMNS`."""
  chol = 0 if site == 'switzerland' else 200 + i
  ca, thal = i % 4, (3, 6, 7)[i % 3]
  if site != 'cleveland' and i % 5:
    ca, thal = '?', '?'
  return [
    40 + 2 * i, i % 2, i % 4 + 1, 120 + i, chol, 0, i % 3, 150, 1, 0.1 * i,
    i % 3 + 1, ca, thal, i // 2 % 3,
  ]  # fmt: skip


def _write_sites(folder, count=20):
  folder.mkdir(exist_ok=True)
  for site in heart_disease.SITES:
    rows = [_patient(i, site) for i in range(count)]
    if site == 'cleveland':
      # As published, this file has 1.0 for 1.
      rows = [
        [float(c) if isinstance(c, int) else c for c in row] for row in rows
      ]
    (folder / f'processed.{site}.data').write_text(
      '\n'.join(','.join(map(str, row)) for row in rows) + '\n'
    )
  return folder


_load = functools.partial(shared.load, 'heart_disease', num_clients=4)


def test_hospitals_are_clients_and_sexes_domains(tmp_path):
  dataset = _load(_write_sites(tmp_path))
  assert dataset.name == 'heart_disease'
  assert dataset.client_ids == heart_disease.SITES
  assert dataset.domain_names == ('female', 'male')
  assert dataset.num_classes == 2
  assert dataset.element_spec['x'].shape == [21]
  counts = shared.all_domains(dataset)
  assert counts.tolist() == [[10, 10]] * 4
  counts = shared.all_labels(dataset)
  # 0, 0, 1, 1, 2, 2, 0, ...
  assert counts.tolist() == [[8, 12]] * 4


def test_the_folder_is_found_by_its_names(tmp_path):
  folder = _write_sites(tmp_path)
  expected = _load(folder).fingerprint
  for name in ('heart_disease', 'heart_disease_uci'):
    parent = tmp_path / f'of_{name}'
    parent.mkdir()
    _write_sites(parent / name)
    assert _load(parent).fingerprint == expected


def test_a_cholesterol_of_zero_is_missing(tmp_path):
  dataset = _load(_write_sites(tmp_path))
  chol = 2  # After age and trestbps: sex is no input, cp comes later.
  x = dataset.train('switzerland').x
  assert not x[:, chol].any()
  assert dataset.train('cleveland').x[:, chol].all()


@pytest.mark.parametrize(
  'domain_column, names, num_inputs',
  [
    ('age', ('age<50', '50<=age<60', 'age>=60'), 23),
    ('site', heart_disease.SITES, 23),
  ],
)
def test_domains_may_be_others(tmp_path, domain_column, names, num_inputs):
  dataset = _load(_write_sites(tmp_path), domain_column=domain_column)
  assert dataset.domain_names == names
  assert dataset.element_spec['x'].shape == [num_inputs]


def test_mistakes_and_damaged_files_are_one_line_errors(tmp_path):
  folder = _write_sites(tmp_path / 'heart_disease')
  with shared.one_line_error("`drop` to be one of age, .*found 'cholesterol'"):
    _load(tmp_path, drop=['chol', 'cholesterol'])
  (folder / 'processed.va.data').unlink()
  with pytest.raises(ValueError, match='va.data` to be a file, found none'):
    _load(tmp_path)
  (folder / 'processed.va.data').write_text('1,2,3\n')
  with shared.one_line_error('va.data` .*14 cells in every row, found 3 in'):
    _load(tmp_path)


def test_real_patients_by_hospital(real_data):
  dataset = _load(real_data())
  totals = [
    counts('train') + counts('test')
    for counts in (dataset.domain_counts, dataset.class_counts)
  ]
  assert totals[0].tolist() == [[97, 206], [81, 213], [10, 113], [6, 194]]
  assert totals[1].tolist() == [[164, 139], [188, 106], [8, 115], [51, 149]]
  # Age, the first input, has no missing values and spans decades.
  ages = np.concatenate([dataset.train(c).x[:, 0] for c in dataset.client_ids])
  np.testing.assert_allclose([ages.mean(), ages.std()], [0, 1], atol=1e-5)
  assert dataset.element_spec['x'].shape == [21]
