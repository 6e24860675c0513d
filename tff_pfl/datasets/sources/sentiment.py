"""Labeled texts by domain or user, from a CSV file or Sentiment140.

The file has a heading and the columns `text`, `label` and `client`, `user` or
`domain` (other columns are ignored), and may be compressed with gzip. The
labels, two or more, are all numbers or all words, and are numbered in their
sorted order: 0 and 1 stay, and 0 and 4 become 0 and 1. A column `domain` gives
the domains of texts, also if clients are another column.

Sources that have this form or are easily brought to it: the Multi-Domain
Sentiment Dataset (J. Blitzer, M. Dredze, F. Pereira, Biographies, Bollywood,
Boom-boxes and Blenders, ACL 2007), 2,000 Amazon product reviews of each of the
domains books, dvd, electronics and kitchen; Sentiment140 (A. Go, R. Bhayani, L.
Huang, 2009), 1.6 million tweets by user. Without a file it is Sentiment140, its
training tweets as TensorFlow Datasets has them: polarities 0 and 4, and users.
License: none is stated for either; free for research, the texts belong to their
authors.

A second copy of a client's text is dropped, so that no text is both trained and
tested on. If a rule deals the texts to clients, so is a second copy in the
file.
"""

import functools
from typing import Any, Optional

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import downloads, table_files
from tff_pfl.datasets.sources import vocabulary as vocabulary_lib

CLIENT_COLUMNS = ('client', 'user', 'domain')
# Each with the least bound on its numbers.
VOCABULARIES = {'hashed': 2, 'learned': 3}
_PATTERNS = ('*sentiment*.csv*', '*sent140*.csv*', '*reviews*.csv*')
# A client that may be divided into several, as a domain has many users.
_DOMAIN = 'domain'


_FORM = table_files.Format(missing_markers=())


def read(data_dir: Optional[str]) -> tuple[pd.DataFrame, str]:
  """Reads texts and drops second copies of a client's texts.

  Args:
    data_dir: See `load_sentiment`.

  Returns:
    A table with the columns `text`, `label` (classes from 0 on) and those of
    clients and domains that the file has, and the name of the client column.
  """
  if data_dir is None:
    table = _sentiment140()
  else:
    path = files.find_file('sentiment', data_dir, _PATTERNS)
    table = table_files.read_table(path, _FORM)
  client_column = next(
    (c for c in CLIENT_COLUMNS if c in table), 'client, user or domain'
  )
  table_files.expect_columns(table, 'text', 'label', client_column)
  labels = table['label']
  table['label'] = labels.mask(labels.isin(table_files.MISSING_MARKERS))
  for column in {'text', 'label', client_column, _DOMAIN}.intersection(table):
    table_files.complete(table, column)
  once = table.drop_duplicates([client_column, 'text'])
  if len(once) < len(table):
    logging.info(
      'Dropped %d texts of %s that their client has twice.',
      len(table) - len(once),
      table.attrs['path'],
    )
  values = _FORM.numbers(once['label'])
  if values.notna().any() and values.isna().any():
    expected = 'labels that are all numbers or all words'
    raise table_files.error(once, expected, 'label', values.isna())
  classes = table_files.distinct(once['label'], _FORM)
  if len(classes) < 2:
    raise table_files.error(
      table, f'two or more different labels, found {classes}'
    )
  labels = table_files.known_positions(once, 'label', classes)
  return once.assign(label=labels), client_column


def _sentiment140() -> pd.DataFrame:
  """Returns the columns of a file of tweets by user."""
  ((text, label, user),) = downloads.from_tensorflow_datasets(
    'sentiment140',
    ['train'],
    ['text', 'polarity', 'user'],
    'pass `data_dir` with a CSV file of the columns text, label and client,'
    ' user or domain',
  )
  table = pd.DataFrame(dict(text=text, user=user))
  table = table.map(bytes.decode).assign(label=label.astype(str))
  table.attrs['path'] = 'sentiment140'
  return table


def _natural_clients(
  table: pd.DataFrame,
  client_column: str,
  num_clients: int,
  min_texts: int,
  seed: int,
) -> dict[str, np.ndarray]:
  """Returns client id to the positions of its texts."""
  texts = {
    client: rows
    for client, rows in sorted(table.groupby(client_column).indices.items())
    if len(rows) >= min_texts
  }
  if client_column == _DOMAIN and num_clients > len(texts) > 0:
    return _divided_domains(texts, table['label'].to_numpy(), num_clients, seed)
  kind = f'{client_column}s'
  if min_texts > 1:
    kind += f' with at least {min_texts} texts'
  chosen = natural.choose_clients(list(texts), num_clients, kind, seed)
  return {key: texts[key] for key in chosen}


