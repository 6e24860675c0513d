"""Folders, clients and errors of users' own files in any form."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files


class ClientExamples(NamedTuple):
  """Examples of one client."""

  path: str  # The file, for messages.
  client: Union[str, int]  # Numbers sort as numbers.
  x: np.ndarray  # Inputs, `[n, ...]`.
  y: np.ndarray  # Labels, `[n]`, numbers or words.


def find_parts(
  data_dir: Optional[str], pattern: str, contents: str
) -> list[list[str]]:
  """Finds the files of training examples and, if there are any, test examples.

  Args:
    data_dir: A file, a folder of files, or a folder with the folders `train`
      and `test`.
    pattern: Pattern of the file names, such as `*.json`.
    contents: Description of `data_dir`, for messages.

  Returns:
    One list of files, or two.
  """
  if data_dir and os.path.isfile(data_dir) and os.sep not in pattern:
    return [[data_dir]]
  errors.expect(
    data_dir and os.path.isdir(data_dir), 'data_dir', contents, data_dir
  )
  train, test = (os.path.join(data_dir, part) for part in ('train', 'test'))
  folders = [train if os.path.isdir(train) or os.path.isdir(test) else data_dir]
  if os.path.isdir(test):
    folders.append(test)
  parts = [sorted(files.matching(folder, pattern)) for folder in folders]
  for folder, part in zip(folders, parts):
    errors.expect(part, 'data_dir', contents, f'no file {pattern} in {folder}')
  return parts


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
  """Names a file or folder in errors about its arrays."""
  try:
    yield
  except files.FileError:
    raise
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def join(
  data_dir: str,
  parts: Sequence[Sequence[ClientExamples]],
  regression: bool = False,
  **fields: Any,
) -> arrays_lib.Arrays:
  """Joins all clients' examples.

  Labels that are words are numbered in sorted order. Whole numbers, even as
  floats, are classes. Other numbers are regression targets.

  Args:
    data_dir: File or folder of the examples, for messages.
    parts: Training examples, and test examples if there are any.
    regression: True for labels that are targets even if all are whole.
    **fields: Other fields of `Arrays`.
  """
  errors.expect(parts[0], 'data_dir', 'files with training examples', data_dir)
  every = [each for part in parts for each in part]
  shape = every[0].x.shape[1:]
  for path, client, x, y in every:
    if y.ndim != 1 or x.shape != (len(y), *shape):
      raise files.file_error(
        path,
        f'a file of inputs of shape {shape}, like {every[0].path}, with one'
        ' label each',
        f'inputs {x.shape} and labels {y.shape} of client {client}',
      )
  _, clients, x, y = zip(*every)
  client = np.repeat(clients, [len(labels) for labels in y])
  x, y = np.concatenate(x), np.concatenate(y)
  num_train = sum(len(each.y) for each in parts[0])
  with naming(data_dir):
    if regression:
      y = y.astype(np.float32)
    elif y.dtype.kind == 'U':
      fields['class_names'], y = np.unique(y, return_inverse=True)
    elif y.dtype.kind == 'f' and np.array_equal(y, np.floor(y)):
      y = y.astype(np.int64)
    for name, array in (('x', x), ('y', y), ('client', client)):
      fields[name] = array[:num_train]
      if len(parts) == 2:
        fields[f'{name}_test'] = array[num_train:]
    return arrays_lib.Arrays(**fields)
