"""Patients of four hospitals, with or without heart disease.

Source: UCI Machine Learning Repository, Heart Disease; A. Janosi, W.
Steinbrunn, M. Pfisterer, R. Detrano, 1988. https://doi.org/10.24432/C52P4X
License: CC BY 4.0.
Sizes: 920 patients of Cleveland (303), Budapest (hungarian, 294), Zurich and
Basel (switzerland, 123) and Long Beach (va, 200). A diagnosis `num` above 0 is
class 1, with 139, 106, 115 and 149 cases.

The clients are the hospitals. The domains are sexes, age groups or hospitals.
`frames` makes inputs from the 13 columns. Outside Cleveland, `ca`, `thal` and
`slope` are missing for many or most patients. A cholesterol (`chol`) of 0, as
for all patients of switzerland, counts as missing.

The user provides the four published files, `processed.cleveland.data` and so
on, which have `COLUMNS` without a header.
"""

import os
from collections.abc import Sequence
from typing import Optional

import pandas as pd

from tff_pfl import errors, fields
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.sources import own_files, table

SITES = ('cleveland', 'hungarian', 'switzerland', 'va')
COLUMNS = (
  'age', 'sex', 'cp', 'trestbps', 'chol', 'fbs', 'restecg', 'thalach', 'exang',
  'oldpeak', 'slope', 'ca', 'thal', 'num',
)  # fmt: skip
DOMAIN_COLUMNS = ('sex', 'age', 'site')
_AGES = 0, 50, 60, 200
_AGE_NAMES = 'age<50', '50<=age<60', 'age>=60'
_CATEGORICAL = ('cp', 'restecg', 'slope', 'thal')
_FILES = tuple(f'processed.{site}.data' for site in SITES)


def read_frame(data_dir: Optional[str]) -> pd.DataFrame:
  """Reads the patients of all sites.

  Args:
    data_dir: See `load_heart_disease`.

  Returns:
    A frame with the columns `COLUMNS` and `site`, `num` as booleans.
  """
  folder = files.find_folder(
    data_dir,
    ('heart_disease', 'heart_disease_uci'),
    _FILES,
    ', '.join(_FILES),
  )
  options = dict(na_values=['?'], header=None, names=COLUMNS)
  frame = pd.concat(
    [
      table.read_table(os.path.join(folder, file), options).assign(site=site)
      for site, file in zip(SITES, _FILES)
    ],
    ignore_index=True,
  )
  frame['chol'] = frame['chol'].mask(frame['chol'] == 0)
  frame['num'] = (frame['num'] > 0).mask(frame['num'].isna())
  return frame.astype(dict.fromkeys(_CATEGORICAL, 'category'))


@fields.checked_call
def load_heart_disease(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  data_dir: Optional[str] = None,
  seed: fields.Seed = 0,
  domain_column: fields.one_of(DOMAIN_COLUMNS) = 'sex',
  drop: Sequence[str] = (),
  test_fraction: fields.ShareBelowOne = 0.2,
) -> federated_dataset.FederatedDataset:
  """920 patients of four hospitals, with domains by sex, age or hospital.

  They are read from the four processed.*.data. The partition is natural or any
  other.

  Args:
    num_clients: Number of clients. None means the four hospitals.
    partition: Natural (None) for the hospitals, or a rule that deals all
      patients.
    data_dir: The folder of the four published files, or its parent if it is
      called `heart_disease` or `heart_disease_uci`.
    seed: Non-negative.
    domain_column: Column of the domains: 'sex', 'age' (below 50, 50 to 59, from
      60) or 'site'. If it is the domain, age remains an input, but sex does
      not. The site is never an input.
    drop: Other columns that are not inputs.
    test_fraction: Fraction of a client's patients in its test set, in [0, 1),
      stratified by domain and label.

  Returns:
    Dataset with `x` float32 `[inputs]` and `y` int32, 1 for a diagnosis above
    0. There are 21 inputs, or 23 with the sexes, unless columns are dropped.
  """
  for name in drop:
    errors.expect_one_of('drop', name, COLUMNS)
  frame = read_frame(data_dir)
  groups = {
    'sex': frame['sex'].map({0: 'female', 1: 'male'}),
    'age': pd.cut(frame['age'], _AGES, right=False, labels=_AGE_NAMES),
    'site': frame['site'],
  }
  frame = frame.assign(sex=groups['sex'], domain=groups[domain_column])
  features = [c for c in COLUMNS if c != domain_column or c == 'age']
  with own_files.naming(data_dir):
    return federated_dataset.FederatedDataset.from_frame(
      frame,
      label='num',
      client='site',
      domain='domain',
      task='classification',
      features=[c for c in features if c not in ('num', *drop)],
      num_clients=num_clients,
      partition=partition,
      test_fraction=test_fraction,
      seed=seed,
      name='heart_disease',
    )
