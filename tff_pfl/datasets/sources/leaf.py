"""LEAF's JSON files with `users`, `num_samples` and `user_data`.

Source: S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018,
https://github.com/TalwalkarLab/leaf, whose `preprocess.sh` writes them to
`data/train` and `data/test`. FedProx and others use the same form.

A user's data are `{"x": [...], "y": [...]}`. Inputs are numbers (FEMNIST,
synthetic), mostly flat lists, or texts of equal length with the next character
as label (Shakespeare), numbered as in the dataset shakespeare.
"""

import dataclasses
import json
from typing import Any, Optional

import numpy as np

from tff_pfl import errors, fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import own_files, shakespeare

_CONTENTS = (
  "a folder of LEAF's .json files, itself or in train/ and test/, or one of"
  ' them'
)
_FORM = 'a JSON file with "users" and "user_data": {user: {"x": …, "y": …}}'


def _read(path: str) -> list[own_files.ClientExamples]:
  """Reads the examples of a file's users and leaves out users without any."""
  with files.reading(path, _FORM):
    data = json.loads(files.read_bytes(path))
    users = [(user, data['user_data'][user]) for user in data['users']]
    return [
      own_files.ClientExamples(path, user, *_arrays(user, of['x'], of['y']))
      for user, of in users
      if of['y']
    ]


def _arrays(user: str, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
  """Returns a user's inputs and labels, with texts as character numbers."""
  try:
    inputs, labels = np.asarray(x), np.asarray(y)
  except ValueError:  # Unequal lengths.
    inputs = labels = np.empty(0, object)
  if inputs.dtype.kind == labels.dtype.kind == 'U' and inputs.ndim == 1:
    if len({*map(len, x)}) == 1 and {*map(len, y)} == {1}:
      codes = shakespeare.encode(''.join(x))
      return codes.reshape(len(x), -1), shakespeare.encode(''.join(y))
  if inputs.dtype.kind not in 'biuf':
    raise ValueError(
      f'user {user!r} has inputs that are neither numbers nor texts of equal'
      ' length, each with one character as its label'
    )
  if inputs.dtype.kind == 'f':
    inputs = inputs.astype(np.float32)
  return inputs, labels


@fields.checked_call
def load_leaf(
  data_dir: Optional[str] = None,
  *,
  image_shape: fields.Counts = (),
  regression: bool = False,
) -> arrays_lib.Arrays:
  """LEAF's .json files of users, with numbers or with texts like shakespeare.

  The partition is natural or any other.

  Args:
    data_dir: Folder with `train` and `test`, folder of .json files, or one such
      file. Without `test`, which texts need, a part of each user's examples is
      held out.
    image_shape: Shape that flat inputs get, such as 28,28,1. Empty leaves them
      flat.
    regression: True to predict labels as numbers even if all are whole.
  """
  parts = [
    [user for path in paths for user in _read(path)]
    for paths in own_files.find_parts(data_dir, '*.json', _CONTENTS)
  ]
  arrays = own_files.join(data_dir, parts, name='leaf', regression=regression)
  changes: dict[str, Any] = {}
  if arrays.x.dtype == np.int32:  # Texts, as numbers of JSON have 64 bits.
    errors.expect(
      arrays.x_test is not None,
      'data_dir',
      'a folder with train/ and test/ for texts, because test examples drawn at'
      ' random would overlap with training examples',
      data_dir,
    )
    changes.update(
      num_classes=shakespeare.NUM_CHARACTERS, num_overlapping=arrays.x.shape[1]
    )
  elif image_shape:
    shape = arrays.x.shape[1:]
    errors.expect(
      np.prod(image_shape) == np.prod(shape),
      'image_shape',
      f'of as many numbers as the inputs, {shape}',
      tuple(image_shape),
    )
    for name in ('x', 'x_test'):
      if (flat := getattr(arrays, name)) is not None:
        changes[name] = flat.reshape(-1, *image_shape)
  return dataclasses.replace(arrays, **changes)
