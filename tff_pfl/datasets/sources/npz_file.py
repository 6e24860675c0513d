"""One .npz file of one's own: examples, their clients, domains and weights.

`x` `[n, ...]` and `y` `[n, ...]` are inputs and labels (integers) or targets
(floats); `client` `[n]`, integers or strings, says whose example each is, and
`domain` `[n]`, integers from 0, of which domain; `weight` `[n]` are factors of
the losses in training. Test examples are `x_test`, `y_test`, `client_test` and
`domain_test`; without them, a part of each client's examples is held out.
"""

from collections.abc import Sequence
from typing import Optional

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import images, own_files

_OF_EACH = ('x', 'y', 'client', 'domain')
NAMES = (*_OF_EACH, 'weight', *(f'{name}_test' for name in _OF_EACH))


def read(
  path: str, flag: str, required: Sequence[str] = ('x', 'y')
) -> dict[str, np.ndarray]:
  """Returns the arrays of a file by name, all of `NAMES`.

  Args:
    flag: What messages call `path`.
    required: Arrays that must be there.

  Raises:
    ValueError: One of them is missing, or there is an array of another name.
  """
  arrays = files.read_npz(path)
  errors.expect(
    set(required) <= set(arrays),
    flag,
    f'an .npz file with arrays {" and ".join(required)}',
    f'{", ".join(arrays) or "none"} in {path}',
  )
  unknown = [name for name in arrays if name not in NAMES]
  errors.expect(
    not unknown,
    flag,
    f'an .npz file of the arrays {", ".join(NAMES)} only',
    f'{", ".join(unknown)} in {path}',
  )
  return arrays


def load_npz(
  data_dir: Optional[str] = None, *, scale: bool = True
) -> arrays_lib.Arrays:
  """Returns examples of one's own.

  Args:
    data_dir: The .npz file, or a folder with one.
    scale: Whether images of bytes become floats in [0, 1].
  """
  files.expect_given(data_dir, 'an .npz file with arrays x and y')
  path = files.find_file('npz', data_dir, ('*.npz',))
  arrays = read(path, 'data_dir')
  is_scaled = scale and images.are_bytes(arrays['x'])
  if arrays['x'].dtype == np.uint8 and scale and not is_scaled:
    logging.warning('%s: x, bytes but no images, is not scaled.', path)
  with own_files.naming(path):
    return arrays_lib.Arrays(
      name='npz',
      transform=images.to_unit_interval if is_scaled else None,
      **arrays,
    )
