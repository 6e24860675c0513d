"""Folders of PFLlib: `train/0.npz`, `test/0.npz` and so on, one per client.

Source: J. Zhang et al., PFLlib: A Beginner-Friendly and Comprehensive
Personalized Federated Learning Library and Benchmark, JMLR 2025,
https://github.com/TsingZ0/PFLlib, whose `dataset/generate_*.py` write them.

A file has one array `data`, a pickled dict of `x` and `y`. Unpickling can run
any code, and NumPy believes what a pickle says of an array's elements, pointers
included. So nothing is unpickled: the opcodes that NumPy writes are read as
data here, and an array is made only of as many bytes as its numbers need.
"""

import io
import itertools
import math
import os
import struct
from typing import Any, Optional

import numpy as np

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import own_files

_CONTENTS = "PFLlib's folder of a data set, with train/0.npz and test/0.npz"
# What NumPy 1 and 2 have a pickle call, for arrays and their elements.
_ADMITTED = {
  'numpy ndarray',
  'numpy dtype',
  *(
    f'numpy.{core}.multiarray {name}'
    for core in ('core', '_core')
    for name in ('_reconstruct', 'scalar')
  ),
}
_NUMBERS = set('b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8'.split())
# Opcodes of protocols up to 4, by how many bytes of a number follow, and where
# that is the length of a text or of bytes.
_WIDTHS = {
  **dict.fromkeys(b'K\x80qhC\x8a\x8c', 1),
  **{ord('M'): 2},
  **dict.fromkeys(b'JrjBX', 4),
  **dict.fromkeys(b'G\x95\x8d\x8e', 8),
}
_TEXTS = b'X\x8c\x8d'
_LENGTHS = b'CB\x8a\x8e' + _TEXTS
_CONSTANTS = {ord('N'): None, 0x88: True, 0x89: False, ord(')'): ()}


class _Call:
  """A call that a pickle asks for, and the state that it gives the result."""

  def __init__(self, name: str, arguments: tuple[Any, ...]):
    self.name = name
    self.arguments = arguments
    self.state: Any = None


def _unpickle(content: bytes, at: int, path: str) -> Any:
  """Returns what a pickle holds from byte `at` on; a `_Call` is not made.

  Time and memory are linear in the content. What is not in the form of NumPy's
  pickles raises an exception of any kind; `FileError` tells of other calls.
  """
  stack: list[Any] = []
  marks: list[int] = []
  memo: dict[int, Any] = {}

  def pop_marked():
    start = marks.pop()
    items = stack[start:]
    del stack[start:]
    return items

  while True:
    opcode = content[at]
    start = at + 1
    at = start + _WIDTHS.get(opcode, 0)
    # Little-endian, and of all but J not negative.
    number = int.from_bytes(content[start:at], 'little', signed=opcode == 0x4A)
    if opcode in b'KMJ':
      stack.append(number)
    elif opcode in _LENGTHS:
      start, at = at, at + number
      value: Any = content[start:at]
      if opcode in _TEXTS:
        value = value.decode()
      elif opcode == 0x8A:
        value = int.from_bytes(value, 'little', signed=True)
      stack.append(value)
    elif opcode == ord('G'):
      stack += struct.unpack('>d', content[start:at])
    elif opcode in _CONSTANTS:
      stack.append(_CONSTANTS[opcode])
    elif opcode == ord('('):
      marks.append(len(stack))
    elif opcode == 0x94:
      memo[len(memo)] = stack[-1]
    elif opcode in b'qr':
      memo[number] = stack[-1]
    elif opcode in b'hj':
      stack.append(memo[number])
    elif opcode in b']}':
      stack.append([] if opcode == ord(']') else {})
    elif opcode in b'ae':
      items = pop_marked() if opcode == ord('e') else [stack.pop()]
      stack[-1].extend(items)
    elif opcode in b'su':
      items = (
        pop_marked() if opcode == ord('u') else [stack.pop(-2), stack.pop()]
      )
      # Hashing tuples within tuples overflows the stack.
      stack[-1].update(zip(map(_text, items[::2]), items[1::2]))
    elif opcode in b't\x85\x86\x87':
      if opcode != ord('t'):
        marks.append(len(stack) - (opcode - 0x84))
      stack.append(tuple(pop_marked()))
    elif opcode in b'c\x93':
      if opcode == ord('c'):
        end = content.index(b'\n', content.index(b'\n', at) + 1)
        names = content[at:end].decode().split('\n')
        at = end + 1
      else:
        names = [stack.pop(-2), stack.pop()]
      name = ' '.join(names)
      if name not in _ADMITTED:
        raise files.FileError(
          f'Expected `{path}` to hold arrays, dicts and lists only, found'
          f' {".".join(names)!r}, which is not read as it could run any code.'
        )
      stack.append(name)
    elif opcode == ord('R'):
      arguments = stack.pop()
      stack.append(_Call(stack.pop().rpartition(' ')[-1], arguments))
    elif opcode == ord('b'):
      state = stack.pop()
      stack[-1].state = state
    elif opcode == ord('.'):
      return stack.pop()
    elif opcode not in b'\x80\x95':
      raise ValueError(f'the opcode {opcode:#x}')


def _text(value: Any) -> str:
  if type(value) is not str:
    raise ValueError('a key that is no text')
  return value


def _numbers(
  dtype: _Call, shape: Any, content: Any, is_fortran: Any = False
) -> np.ndarray:
  """Makes an array of numbers of a dtype's, a shape and bytes that fit."""
  (code, *_), (_, order, *_) = dtype.arguments, dtype.state
  if _text(code) not in _NUMBERS or order not in ('<', '>', '|', '='):
    raise ValueError('an array that is not of numbers')
  kind = np.dtype(order + code)
  if (
    len(shape) > 8
    or {*map(type, shape)} - {int}
    or type(content) is not bytes
    or math.prod(shape) * kind.itemsize != len(content)
  ):
    raise ValueError('an array whose bytes do not fit its shape')
  return np.ndarray(shape, kind, content, order='F' if is_fortran else 'C')


def _array(value: Any) -> np.ndarray:
  """Makes an array of what was pickled of one, or of a list of numbers."""
  if type(value) is list:
    for place, each in enumerate(value):
      if type(each) is _Call and each.name == 'scalar':
        dtype, content = each.arguments
        value[place] = _numbers(dtype, (), content)[()]
      elif type(each) not in (bool, int, float):
        raise ValueError('a list that is not of numbers')
    return np.array(value)
  _, shape, dtype, is_fortran, content = value.state
  if dtype.arguments[0] == 'O8':
    return np.fromiter(content, object).reshape(shape)
  return _numbers(dtype, shape, content, is_fortran)


def _read(path: str, channels_first: bool) -> own_files.ClientExamples:
  """Reads the examples of a client's file."""

  def parse(content: bytes) -> Any:
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    data = _array(_unpickle(content, file.tell(), path)).item()
    x, y = _array(data['x']), _array(data['y'])
    if x.dtype == object:  # Pairs of a text's padded tokens and their number.
      texts = x[:, 0].tolist()
      (length,) = {len(text) for text in texts}
      # One list could be every text.
      if {*map(type, texts)} != {list} or len(texts) * length > len(content):
        raise ValueError('texts that are no lists of tokens')
      tokens = itertools.chain.from_iterable(texts)
      x = np.fromiter(tokens, np.int32).reshape(len(texts), length)
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
