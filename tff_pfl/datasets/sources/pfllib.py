"""PFLlib's folders: `train/0.npz`, `test/0.npz` and so on, one per client.

Source: J. Zhang et al., PFLlib: A Beginner-Friendly and Comprehensive
Personalized Federated Learning Library and Benchmark, JMLR 2025,
https://github.com/TsingZ0/PFLlib, whose `dataset/generate_*.py` write them.

A file has one array `data`, a pickled dict of `x` and `y`. Unpickling can run
any code, and NumPy trusts what a pickle says about an array's elements, even
pointers. So a pickle gets a record instead of each NumPy function, and arrays
are made here from the shapes and bytes in the records.
"""

import io
import os
import pickle
import re
import zipfile
from typing import Any, Optional

import numpy as np

from tff_pfl import fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import own_files

_CONTENTS = "PFLlib's folder of a dataset, with train/0.npz and test/0.npz"
# Names that pickles of NumPy 1 and 2 call for arrays and their elements.
_ADMITTED = re.compile(
  r'numpy\.(_?core\.multiarray\.(_reconstruct|scalar)|ndarray|dtype)'
)


class _Call:
  """A call that a pickle requests, and the state that it gives the result."""

  def __init__(self, *arguments: Any):
    self.arguments = arguments
    self.state: Any = None

  def __setstate__(self, state: Any) -> None:
    self.state = state


class _Unpickler(pickle.Unpickler):
  """Reads numbers, texts, lists and dicts, and `_Call`s instead of all else."""

  def __init__(self, file: io.BytesIO, path: str):
    super().__init__(file)
    self._path = path

  def find_class(self, module: str, name: str) -> type[_Call]:
    """Returns `_Call` for admitted NumPy names and rejects others."""
    if not _ADMITTED.fullmatch(f'{module}.{name}'):
      raise files.FileError(
        f'Expected `{self._path}` to hold arrays, dicts and lists only, found'
        f' {f"{module}.{name}"!r}, which is not read as it could run any code.'
      )
    return _Call


def _array(value: Any) -> np.ndarray:
  """Makes an array from a pickled array or from a list of numbers."""
  if isinstance(value, list):
    return np.array([_array(v) if isinstance(v, _Call) else v for v in value])
  if value.state is None:  # A NumPy number.
    (dtype, content), shape, is_fortran = value.arguments, (), False
  else:
    _, shape, dtype, is_fortran, content = value.state
  (code, *_), (_, order, *_) = dtype.arguments, dtype.state
  if code == 'O8':
    return np.fromiter(content, object).reshape(shape)
  # `frombuffer` accepts no object dtype that NumPy makes from a text.
  array = np.frombuffer(content, f'{order}{code}')
  return array.reshape(shape, order='F' if is_fortran else 'C')


def _read(path: str, channels_first: bool) -> own_files.ClientExamples:
  """Reads the examples of a client's file."""
  with files.reading(path, "PFLlib's .npz file of a client"):
    with zipfile.ZipFile(path) as archive:
      file = io.BytesIO(archive.read('data.npy'))
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    data = _array(_Unpickler(file, path).load()).item()
    x, y = _array(data['x']), _array(data['y'])
    if x.dtype == object:  # Pairs of a text's padded tokens and their count.
      x = np.array(x[:, 0].tolist(), np.int32)
    elif channels_first and x.ndim == 4:
      x = np.moveaxis(x, 1, -1)
    if {x.dtype.kind, y.dtype.kind} - {*'biuf'}:
      raise ValueError(f'x of {x.dtype} and y of {y.dtype}, not of numbers')
  name = os.path.splitext(os.path.basename(path))[0]
  client = int(name) if name.isdecimal() else name
  return own_files.ClientExamples(path, client, x, y)


@fields.checked_call
def load_pfllib(
  data_dir: Optional[str] = None,
  *,
  channels_first: bool = True,
  regression: bool = False,
) -> arrays_lib.Arrays:
  """PFLlib's folder of train/0.npz, test/0.npz and so on, one per client.

  The partition is natural or any other.

  Args:
    data_dir: Folder with `train` and `test`.
    channels_first: True to convert inputs of four dimensions from `[n,
      channels, height, width]`, as PFLlib writes them, to `[n, height, width,
      channels]`.
    regression: True to predict labels as numbers even if all are whole.
  """
  parts = [
    [_read(path, channels_first) for path in paths]
    for paths in own_files.find_parts(data_dir, '*.npz', _CONTENTS)
  ]
  return own_files.join(data_dir, parts, name='pfllib', regression=regression)
