"""Files of LEAF's JSON: `users`, `num_samples`, `user_data`.

Source: S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018,
https://github.com/TalwalkarLab/leaf, whose `preprocess.sh` writes them to
`data/train` and `data/test`; FedProx and others use the same form.

A user's data are `{"x": [...], "y": [...]}`. Inputs are numbers (FEMNIST,
synthetic), mostly flat lists, or texts of equal length with the next character
as label (Shakespeare), numbered as for the data set shakespeare.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import own_files, shakespeare

_CONTENTS = (
  "a folder of LEAF's .json files, itself or in train/ and test/, or one of"
  ' them'
)
_FORM = 'a JSON file with "users" and "user_data": {user: {"x": …, "y": …}}'


def _read(path: str) -> list[own_files.ClientExamples]:
  """Reads the examples of a file's users; leaves out users without any."""
  content = files.read_bytes(path)
  try:
    data = json.loads(content)
    users = [
      (user, data['user_data'][user]['x'], data['user_data'][user]['y'])
      for user in data['users']
    ]
  except (ValueError, LookupError, TypeError) as error:
    raise files.file_error(
      path, _FORM, f'another ({type(error).__name__}: {error})'
    ) from None
  return [
    own_files.ClientExamples(path, user, *_encoded(path, user, x, y))
    for user, x, y in users
    if y
  ]


def _encoded(
  path: str, user: str, x: Any, y: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a user's inputs and labels; texts as numbered characters."""
  try:
    inputs, labels = np.asarray(x), np.asarray(y)
  except ValueError:  # Unequal lengths.
    inputs = labels = np.empty(0, object)
  if inputs.dtype.kind == 'f':
    inputs = inputs.astype(np.float32)
  if inputs.dtype.kind == labels.dtype.kind == 'U' and inputs.ndim == 1:
    lengths = {*map(len, x)}, {*map(len, y)}
    if len(lengths[0]) == 1 and lengths[1] == {1}:
      codes = shakespeare.encode(''.join(x))
      return codes.reshape(len(x), -1), shakespeare.encode(''.join(y))
  if inputs.dtype.kind not in 'biuf':
    raise ValueError(
      f'Expected `{path}` to have inputs of numbers, or texts of equal length'
      f' with a character each, found others for user {user!r}.'
    )
  return inputs, labels


def load_leaf(
  data_dir: Optional[str] = None,
  *,
  image_shape: Sequence[int] = (),
  regression: bool = False,
) -> arrays_lib.Arrays:
  """Loads the examples of LEAF's users.

  Args:
    data_dir: Folder with `train` and `test`, folder of .json files, or one such
      file; without `test`, a part of each user's examples is held out.
    image_shape: Shape that flat inputs get, such as 28,28,1; empty for none.
    regression: True to predict labels as numbers also if all are whole.
  """
  parts = [
    [each for path in paths for each in _read(path)]
    for paths in own_files.find_parts(data_dir, '*.json', _CONTENTS)
  ]
  errors.expect(parts[0], 'data_dir', 'files with training examples', data_dir)
  fields: dict[str, Any] = {}
  x = parts[0][0].x
  if x.dtype == np.int32:  # Numbers of JSON have 64 bits.
    fields = dict(
      num_classes=shakespeare.NUM_CHARACTERS, num_overlapping=x.shape[1]
    )
  arrays = own_files.join(
    data_dir, parts, name='leaf', regression=regression, **fields
  )
  if not image_shape:
    return arrays
  errors.expect(
    np.prod(image_shape) == np.prod(x.shape[1:]),
    'image_shape',
    f'of as many numbers as the inputs, {x.shape[1:]}',
    tuple(image_shape),
  )
  images = {
    name: flat.reshape(-1, *image_shape)
    for name in ('x', 'x_test')
    if (flat := getattr(arrays, name)) is not None
  }
  return dataclasses.replace(arrays, **images)
