"""Labelled texts by domain or user, from a CSV file; the user brings the data.

The file has a heading and the columns `text`, `label` and `client`, `user` or
`domain` (other columns are ignored), and may be compressed with gzip. The
labels, two or more, are numbered in their sorted order: 0 and 1 stay as they
are, and 0 and 4 become 0 and 1.

Sources that have this form or are easily brought to it: the Multi-Domain
Sentiment Dataset (J. Blitzer, M. Dredze, F. Pereira, Biographies, Bollywood,
Boom-boxes and Blenders, ACL 2007), 2,000 Amazon product reviews of each of the
domains books, dvd, electronics and kitchen; Sentiment140 (A. Go, R. Bhayani, L.
Huang, 2009), 1.6 million tweets by user.
Licence: none is stated for either; free for research, the texts belong to their
authors.

A text that a client has twice is dropped, lest one copy be tested and the other
trained on.
"""

import contextlib
import csv
import gzip
import io
import zlib
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, natural_clients, partitioning
from tff_pfl.datasets import vocabulary as vocabulary_lib

CLIENT_COLUMNS = ('client', 'user', 'domain')
VOCABULARIES = ('hashed', 'learned')
_PATTERNS = ('*sentiment*.csv*', '*sent140*.csv*', '*reviews*.csv*')
# The one kind of client that stands for more than one: a domain has many users.
_DIVISIBLE = 'domain'
# What Python's csv takes by itself, 131,072 characters, long reviews exceed.
_MAX_FIELD_SIZE = 2**31 - 1


class LabelledTexts(NamedTuple):
  """The rows of a file.

  Attributes:
    texts: The texts.
    labels: Of each, as it is written.
    keys: Whose text it is, as it is written.
    client_column: Where `keys` come from, one of `CLIENT_COLUMNS`.
  """

  texts: List[str]
  labels: List[str]
  keys: List[str]
  client_column: str


def read_csv(path: str) -> LabelledTexts:
  """Reads a file, without the texts that a client has twice.

  Args:
    path: The file; compressed if its name ends in `.gz`.

  Raises:
    ValueError: The file is missing or damaged, or lacks a column or a value;
      the message names it.
  """
  open_file = gzip.open if path.endswith('.gz') else open
  try:
    with open_file(path, 'rb') as file:
      # With or without the mark that spreadsheets put before UTF-8.
      content = file.read().decode('utf-8-sig')
    with _fields_of_any_size():
      rows = csv.DictReader(io.StringIO(content, newline=''), strict=True)
      columns = rows.fieldnames or []
      rows = list(rows)
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise arrays_lib.file_error(
      path, 'a complete gzip file', f'a damaged one ({error})'
    ) from None
  except OSError as error:
    raise arrays_lib.unreadable_error(path, error) from None
  except (csv.Error, UnicodeDecodeError) as error:
    raise arrays_lib.file_error(path, 'a CSV file in UTF-8', error) from None
  client_column = next((c for c in CLIENT_COLUMNS if c in columns), None)
  if client_column is None or not {'text', 'label'} <= set(columns):
    raise ValueError(
      f'Expected `{path}` to have the columns text, label and one of'
      f' {", ".join(CLIENT_COLUMNS)}, found {", ".join(columns) or "none"}.'
    )
  return _without_repeats(_checked(rows, path, client_column), path)


@contextlib.contextmanager
def _fields_of_any_size() -> Iterator[None]:
  """Lifts the limit that the csv module keeps for the whole process."""
  limit = csv.field_size_limit(_MAX_FIELD_SIZE)
  try:
    yield
  finally:
    csv.field_size_limit(limit)


def _checked(
  rows: List[Dict[str, str]], path: str, client_column: str
) -> LabelledTexts:
  """Returns the rows' values, every row with all of them."""
  if not rows:
    raise arrays_lib.file_error(path, 'a CSV file with rows', 'none')
  columns = ('text', 'label', client_column)
  for number, row in enumerate(rows):
    for column in columns:
      if not row[column]:
        raise ValueError(
          f'Expected `{path}` to have a {column} in every row, found none in'
          f' row {number + 1} after the heading.'
        )
  return LabelledTexts(
    *([row[column] for row in rows] for column in columns), client_column
  )


def _without_repeats(data: LabelledTexts, path: str) -> LabelledTexts:
  """Returns only the first of a client's equal texts."""
  first = {}
  for row, pair in enumerate(zip(data.keys, data.texts)):
    first.setdefault(pair, row)
  num_repeats = len(data.texts) - len(first)
  if num_repeats:
    logging.info(
      'Dropped %d texts of %s that their client has twice.', num_repeats, path
    )
  return LabelledTexts(
    *([values[row] for row in first.values()] for values in data[:3]),
    data.client_column,
  )


def _numbered_labels(labels: List[str], path: str) -> Tuple[np.ndarray, int]:
  """Returns the labels as classes, and the number of classes."""
  try:
    values = np.array([float(label) for label in labels])
  except ValueError:
    values = np.array(labels)
  classes, y = np.unique(values, return_inverse=True)
  if len(classes) < 2:
    raise ValueError(
      f'Expected `{path}` to have two or more different labels, found'
      f' {classes.tolist()}.'
    )
  return y.astype(np.int32), len(classes)


