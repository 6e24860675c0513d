"""Patients of four hospitals, with or without a heart disease.

Source: UCI Machine Learning Repository, Heart Disease; A. Janosi, W.
Steinbrunn, M. Pfisterer, R. Detrano, 1988. https://doi.org/10.24432/C52P4X
License: CC BY 4.0.
Sizes: 920 patients of Cleveland (303), Budapest (hungarian, 294), Zurich and
Basel (switzerland, 123) and Long Beach (va, 200), whose diagnosis `num` is
above 0 in 139, 106, 115 and 149 cases, which is class 1.

The clients are the hospitals. The domains are the sexes, groups of age, or the
hospitals themselves; `table_encoding` makes inputs of the 13 columns. Outside
Cleveland `ca`, `thal` and `slope` are missing for many or most patients. A
cholesterol (`chol`) of 0, as for all patients of switzerland, is missing, too.

The user brings either one file `heart_disease_4sites.csv` with the columns
`site` and `COLUMNS`, or the four files as published, `processed.cleveland.data`
and so on, which have the same columns without a heading. The result is the
same.
"""

import os
from collections.abc import Sequence
from typing import Optional

import pandas as pd

from tff_pfl import errors
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.sources import table_encoding, table_files, tabular

SITES = ('cleveland', 'hungarian', 'switzerland', 'va')
COLUMNS = (
  'age', 'sex', 'cp', 'trestbps', 'chol', 'fbs', 'restecg', 'thalach', 'exang',
  'oldpeak', 'slope', 'ca', 'thal', 'num',
)  # fmt: skip
# Column of domains to the bounds of its groups of numbers.
DOMAIN_BOUNDS = {'sex': (), 'age': (50, 60), 'site': ()}
_CATEGORICAL = ('cp', 'restecg', 'slope', 'thal')
_SEXES = {'0': 'female', '1': 'male'}
_CSV = 'heart_disease_4sites.csv'
_FILES = tuple(f'processed.{site}.data' for site in SITES)


def read_table(data_dir: Optional[str]) -> pd.DataFrame:
  """Reads the patients of all sites.

  Args:
    data_dir: See `load_heart_disease`.

  Returns:
    A table with the columns `site` and `COLUMNS`.
  """
  path = data_dir
  if not (path and os.path.isfile(path)):
    folder = files.find_folder(
      data_dir,
      ('heart_disease', 'heart_disease_uci'),
      (_CSV, *_FILES),
      f'{_CSV}, or {", ".join(_FILES)}',
    )
    path = os.path.join(folder, _CSV)
  columns = ['site', *COLUMNS]
  if os.path.exists(path):
    table = table_files.read_table(path)
    table_files.expect_columns(table, *columns)
    return table[columns]
  paths = [os.path.join(folder, file) for file in _FILES]
  return table_files.read_tables(dict(zip(SITES, paths)), 'site', names=COLUMNS)


def load_heart_disease(
  num_clients: int,
  partition: partitioning.Partitioner,
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
  domain_column: str = 'sex',
  drop_columns: Sequence[str] = (),
  missing_indicators: bool = False,
  test_fraction: float = 0.2,
) -> federated_dataset.FederatedDataset:
  """Loads the patients, by hospital or dealt to clients.

  Args:
    num_clients: Number of clients, at most four with the partition natural.
    partition: Natural for the hospitals, or a rule that deals all patients.
    data_dir: The CSV file, the folder of it or of the four files as published,
      or the parent of such a folder if it is called `heart_disease` or
      `heart_disease_uci`.
    seed: Non-negative.
    domain_column: 'sex', 'age' (below 50, from 50, from 60) or 'site'. Age
      remains an input, the others do not.
    drop_columns: Further columns that are no inputs.
    missing_indicators: True to give a column with missing values a second input
      that marks them.
    test_fraction: Fraction of a client's patients in its test set, in [0, 1),
      stratified by domain and label.

  Returns:
    Dataset with `x` float32 `[inputs]` and `y` int32, 1 for a diagnosis above
    0. There are 21 inputs, or 23 with the sexes, unless columns are dropped or
    indicators added.
  """
  errors.expect_one_of('domain_column', domain_column, DOMAIN_BOUNDS)
  return tabular.to_clients(
    read_table(data_dir),
    table_encoding.Columns(
      label='num',
      domain=domain_column,
      client='site',
      drop=drop_columns,
      categorical=_CATEGORICAL,
      zero_is_missing=('chol',),
      label_above=0,
      domain_bounds=DOMAIN_BOUNDS[domain_column],
      missing_indicators=missing_indicators,
      renamed={'sex': _SEXES},
    ),
    num_clients,
    partition,
    seed,
    name='heart_disease',
    test_fraction=test_fraction,
  )