def _divided_domains(
  texts: dict[str, np.ndarray], y: np.ndarray, num_clients: int, seed: int
) -> dict[str, np.ndarray]:
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
  width = len(str(max(counts) - 1))
  clients = {}
  for (domain, own), count in zip(texts.items(), counts):
    pool = partitioning.Pool(y[own])
    parts = partitioning.Iid().partition(pool, count, seed)
    for j, part in enumerate(parts.train_indices):
      clients[f'{domain}_{j:0{width}d}'] = own[part]
  return clients


def _owners(
  table: pd.DataFrame,
  client_column: str,
  num_clients: int,
  partition: partitioning.Partitioner,
  min_texts: int,
  seed: int,
) -> tuple[np.ndarray, dict[str, Any]]:
  """Returns the positions of the texts to use, and their clients and domains.

  The latter are arguments of `FederatedDataset.from_arrays`.
  """
  if isinstance(partition, natural.Natural):
    clients = _natural_clients(
      table, client_column, num_clients, min_texts, seed
    )
    rows = np.concatenate(list(clients.values()))
    keys = np.repeat(range(len(clients)), list(map(len, clients.values())))
    owners: dict[str, Any] = dict(keys=keys, client_ids=list(clients))
  else:
    # Any client may get a text, so each counts once.
    rows = np.flatnonzero(~table['text'].duplicated())
    owners = dict(num_clients=num_clients, partition=partition)
  if _DOMAIN in table:
    names, owners['domain'] = np.unique(
      table[_DOMAIN].to_numpy(str)[rows], return_inverse=True
    )
    owners['domain_names'] = names.tolist()
  return rows, owners


def load_sentiment(
  num_clients: int,
  partition: partitioning.Partitioner,
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
  max_words: int = 100,
  vocabulary: str = 'hashed',
  vocabulary_size: int = 10_000,
  min_texts: int = 1,
  test_fraction: float = 0.2,
) -> federated_dataset.FederatedDataset:
  """Loads labeled texts by client, the test texts stratified by label.

  Args:
    num_clients: Number of clients. If there are more than domains, each
      domain's texts are divided evenly.
    partition: Natural, or a rule that deals all texts, for example by their
      domains.
    data_dir: The CSV file, its folder, or the parent of its folder
      `sentiment`. In a folder, its name contains `sentiment`, `sent140` or
      `reviews`. None for Sentiment140 by TensorFlow Datasets.
    seed: Non-negative.
    max_words: Words of a text that are kept, at least 1.
    vocabulary: 'hashed', or 'learned' from the clients' training texts: the
      most frequent words, and one number for all others.
    vocabulary_size: Bound on the words' numbers, at least 2 (learned: 3).
    min_texts: Least number of texts of a user or domain, at least 1; others are
      left out. Only with the partition natural.
    test_fraction: Fraction of a client's texts in its test set, in [0, 1).

  Returns:
    Dataset with `x` int32 `[max_words]`, words in [1, vocabulary_size) and then
    0, and `y` int32.
  """
  errors.expect_one_of('vocabulary', vocabulary, VOCABULARIES)
  errors.expect_int(
    'vocabulary_size', vocabulary_size, VOCABULARIES[vocabulary], 2**31 - 1
  )
  errors.expect_int('max_words', max_words, 1)
  table, client_column = read(data_dir)
  rows, owners = _owners(
    table, client_column, num_clients, partition, min_texts, seed
  )
  deal = functools.partial(
    federated_dataset.FederatedDataset.from_arrays,
    np.arange(len(rows)),
    table['label'].to_numpy()[rows],
    **owners,
    test_fraction=test_fraction,
    num_classes=int(table['label'].max()) + 1,
    name='sentiment',
    seed=seed,
  )
  words = [vocabulary_lib.words_of(text) for text in table['text'].iloc[rows]]
  number = functools.partial(vocabulary_lib.hashed, size=vocabulary_size)
  if vocabulary == 'learned':
    # Dealt once to see which texts are for training.
    dealt = deal()
    training = [words[i] for c in dealt.client_ids for i in dealt.train(c).x]
    # Two numbers are for padding and for all other words.
    known = vocabulary_lib.most_frequent(training, vocabulary_size - 2)
    number = vocabulary_lib.numbered(known)
  x = vocabulary_lib.padded(
    [[number(word) for word in text[:max_words]] for text in words], max_words
  )
  return deal(transform=x.__getitem__)