def _deal(
  data: LabelledTexts,
  y: np.ndarray,
  num_clients: int,
  min_texts: int,
  seed: int,
) -> Tuple[List[str], List[np.ndarray]]:
  """Returns the clients' ids and the positions of their texts."""
  keys, owners, counts = np.unique(
    np.array(data.keys), return_inverse=True, return_counts=True
  )
  # All texts of a key side by side, in the order of the file.
  by_key = np.split(np.argsort(owners, kind='stable'), np.cumsum(counts)[:-1])
  texts = {
    key: rows
    for key, rows in zip(keys.tolist(), by_key)
    if len(rows) >= min_texts
  }
  kind = f'{data.client_column}s'
  if min_texts > 1:
    kind += f' with at least {min_texts} texts'
  num_clients = partitioning.check_num_clients(num_clients)
  if data.client_column == _DIVISIBLE and num_clients > len(texts) > 0:
    return _divide(texts, y, num_clients, seed)
  chosen = natural_clients.choose_clients(list(texts), num_clients, kind, seed)
  return chosen, [texts[key] for key in chosen]


def _divide(
  texts: Dict[str, np.ndarray], y: np.ndarray, num_clients: int, seed: int
) -> Tuple[List[str], List[np.ndarray]]:
  """Deals each domain's texts evenly to clients of that domain alone."""
  num_texts = sum(map(len, texts.values()))
  errors.expect(
    num_clients <= num_texts,
    'num_clients',
    f'at most {num_texts}, the number of texts',
    num_clients,
  )
  counts = [
    len(part) for part in np.array_split(np.arange(num_clients), len(texts))
  ]
  ids, indices = [], []
  for (domain, own), count in zip(texts.items(), counts):
    parts = partitioning.Iid().partition(y[own], num_clients=count, seed=seed)
    width = len(str(max(counts) - 1))
    ids += [f'{domain}_{j:0{width}d}' for j in range(count)]
    indices += [own[part] for part in parts.train_indices]
  return ids, indices


def load_sentiment(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'natural',
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
  max_words: int = 100,
  vocabulary: str = 'hashed',
  vocabulary_size: int = 10_000,
  min_texts: int = 1,
  test_fraction: float = 0.2,
) -> federated_dataset.FederatedDataset:
  """Returns labelled texts by client.

  Each client's texts are divided into training and test texts, stratified by
  label.

  Args:
    num_clients: At least 1. So many users or domains are drawn at random. Where
      the file is by domain and there are more clients than domains, each
      domain's texts are dealt evenly to clients that have this domain alone.
    partition: 'natural'.
    data_dir: The CSV file, its folder, or the parent of its folder
      `sentiment`. In a folder, its name has `sentiment`, `sent140` or
      `reviews` in it.
    seed: Of the choice of clients and of the test texts, non-negative.
    max_words: How many words of a text are kept, at least 1.
    vocabulary: 'hashed', or 'learned': the most frequent words of the clients'
      training texts, and one number for all other words.
    vocabulary_size: Bound on the words' numbers, at least 2 (learned: 3).
    min_texts: Users or domains with fewer texts are left out, at least 1.
    test_fraction: What part of a client's texts becomes its test set, in
      [0, 1).

  Returns:
    Dataset with `x` int32 `[max_words]`, words in [1, vocabulary_size) and then
    0, and `y` int32.

  Raises:
    ValueError: The file is missing or not of this form, another partition is
      asked for, there are not enough clients, or an argument is out of range.
  """
  natural_clients.check_partition(partition, 'sentiment', 'users or domains')
  seed = partitioning.check_seed(seed)
  errors.expect(
    data_dir is not None,
    'data_dir',
    'a CSV file with the columns text, label and client, user or domain',
    data_dir,
  )
  errors.expect(
    vocabulary in VOCABULARIES,
    'vocabulary',
    f'one of {", ".join(VOCABULARIES)}',
    vocabulary,
  )
  errors.expect_int('max_words', max_words, 1)
  errors.expect_int('min_texts', min_texts, 1)
  errors.expect(
    isinstance(test_fraction, (int, float)) and 0 <= test_fraction < 1,
    'test_fraction',
    'a number in [0, 1)',
    test_fraction,
  )
  path = arrays_lib.find_file('sentiment', data_dir, _PATTERNS)
  data = read_csv(path)
  y, num_classes = _numbered_labels(data.labels, path)
  client_ids, indices = _deal(data, y, num_clients, min_texts, seed)
  parts = partitioning.hold_out(indices, y, test_fraction, seed)
  train, test = (np.concatenate(part) for part in parts)
  words, words_test = (
    [vocabulary_lib.words_of(data.texts[i]) for i in rows]
    for rows in (train, test)
  )
  if vocabulary == 'hashed':
    numbers = vocabulary_lib.HashedVocabulary(vocabulary_size)
  else:
    numbers = vocabulary_lib.WordVocabulary.of_most_frequent(
      words, vocabulary_size
    )
  keys, keys_test = (
    np.repeat(range(len(client_ids)), [len(part) for part in split])
    for split in parts
  )
  return federated_dataset.FederatedDataset.from_arrays(
    numbers.encode(words, max_words),
    y[train],
    x_test=numbers.encode(words_test, max_words),
    y_test=y[test],
    keys=keys,
    keys_test=keys_test,
    client_ids=client_ids,
    num_classes=num_classes,
    name='sentiment',
  )
