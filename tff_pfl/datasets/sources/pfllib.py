"""Folders of PFLlib: `train/0.npz`, `test/0.npz` and so on, one per client.

Source: J. Zhang et al., PFLlib: A Beginner-Friendly and Comprehensive
Personalized Federated Learning Library and Benchmark, JMLR 2025,
https://github.com/TsingZ0/PFLlib, whose `dataset/generate_*.py` write them.

A file has one array `data`, a pickled dict of `x` and `y`. As unpickling can
run any code, only NumPy's arrays and Python's own containers are unpickled.
"""

import io
import os
import pickle
from typing import Any, Optional

import numpy as np

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import own_files

_CONTENTS = "PFLlib's folder of a data set, with train/0.npz and test/0.npz"
# Names in pickles of arrays and of their elements, by NumPy 1 and 2.
_ADMITTED = {
  ('numpy', 'ndarray'),
  ('numpy', 'dtype'),
  *(
    (f'numpy.{core}.multiarray', name)
    for core in ('core', '_core')
    for name in ('_reconstruct', 'scalar')
  ),
}


class _ArraysOnly(pickle.Unpickler):
  """An unpickler of arrays and containers; `FileError` for anything else."""

  def __init__(self, file: io.BytesIO, path: str):
    super().__init__(file)
    self._path = path

  def find_class(self, module: str, name: str) -> Any:
    """Returns a class named in a pickle if it is harmless."""
    if (module, name) not in _ADMITTED:
      raise files.FileError(
        f'Expected `{self._path}` to hold arrays, dicts and lists only, found'
        f' {module}.{name}, which is not read as it could run any code.'
      )
    return super().find_class(module, name)


def _read(path: str, channels_first: bool) -> own_files.ClientExamples:
  """Reads the examples of a client's file."""

  def parse(content: bytes) -> Any:
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    data = _ArraysOnly(file, path).load().item()
    x, y = np.asarray(data['x']), np.asarray(data['y'])
    if x.dtype == object:  # Pairs of a text's padded tokens and their number.
      x = np.array(x[:, 0].tolist(), np.int32)
    elif channels_first and x.ndim == 4:
      x = np.moveaxis(x, 1, -1)
    return x, y

  client = os.path.splitext(os.path.basename(path))[0]
  return own_files.ClientExamples(
    path,
    int(client) if client.isdecimal() else client,
    *files.read_npz(path, ['data'], parse)['data'],
  )


def load_pfllib(
  data_dir: Optional[str] = None,
  *,
  channels_first: bool = True,
  regression: bool = False,
) -> arrays_lib.Arrays:
  """Loads the examples of PFLlib's clients.

  Args:
    data_dir: Folder with `train` and `test`.
    channels_first: True to convert inputs of four dimensions from `[n,
      channels, height, width]`, as PFLlib writes them, to `[n, height, width,
      channels]`.
    regression: True to predict labels as numbers also if all are whole.
  """
  parts = [
    [_read(path, channels_first) for path in paths]
    for paths in own_files.find_parts(data_dir, '*.npz', _CONTENTS)
  ]
  return own_files.join(data_dir, parts, name='pfllib', regression=regression)
