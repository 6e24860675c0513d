"""Labeled texts by domain or user, from a CSV file or Sentiment140.

The file has a header and the columns `text`, `label` and `client`, `user` or
`domain` (other columns are ignored). It may be compressed with gzip. The two or
more labels are all numbers or all words. They are numbered in sorted order: 0
and 1 stay, and 0 and 4 become 0 and 1. A column `domain` gives the domains of
texts, even if another column has the clients.

Two sources have this form or are easily converted to it: the Multi-Domain
Sentiment Dataset (J. Blitzer, M. Dredze, F. Pereira, Biographies, Bollywood,
Boom-boxes and Blenders, ACL 2007), 2,000 Amazon product reviews of each of the
domains books, dvd, electronics and kitchen, and Sentiment140 (A. Go, R.
Bhayani, L. Huang, 2009), 1.6 million tweets by user. The default without a file
is the training tweets of Sentiment140 from TensorFlow Datasets, with polarities
0 and 4, and users.
License: none is stated for either. Free for research. The texts belong to their
authors.

Duplicates of a client's text are dropped, so that no text is both trained and
tested on. If a rule deals the texts to clients, all duplicates in the file are
dropped.
"""

import dataclasses
from typing import Optional

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl import errors, fields
from tff_pfl.datasets import (
  columns,
  federated_dataset,
  files,
  frames,
  partitioning,
)
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import downloads, own_files, table
from tff_pfl.datasets.sources import vocabulary as vocabulary_lib

CLIENT_COLUMNS = ('client', 'user', 'domain')
_PATTERNS = ('*sentiment*.csv*', '*sent140*.csv*', '*reviews*.csv*')
# A client of this column may be divided into several, as domains have many
# users.
_DOMAIN = 'domain'
# Labels that count as missing. A text may be one of these words.
_MISSING = ('', '?', 'NA', 'N/A', 'NULL', 'NaN', 'None', 'n/a', 'nan', 'null')


def read(data_dir: Optional[str]) -> tuple[pd.DataFrame, str]:
  """Reads texts and drops duplicates of a client's texts.

  Args:
    data_dir: See `load_sentiment`.

  Returns:
    A frame with the columns `text`, `label`, and the columns of clients and
    domains that the file has, and the name of the client column.
  """
  if data_dir is None:
    frame = _sentiment140()
  else:
    path = files.find_file('sentiment', data_dir, _PATTERNS)
    words = ('text', *CLIENT_COLUMNS)
    options = dict(
      dtype=dict.fromkeys(words, str),
      keep_default_na=False,
      na_values={**dict.fromkeys(words, ['']), 'label': list(_MISSING)},
    )
    frame = table.read_table(path, options, ('text', 'label'))
  client = next((c for c in CLIENT_COLUMNS if c in frame), None)
  if client is None:
    contents = 'a table with the column client, user or domain'
    raise files.file_error(path, contents, ', '.join(frame))
  used = {'text', 'label', client, _DOMAIN}
  frame = frame[[name for name in frame if name in used]]
  once = frame.drop_duplicates([client, 'text'])
  if len(once) < len(frame):
    logging.info(
      "Dropped %d duplicates of clients' texts.", len(frame) - len(once)
    )
  return once, client


def _sentiment140() -> pd.DataFrame:
  """Returns the tweets by user, with the columns of a file."""
  ((text, label, user),) = downloads.from_tensorflow_datasets(
    'sentiment140',
    ['train'],
    ['text', 'polarity', 'user'],
    'pass `data_dir` with a CSV file of the columns text, label and client,'
    ' user or domain',
  )
  frame = pd.DataFrame(dict(text=text, user=user))
  return frame.map(bytes.decode).assign(label=label)


def _own_texts(
  frame: pd.DataFrame,
  encoding: frames.FrameEncoding,
  num_clients: Optional[int],
  min_texts: int,
  seed: int,
) -> tuple[pd.DataFrame, str]:
  """Returns the texts of the drawn clients, and the client column."""
  client = encoding.client
  counts = frame[client].map(frame[client].value_counts())
  frame = frame[counts >= min_texts]
  clients = sorted(frame[client].unique())
  if client == _DOMAIN and (num_clients or 0) > len(clients) > 0:
    labels = encoding.labels(frame)
    return _divided_domains(frame, labels, num_clients, seed), 'client'
  kind = f'{client}s'
  if min_texts > 1:
    kind += f' with at least {min_texts} texts'
  chosen = natural.choose_clients(clients, num_clients, kind, seed)
  return frame[frame[client].isin(chosen)], client


