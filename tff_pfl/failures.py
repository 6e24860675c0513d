"""Errors that programs expect, and their reasons in one line."""

import grpc
import tensorflow as tf

from tff_pfl import errors

# Wrong settings and values, files, a failed run; and errors of TensorFlow and
# its workers, such as memory that ran out.
EXPECTED = (
  ValueError,
  TypeError,
  OSError,
  errors.RunError,
  grpc.RpcError,
  tf.errors.OpError,
)


def reason(error: Exception) -> str:
  """What is wrong, in one line.

  Args:
    error: Of one of the types `EXPECTED`.
  """
  text = str(error)
  if isinstance(error, grpc.RpcError):
    text = f'The runtime failed: {error.details()[:500]}'
  elif isinstance(error, tf.errors.OpError):
    text = f'The runtime failed: {error.message[:500]}'
  elif isinstance(error, OSError) and error.filename is not None:
    text = f'Cannot use {error.filename}: {errors.os_reason(error)}.'
  return ' '.join(text.split())
