"""A user's .npz file of examples, their clients, domains and weights.

`x` `[n, ...]` has inputs, and `y` `[n, ...]` labels (integers) or targets
(floats). Four arrays are optional:

* `record` `[n, columns]`: numbers in addition to images `x`. Together they are
  the inputs `image` and `record`.
* `client` `[n]`: integers or strings.
* `domain` `[n]`: integers starting at 0.
* `weight` `[n]`: factors of the training losses.

Test examples are `x_test`, `y_test`, `record_test`, `client_test` and
`domain_test`. Without them, a part of each client's examples is held out.
"""

from collections.abc import Sequence
from typing import Optional

import numpy as np
from absl import logging

from tff_pfl import errors, fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import images, own_files

_OF_EACH = ('x', 'y', 'record', 'client', 'domain')
NAMES = (*_OF_EACH, 'weight', *(f'{name}_test' for name in _OF_EACH))


def read(
  path: str, flag: str, required: Sequence[str] = ('x', 'y')
) -> dict[str, np.ndarray]:
  """Reads the arrays of a file.

  Args:
    path: The file.
    flag: Name of `path` in messages.
    required: Names of arrays that must be there.

  Returns:
    Arrays by name, with names from `NAMES`. Records are joined with their
    images to a dict `x` of `image` and `record`.
  """
  arrays = files.read_npz(path)
  errors.expect(
    set(required) <= set(arrays) <= set(NAMES),
    flag,
    f'an .npz file with arrays {" and ".join(required)}, and no others than'
    f' {", ".join(NAMES)}',
    f'{", ".join(arrays) or "none"} in {path}',
  )
  for name in ('record', 'record_test'):
    if name in arrays:
      x = name.replace('record', 'x')
      record = arrays.pop(name)
      errors.expect(
        x in arrays and record.ndim == 2 and record.dtype.kind in 'biuf',
        flag,
        f'an .npz file with numbers {name} (examples, columns) and with {x}',
        f'{record.dtype} of shape {record.shape} in {path}',
      )
      record = record.astype(np.float32, copy=False)
      arrays[x] = {'image': arrays[x], 'record': record}
  return arrays


@fields.checked_call
def load_npz(
  data_dir: Optional[str] = None, *, scale: bool = True
) -> arrays_lib.Arrays:
  """Any .npz file with arrays x and y.

  Optional arrays are client (partition natural or any other), record, domain,
  weight, and test arrays x_test and so on.

  Args:
    data_dir: The .npz file, or a folder with one.
    scale: True to convert images of bytes to floats in [0, 1].
  """
  path = files.find_file('npz', data_dir, ('*.npz',))
  arrays = read(path, 'data_dir')
  x = arrays['x']['image'] if isinstance(arrays['x'], dict) else arrays['x']
  are_images = x.dtype == np.uint8 and x.ndim in (3, 4)
  if x.dtype == np.uint8 and scale and not are_images:
    logging.warning('%s: x has bytes but no images and is not scaled.', path)
  with own_files.naming(path):
    return arrays_lib.Arrays(
      name='npz',
      transform=_scaled if scale and are_images else None,
      **arrays,
    )


def _scaled(x):
  if isinstance(x, dict):
    return {**x, 'image': images.to_unit_interval(x['image'])}
  return images.to_unit_interval(x)
