"""Environment variables that TensorFlow and XLA read when they start.

XLA reads them when it first compiles, TensorFlow when it first looks for GPUs.
Values that are already set stay unchanged.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping

_XLA_FLAGS = {
  # XLA orders the parts of a program for several cores. On a client's single
  # core, that order makes rounds of small models 1.4 to 1.6 times as long.
  'xla_cpu_enable_concurrency_optimized_scheduler': 'false',
  # Makes a whole loop one CUDA graph, in which the GPU decides about the next
  # step. Otherwise it waits for the host after each step.
  'xla_gpu_enable_command_buffer': 'FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,'
  'CONDITIONAL,WHILE',
  'xla_gpu_graph_min_graph_size': '1',
}
# Otherwise the first program on a GPU takes all of its memory.
_VARIABLES = {'TF_FORCE_GPU_ALLOW_GROWTH': 'true'}


def set_defaults() -> None:
  """Sets the variables for clients that train side by side.

  Raises:
    ValueError: If `XLA_FLAGS` names no file of flags.
  """
  given = os.environ.get('XLA_FLAGS', '').strip()
  if given and not given.startswith('-'):
    # XLA would take the added flags for a part of the file's name.
    try:
      given = pathlib.Path(given).read_text('utf-8')
    except OSError as error:
      raise ValueError(
        f'Expected `XLA_FLAGS` to be flags or a file of flags, found {given!r}.'
      ) from error
  flags = given.split()
  names = {flag.partition('=')[0] for flag in flags}
  flags += [
    f'--{name}={value}'
    for name, value in _XLA_FLAGS.items()
    if f'--{name}' not in names
  ]
  os.environ['XLA_FLAGS'] = ' '.join(flags)
  for name, value in _VARIABLES.items():
    os.environ.setdefault(name, value)


@contextlib.contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
  """Changes environment variables in a block."""
  previous = {name: os.environ.get(name) for name in variables}
  os.environ.update(variables)
  try:
    yield
  finally:
    for name, value in previous.items():
      del os.environ[name]
      if value is not None:
        os.environ[name] = value
