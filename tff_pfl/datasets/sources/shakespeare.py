"""Next characters of Shakespeare's plays by speaking role.

Source: works of William Shakespeare, public domain. The data are a plain text
file of speeches, such as Tiny Shakespeare (A. Karpathy, 2015: 40,000 lines,
1,115,394 characters, 309 roles, 141 of them with 1,000 characters or more).
Without a data folder, they are the 715 roles of the complete works that
TensorFlow Federated provides, after LEAF (S. Caldas et al., LEAF: A Benchmark
for Federated Settings, 2018).

In the text file, speeches are separated by blank lines, and the first line of
each is the role's name and a colon. Roles of the same name in several plays are
one client.

Examples are the same as in LEAF: a sequence of characters and the character
that follows it, at every position of a role's text. Training text comes before
test text, and no sequence spans both.

Characters are numbered: newline 1, the printable ASCII characters 2 to 96, and
others 97. 0 stands for padding and does not occur.
"""

import re
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl import tff_api as tff
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import downloads

# Padding, newline, 95 printable characters and one for all others.
NUM_CHARACTERS = 98
_OTHER = NUM_CHARACTERS - 1
_CODES = np.full(256, _OTHER, np.int32)
_CODES[ord('\n')] = 1
_CODES[32:127] = np.arange(2, 97)
_PATTERN = '*shakespeare*.txt'
_KIND = 'speaking roles with enough text'
_BLANK_LINES = re.compile(r'\n[ \t]*(?:\n[ \t]*)+')


def encode(text: str) -> np.ndarray:
  """Returns a text's characters as numbers, int32 `[characters]`."""
  points = np.frombuffer(text.encode('utf-32-le'), '<u4')
  return _CODES[np.minimum(points, len(_CODES) - 1)]


def read_roles(path: str) -> dict[str, str]:
  """Reads a file of speeches.

  Returns:
    The speeches of each role, joined by newlines, in the order of appearance.
  """
  with files.reading(path, 'a text file in UTF-8'):
    # With or without the byte order mark that some editors write.
    with open(path, encoding='utf-8-sig') as file:
      content = file.read()
  speeches: dict[str, list[str]] = {}
  for number, block in enumerate(_BLANK_LINES.split(content.strip())):
    role, _, speech = block.partition('\n')
    role = role.strip()
    if len(role) < 2 or not role.endswith(':'):
      raise ValueError(
        f'Expected `{path}` to have blank lines between speeches and each to'
        f' begin with a line `ROLE:`, found {role[:60]!r} in speech'
        f' {number + 1}.'
      )
    speeches.setdefault(role[:-1], []).append(speech)
  return {role: '\n'.join(parts) for role, parts in speeches.items()}


def _tff_splits() -> list[dict[str, str]]:
  """Downloads the training and test text of the roles that have both."""
  splits = downloads.from_tff(
    'shakespeare',
    tff.simulation.datasets.shakespeare.load_data,
    f'pass `data_dir` with a file {_PATTERN} of speeches or its folder',
  )
  roles = downloads.in_both(*splits)
  reads = [downloads.texts_of(split, 'snippets') for split in splits]
  return [{role: '\n'.join(read(role)) for role in roles} for read in reads]


def _file_splits(path: str) -> list[dict[str, str]]:
  """Returns four fifths of each role's text in a file, and the rest."""
  roles = sorted(read_roles(path).items())
  return [
    {role: text[: len(text) * 4 // 5] for role, text in roles},
    {role: text[len(text) * 4 // 5 :] for role, text in roles},
  ]


@fields.checked_call
def load_shakespeare(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  data_dir: Optional[str] = None,
  seed: fields.Seed = 0,
  sequence_length: fields.Count = 80,
  min_characters: fields.CountOrZero = 1000,
  stride: fields.Count = 1,
) -> federated_dataset.FederatedDataset:
  """Next character after 80 others by speaking role (partition natural).

  The text is a file *shakespeare*.txt or downloaded.

  Args:
    num_clients: Number of roles to draw. None means all.
    partition: Natural or None.
    data_dir: The text file, its folder, or the parent of its folder
      `shakespeare`. In a folder, its name is `*shakespeare*.txt`. The first
      four fifths of a role's text are its training set. None uses the roles and
      the split of `tff.simulation.datasets`.
    seed: Seed of the choice of roles.
    sequence_length: Number of characters in a sequence, at least 1.
    min_characters: Minimum length of a role's text. Others are left out, and so
      are roles without a training or a test example.
    stride: Number of characters between the starts of two sequences, at least
      1. A larger one gives fewer examples.
  """
  natural.expect_natural(partition, 'shakespeare', 'speaking roles')
  if data_dir is None:
    train, test = _tff_splits()
  else:
    path = files.find_file('shakespeare', data_dir, (_PATTERN,))
    train, test = _file_splits(path)
  roles = natural.choose_clients(
    [
      role
      for role in train
      if len(train[role]) + len(test[role]) >= min_characters
      and min(len(train[role]), len(test[role])) > sequence_length
    ],
    num_clients,
    _KIND,
    seed,
  )
  sequence = np.arange(sequence_length)

  def examples(text: str) -> examples_lib.Examples:
    codes = encode(text)
    starts = np.arange(0, len(codes) - sequence_length, stride)
    return examples_lib.Examples(
      codes[starts[:, np.newaxis] + sequence], codes[starts + sequence_length]
    )

  texts = {'train': train, 'test': test}
  return federated_dataset.FederatedDataset(
    name='shakespeare',
    client_ids=roles,
    element_spec=examples_lib.element_spec(
      tf.TensorSpec((sequence_length,), tf.int32)
    ),
    num_classes=NUM_CHARACTERS,
    load=lambda role, split: examples(texts[split][role]),
    # Examples have sequence_length + 1 characters, so ones this close overlap.
    num_overlapping=sequence_length // stride,
    in_memory=data_dir is not None,
  )
