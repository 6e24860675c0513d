"""HDF5 files of TensorFlow Federated: `examples/CLIENT/FIELD`.

TFF's data sets were published in this form (`fed_emnist_train.h5` and
`fed_emnist_test.h5`, `fed_cifar100_train.h5` and so on). FedML and others read
it; TFF's own loaders have another by now.

Labels are read at once, inputs when their client is read.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import h5py
import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import array_checks, files
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets.sources import images, own_files

_CONTENTS = "TFF's two files *train.h5 and *test.h5, or one .h5 file"


@contextlib.contextmanager
def _examples(path: str) -> Iterator[h5py.Group]:
  """Opens a file; errors name it."""
  try:
    with h5py.File(path, 'r') as file:
      yield file['examples']
  except OSError as error:
    raise files.unreadable_error(path, error) from None
  except (KeyError, AttributeError, TypeError, RuntimeError) as error:
    raise files.file_error(
      path, 'an HDF5 file of examples/CLIENT/FIELD', f'another ({error})'
    ) from None


def _find_field(
  path: str, group: h5py.Group, label_field: str, input_field: Optional[str]
) -> str:
  """Returns the field of the inputs, after checks of both fields."""
  sizes = {
    name: np.prod(field.shape[1:])
    for name, field in group.items()
    if field.dtype.kind in 'biuf'
  }
  for argument, field in (
    ('label_field', label_field),
    ('input_field', input_field),
  ):
    errors.expect(
      field in (None, *sizes),
      argument,
      f'one of the fields of numbers in {path} ({", ".join(sizes)})',
      field,
    )
  others = [name for name in sizes if name != label_field]
  # There may be other labels beside images.
  found = [name for name in others if sizes[name] > 1] or others
  if input_field is None and len(found) != 1:
    raise ValueError(
      f'Expected `input_field` to be given where not one field of {path} has'
      f' inputs that are numbers, found {", ".join(found) or "none"} in'
      f" {', '.join(group)}; TFF's texts are the data sets shakespeare and"
      ' stackoverflow.'
    )
  return input_field or found[0]


class _Inputs:
  """A reader of inputs by position, which keeps nothing."""

  def __init__(
    self,
    clients: Sequence[own_files.ClientExamples],
    field: str,
    sample: np.ndarray,
    scale: bool,
  ):
    """Reads nothing yet.

    Args:
      clients: All clients, in the order of the positions, which are their `x`.
      field: Name of the inputs in the files.
      sample: Any inputs, `[n, ...]`.
      scale: True to convert images of bytes to floats in [0, 1].
    """
    self._clients = [each[:2] for each in clients]
    self._starts = np.cumsum([0, *(len(each.y) for each in clients)])
    self._field = field
    self._none = array_checks.check_inputs(sample[:0], field)
    self._is_scaled = scale and images.are_bytes(sample)

  def __call__(self, positions: np.ndarray) -> np.ndarray:
    """Reads inputs `[k, ...]` by their positions among all."""
    owners = np.searchsorted(self._starts, positions, side='right') - 1
    x = np.empty((len(positions), *self._none.shape[1:]), self._none.dtype)
    for owner in np.unique(owners):
      path, client = self._clients[owner]
      with _examples(path) as examples:
        rows = examples[client][self._field][()]
      with own_files.naming(path):
        rows = array_checks.check_inputs(rows, f'{client}/{self._field}')
      own = owners == owner
      x[own] = rows[positions[own] - self._starts[owner]]
    return images.to_unit_interval(x) if self._is_scaled else x


def load_tff_hdf5(
  data_dir: Optional[str] = None,
  *,
  label_field: str = 'label',
  input_field: Optional[str] = None,
  scale: bool = True,
) -> arrays_lib.Arrays:
  """Loads the examples of TFF's clients; `x` are positions.

  Args:
    data_dir: Folder with one file `*train.h5` and one `*test.h5`; or one file,
      and a part of each client's examples is held out.
    label_field: Name of the labels, integers `[n]` or `[n, 1]`.
    input_field: Name of the inputs, numbers `[n, ...]`; None for the only other
      field of numbers, or the only one with several numbers per example.
    scale: True to convert images of bytes to floats in [0, 1].
  """
  files.expect_given(data_dir, _CONTENTS)
  paths = [data_dir]
  if not os.path.isfile(data_dir):
    paths = [
      files.find_file('tff_hdf5', data_dir, (f'*{part}.h5',))
      for part in ('train', 'test')
    ]
  parts: list[list[own_files.ClientExamples]] = [[] for _ in paths]
  sample: Any = None
  count = 0
  for path, part in zip(paths, parts):
    with _examples(path) as examples:
      files.expect_all_within(examples.file, path)
      for client, group in examples.items():
        if sample is None:
          input_field = _find_field(path, group, label_field, input_field)
          sample = group[input_field][:1]
        y = group[label_field][()].reshape(-1)
        shape = group[input_field].shape
        if shape != (len(y), *sample.shape[1:]):
          raise files.file_error(
            path,
            f'a file of {input_field} of shape {sample.shape[1:]} with a'
            f' {label_field} each',
            f'{shape} and {len(y)} of client {client}',
          )
        x = np.arange(count, count + len(y))
        part.append(own_files.ClientExamples(path, client, x, y))
        count += len(y)
  errors.expect(parts[0], 'data_dir', _CONTENTS, f'no client in {paths[0]}')
  clients = [each for part in parts for each in part]
  return own_files.join(
    data_dir,
    parts,
    name='tff_hdf5',
    transform=_Inputs(clients, input_field, sample, scale),
  )