def _divided_domains(
  frame: pd.DataFrame, labels: np.ndarray, num_clients: int, seed: int
) -> pd.DataFrame:
  """Deals each domain's texts evenly to clients of only that domain.

  Returns:
    The texts in the order of the clients, with the column `client`.
  """
  errors.expect(
    num_clients <= len(frame),
    'num_clients',
    f'at most {len(frame)}, the number of texts',
    num_clients,
  )
  domains = sorted(frame.groupby(_DOMAIN).indices.items())
  counts = [
    len(part) for part in np.array_split(np.arange(num_clients), len(domains))
  ]
  width = len(str(max(counts) - 1))
  parts = []
  for (domain, own), count in zip(domains, counts):
    pool = partitioning.Pool(labels[own])
    dealt = partitioning.Iid().partition(pool, count, seed)
    for j, part in enumerate(dealt.train_indices):
      name = f'{domain}_{j:0{width}d}'
      parts.append(frame.iloc[own[part]].assign(client=name))
  return pd.concat(parts)


@fields.checked_call
def load_sentiment(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  data_dir: Optional[str] = None,
  seed: fields.Seed = 0,
  max_words: fields.Count = 100,
  vocabulary_size: fields.integer(2) = 10_000,
  min_texts: fields.Count = 1,
  test_fraction: fields.ShareBelowOne = 0.2,
) -> federated_dataset.FederatedDataset:
  """Labeled texts of up to 100 words by user or domain.

  They come from a CSV file with the columns text, label and client, user or
  domain, or are the tweets of Sentiment140 from TensorFlow Datasets. The
  partition is natural or any other.

  Args:
    num_clients: Number of clients. If clients are domains and there are fewer
      domains than this, each domain's texts are divided evenly.
    partition: Natural, or a rule that deals all texts, for example by their
      domains.
    data_dir: The CSV file, its folder, or the parent of its folder
      `sentiment`. In a folder, its name contains `sentiment`, `sent140` or
      `reviews`. None means Sentiment140 from TensorFlow Datasets.
    seed: Non-negative.
    max_words: Number of words to keep of each text, at least 1.
    vocabulary_size: Number of distinct word numbers, hashes of the words and 0
      for padding, at least 2.
    min_texts: Minimum number of texts of a user or domain, at least 1. Others
      are left out. Only with the partition natural.
    test_fraction: Fraction of a client's texts in its test set, in [0, 1),
      stratified by label.

  Returns:
    Dataset with `x` int32 `[max_words]`, word numbers in [1, vocabulary_size)
    padded with 0, and `y` int32.
  """
  frame, client = read(data_dir)
  with own_files.naming(data_dir or 'sentiment140'):
    columns.complete(frame['text'])
    roles = frames.FrameEncoding(['label'], client)
    encoding = frames.fit(frame, roles, 'classification', [])
    if partition is None or isinstance(partition, natural.Natural):
      frame, client = _own_texts(frame, encoding, num_clients, min_texts, seed)
    else:
      # Any client may get a text, so each text is kept once.
      frame, client = frame.drop_duplicates('text'), None
    if _DOMAIN in frame:
      domains = sorted(columns.complete(frame[_DOMAIN]).unique())
      encoding = dataclasses.replace(encoding, domain=_DOMAIN, domains=domains)
    encoding = dataclasses.replace(encoding, client=client)
    pool = encoding.pool(frame, encoding.labels(frame), 'sentiment')
  x = vocabulary_lib.padded(
    [
      [
        vocabulary_lib.hashed(word, vocabulary_size)
        for word in words[:max_words]
      ]
      for words in map(vocabulary_lib.words_of, frame['text'])
    ],
    max_words,
  )
  pool = dataclasses.replace(pool, x=x)
  return federated_dataset.FederatedDataset(
    **pool.clients(num_clients, partition, seed, test_fraction)
  )
