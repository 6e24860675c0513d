"""Settings as dataclasses whose fields pydantic checks.

    @fields.dataclass
    class NearGlobalHParams(pfl.LocalTrainingHParams):
      # The docstring's entry on a field is the help text of its flag.
      strength: fields.NonNegative = 0.1

An invalid value raises ``Expected `strength` to be at least 0, found -1.``.
NumPy numbers become Python numbers. Nested dataclasses accept flat names:
`Settings(num_rounds=3)` has `rounds=RunOptions(num_rounds=3)`. `checked_call`
checks the arguments of a function in the same way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import os
import re
import types
import typing
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypeVar, Union

import numpy as np
import pydantic
import pydantic.dataclasses
import pydantic_core

from tff_pfl import errors

CONFIG = pydantic.ConfigDict(
  strict=True,
  arbitrary_types_allowed=True,
  extra='forbid',
  ser_json_inf_nan='constants',
)
# Counts of rounds, epochs, steps and examples are int32 in TensorFlow.
_INT32_MAX = 2**31 - 1
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_Type = TypeVar('_Type', bound=type)
_Function = TypeVar('_Function', bound=Callable[..., Any])
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class FlatName(NamedTuple):
  """For a hint's `Annotated`: the field's name outside its own dataclass."""

  name: str


# Hashed by identity, because `words` may be a dict.
@dataclasses.dataclass(frozen=True, eq=False)
class OneOf:
  """For a hint's `Annotated`: the allowed strings."""

  words: Collection[str]


def where(holds: Callable[[Any], Any], constraint: Callable[[], str]) -> Any:
  """For a hint's `Annotated`: a condition on values, with its description."""

  def check(value):
    if not holds(value):
      raise pydantic_core.PydanticCustomError('where', constraint())
    return value

  return pydantic.AfterValidator(check)


def one_of(words: Collection[str], more: str = '') -> Any:
  """The hint for a string from a collection, which may grow later.

  Args:
    more: What errors say after the words.
  """
  is_one = where(words.__contains__, lambda: f'one of {", ".join(words)}{more}')
  return Annotated[str, is_one, OneOf(words)]


def checked(kind: type, check: Callable[[Any], Any]) -> Any:
  """The hint for values that `check` accepts without a `ValueError`."""

  def checked_value(value):
    check(value)
    return value

  return Annotated[kind, pydantic.AfterValidator(checked_value)]


_OF_NUMPY = (np.generic, np.ndarray)


def _python(value):
  return value.tolist() if isinstance(value, _OF_NUMPY) else value


def _plain(value):
  """Converts NumPy numbers to Python, also within lists and mappings."""
  if isinstance(value, Mapping):
    return {name: _plain(one) for name, one in value.items()}
  if isinstance(value, (list, tuple)):
    make = getattr(value, '_make', type(value))
    return make(map(_plain, value))
  return _python(value)


Arguments = Annotated[Mapping[str, Any], pydantic.BeforeValidator(_plain)]


def number(kind: type, **limits: Any) -> Any:
  """The hint for numbers of a type, with limits of `pydantic.Field`."""
  return Annotated[
    kind, pydantic.BeforeValidator(_python), pydantic.Field(**limits)
  ]


def integer(low: int, high: int = _INT32_MAX) -> Any:
  """The hint for an integer in `[low, high]`."""
  return number(int, ge=low, le=high)


Count = integer(1)
CountOrZero = integer(0)
# These take memory per unit, so their bounds exclude values that can only be
# mistakes.
Epochs = integer(0, 10**6)
Steps = integer(1, 10**7)
Size = integer(1, 10**4)
Seed = integer(0, 2**63 - 1)
Float = number(float, ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)
Positive = number(float, gt=0, le=_FLOAT32_MAX)
NonNegative = number(float, ge=0, le=_FLOAT32_MAX)
# Intervals: [0, 1], (0, 1], [0, 1) and (0, 1).
Share = number(float, ge=0, le=1)
PositiveShare = number(float, gt=0, le=1)
ShareBelowOne = number(float, ge=0, lt=1)
InnerShare = number(float, gt=0, lt=1)
Counts = Annotated[Sequence[Count], pydantic.BeforeValidator(_python)]
Path = Annotated[
  str,
  pydantic.BeforeValidator(
    lambda path: os.fspath(path) if isinstance(path, os.PathLike) else path
  ),
]
# Lists become tuples.
Words = Annotated[tuple[str, ...], pydantic.Field(strict=False)]
Integers = Annotated[tuple[int, ...], pydantic.Field(strict=False)]

# From the type of a pydantic error to the expected value.
_EXPECTED = {
  'bool_type': 'True or False',
  'callable_type': 'a function',
  'dataclass_exact_type': 'of type {class_name}',
  'dataclass_type': 'of type {class_name}',
  'dict_type': 'a mapping',
  'float_parsing': 'a number',
  'float_type': 'a number',
  'greater_than': 'greater than {gt}',
  'greater_than_equal': 'at least {ge}',
  'int_parsing': 'an integer',
  'int_type': 'an integer',
  'is_instance_of': 'of type {class}',
  'less_than': 'less than {lt}',
  'less_than_equal': 'at most {le}',
  'literal_error': 'one of {expected}',
  'mapping_type': 'a mapping',
  'multiple_of': 'a multiple of {multiple_of}',
  'none_required': 'None',
  'sequence_str': 'a list',
  'string_type': 'a string',
  'tuple_type': 'a list',
}
_WRONG_TYPES = {
  'callable_type',
  'dataclass_exact_type',
  'dataclass_type',
  'is_instance_of',
}
# From a class to the way to get an instance.
_MADE_BY = {
  'FederatedDataset': 'from_frame, from_arrays and load_dataset make one',
  'Model': 'of Keras 3, imported as keras',
  'Optimizer': 'of tff.learning.optimizers',
  'PersonalizedProcess': 'pfl.build makes one',
  'Runtime': 'create_runtime makes one',
  'SplitModel': 'from_keras makes one from a Keras model',
}


@contextlib.contextmanager
def one_line_errors(known: Collection[str] = ()) -> Iterator[None]:
  """Turns pydantic errors into one-line errors.

  Args:
    known: The valid arguments, for advice on a misspelled one.

  Raises:
    TypeError: For an unknown or missing argument, or an object of another
      class.
    ValueError: For any other error.
  """
  try:
    yield
  except pydantic.ValidationError as error:
    raise _in_one_line(error, known) from None


def _in_one_line(error, known):
  faults = error.errors(include_url=False)
  first = faults[0]
  path = [str(part) for part in first['loc']]
  name = '.'.join(part for part in path if part.isidentifier()) or 'value'
  for fault in faults:
    if fault['type'] == 'value_error':
      reason = fault['ctx']['error']
      if path:  # A field's own check raised it.
        text = re.sub(
          '^Expected `[^`]*` to', f'Expected `{path[0]}` to', str(reason)
        )
        reason.args = (text,)
      return reason
  if first['type'].startswith('unexpected'):
    return TypeError(unknown_name(path[-1], known))
  if first['type'].startswith('missing'):
    return TypeError(f'Expected `{name}` to be given.')
  # Each member of a union reports its own error.
  faults = [one for one in faults if one['loc'][:1] == first['loc'][:1]]
  if len(faults) > 1:
    name = path[0]
  expected = map(_expected, faults)
  kind = ValueError
  if any(one['type'] in _WRONG_TYPES for one in faults):
    kind = TypeError
  expected = ' or '.join(dict.fromkeys(expected)).replace("'", '')
  return kind(errors.message(name, expected, first['input']))


def _expected(fault):
  context = {
    name: f'{value:g}' if isinstance(value, float) else value
    for name, value in fault.get('ctx', {}).items()
  }
  text = _EXPECTED.get(fault['type'], fault['msg']).format(**context)
  advice = _MADE_BY.get(context.get('class'))
  return f'{text} ({advice})' if advice else text


def unknown_name(name: str, known: Collection[str]) -> str:
  """The error message for an unknown argument."""
  ending = [other for other in known if other.endswith(f'_{name}')]
  near = ending or difflib.get_close_matches(name, known)
  advice = f' Did you mean {" or ".join(near)}?' if near else ''
  return f'Expected no argument `{name}`.{advice}'


@typing.dataclass_transform(frozen_default=True)
def dataclass(cls: Optional[_Type] = None, **options: Any) -> Any:
  """Makes a frozen dataclass whose fields pydantic checks.

  Args:
    **options: Options of `dataclasses.dataclass`.
  """
  if cls is None:
    return functools.partial(dataclass, **options)
  cls = pydantic.dataclasses.dataclass(
    cls, frozen=True, config=CONFIG, **options
  )
  initialize = cls.__init__
  signature = inspect.signature(cls)

  @functools.wraps(initialize)
  def checked(self, *args, **kwargs):
    names = flat_names(cls)
    # Errors also name positional arguments.
    by_place = signature.bind_partial(*args).arguments
    for name in by_place.keys() & kwargs.keys():
      raise TypeError(f'Expected `{name}` once, found it twice.')
    kwargs = {**by_place, **kwargs}
    for name, value in kwargs.items():
      if isinstance(value, np.generic):
        kwargs[name] = value.item()
    kwargs = cls.arranged(kwargs) if hasattr(cls, 'arranged') else kwargs
    nested = _nested(cls, names, kwargs)
    with one_line_errors(names):
      initialize(self, **nested)

  cls.__init__ = checked
  return cls


def checked_call(function: _Function) -> _Function:
  """Makes pydantic check a function's arguments against their hints.

  Arguments with a hint of this module are checked in full, and their NumPy
  numbers become Python numbers. For other hints, only the class is
  checked, and numbers and strings are not checked at all. These arguments are
  never read or copied.
  """
  signature = inspect.signature(function)
  parameters = signature.parameters
  takes_any = any(one.kind is _VARIABLE[1] for one in parameters.values())

  @functools.wraps(function)
  def checked(*args, **kwargs):
    for name in () if takes_any else kwargs:
      if name not in parameters:
        raise TypeError(unknown_name(name, parameters))
    bound = signature.bind(*args, **kwargs)
    own = arguments_of(function)
    names = [name for name in bound.arguments if name in own.__annotations__]
    values = own(**{name: bound.arguments[name] for name in names})
    bound.arguments.update({name: getattr(values, name) for name in names})
    return function(*bound.args, **bound.kwargs)

  return checked


@functools.cache
def arguments_of(function: Callable[..., Any]) -> type:
  """A dataclass whose fields are a function's arguments, None by default."""
  checked_hints = {
    name: _of_call(hints(function)[name])
    for name, parameter in inspect.signature(function).parameters.items()
    if name in hints(function) and parameter.kind not in _VARIABLE
  }
  fields = {'__annotations__': checked_hints, **dict.fromkeys(checked_hints)}
  return dataclass(type(function.__name__, (), fields))


def _of_call(hint):
  """The hint that checks an argument of a call."""
  if is_union(hint):
    return Union[tuple(map(_of_call, typing.get_args(hint)))]
  kind = typing.get_origin(hint) or hint
  if _is_declared(hint) or kind in (bool, types.NoneType):
    return hint
  if kind in (Iterable, Sequence, list, tuple):
    # NumPy arrays are not Python sequences.
    kind = Iterable if kind is Iterable else Collection
    is_list = where(
      lambda value: isinstance(value, kind) and not isinstance(value, str),
      lambda: 'a list',
    )
    return Annotated[Any, is_list]
  try:
    isinstance(None, kind)
  except TypeError:  # Any, or a `Protocol`, for example.
    return Any
  return Any if kind in (int, float, str, np.ndarray) else instance_of(kind)


def _is_declared(hint):
  return typing.get_origin(hint) in (Annotated, Literal) or any(
    map(_is_declared, typing.get_args(hint))
  )


def instance_of(kind: type) -> Any:
  """The hint for an instance of a class, which stays as it is."""
  schema = pydantic_core.core_schema.is_instance_schema(kind)
  return Annotated[Any, pydantic.GetPydanticSchema(lambda *_: schema)]


def _inner(hint):
  """The dataclass of a hint, or None for any other hint."""
  hint = _bare(hint)
  return hint if dataclasses.is_dataclass(hint) else None


def _bare(hint):
  """A hint without the metadata of `Annotated`."""
  is_annotated = typing.get_origin(hint) is Annotated
  return typing.get_args(hint)[0] if is_annotated else hint


@functools.cache
def hints(cls: type) -> dict[str, Any]:
  """The hints of a dataclass's fields, or of a function's arguments."""
  return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def flat_names(cls: type) -> dict[str, tuple[str, ...]]:
  """Maps the flat names of fields, including nested ones, to their paths."""
  names = {}
  for field in dataclasses.fields(cls):
    hint = hints(cls)[field.name]
    inner = _inner(hint)
    name = field.name
    for one in getattr(hint, '__metadata__', ()):
      name = one.name if isinstance(one, FlatName) else name
    names[name] = (field.name,)
    if inner is not None:
      for name, path in flat_names(inner).items():
        names[name] = (field.name, *path)
  return names


def _nested(cls, names, values):
  """Groups values by a dataclass's own fields, from flat names."""
  own, flat, by_field = {}, {}, {}
  for name, value in values.items():
    inner = _inner(hints(cls).get(name))
    path = names.get(name, (name,))
    if len(path) > 1 and not isinstance(value, inner or ()):
      by_field.setdefault(path[0], {})[name] = value
    elif path == (name,) or len(path) > 1:
      own[name] = value
    else:
      flat[path[0]] = value
  own |= flat
  for field, changes in by_field.items():
    before = own[field] if field in own else getattr(cls, field)
    # Errors use the flat names, as the caller does.
    flat_name = {names[name][-1]: f'`{name}`' for name in changes}
    with errors.naming(flat_name):
      own[field] = dataclasses.replace(before, **changes)
  return own


def get(options: Any, name: str) -> Any:
  """The value of a field by its flat name."""
  for part in flat_names(type(options))[name]:
    options = getattr(options, part)
  return options


def default(cls: type, name: str) -> Any:
  """The default of a field by its flat name."""
  *path, last = flat_names(cls)[name]
  for part in path:
    cls = _inner(hints(cls)[part])
  field = cls.__dataclass_fields__[last]
  if field.default is dataclasses.MISSING:
    return field.default_factory()
  return field.default


def is_optional(hint: Any) -> bool:
  """True if a hint allows None."""
  return type(None) in typing.get_args(_bare(hint))


def is_union(hint: Any) -> bool:
  """True for a union of types."""
  return typing.get_origin(hint) in (Union, types.UnionType)


def registered(
  kind: str,
  function: _Function,
  of_library: Collection[str],
  *first: str,
  common: Collection[str] = (),
) -> _Function:
  """Checks the name and the signature of a function that users register.

  Args:
    kind: What errors call the function.
    of_library: Names that the function may not have.
    *first: Names of the arguments before the function's own ones, which are
      keyword-only.
    common: Keyword-only arguments that need no type.
  """
  errors.expect(
    function.__name__ not in of_library,
    kind,
    f"a function with another name than the library's {kind}s",
    function.__name__,
  )
  own = errors.own_arguments(function)
  names = [*inspect.signature(function).parameters]
  errors.expect(
    names == [*first, *own],
    kind,
    f'a function ({", ".join([*first, "*", "own arguments"])})',
    f'{function.__name__}({", ".join(names)})',
  )
  for argument in own:
    errors.expect(
      argument in common or argument in hints(function),
      kind,
      f'a function with a type for its argument {argument}, such as'
      f' `{argument}: int = 1`',
      function.__name__,
    )
  return checked_call(function)


def help_text(owner: Callable[..., Any], name: str) -> str:
  """The docstring's description of a name, in one line.

  Args:
    owner: A function or a dataclass. The docstrings of its bases also count.
    name: An argument or a field.
  """
  for cls in inspect.getmro(owner) if inspect.isclass(owner) else (owner,):
    match = re.search(
      rf'^  {name}: (.*(?:\n    .*)*)',
      inspect.cleandoc(cls.__doc__ or ''),
      re.M,
    )
    if match:
      return ' '.join(match[1].split())
  raise ValueError(f'{owner.__name__} has no documentation of {name}.')


def none_for_zero(cls: type) -> list[str]:
  """The fields for which 0 means None when they are read from text.

  These fields may be None but have another default. An example is the batch
  size, for which None means the full batch.
  """
  return [
    field.name
    for field in dataclasses.fields(cls)
    if is_optional(hints(cls)[field.name]) and field.default is not None
  ]


def to_json(options: Any) -> Any:
  """A dataclass as JSON types, for `from_json`.

  Raises:
    ValueError: If a field has an object that JSON cannot represent.
  """
  objects = []
  text = pydantic_core.to_json(
    options, inf_nan_mode='constants', fallback=objects.append
  )
  if objects:
    raise ValueError(
      'Expected settings that can be stored as JSON, names in place of objects,'
      f' found an object of type {type(objects[0]).__name__}: give it to '
      '`pfl.build`, and its process to `pfl.run`.'
    )
  return json.loads(text)


def from_texts(cls: type, texts: Mapping[str, str]) -> Any:
  """Makes a dataclass from texts of its fields' values, by name."""
  with one_line_errors():
    return _adapter(cls).validate_python(texts, strict=False)


def from_json(cls: type, value: Any) -> Any:
  """Restores a dataclass from the result of `to_json`."""
  with one_line_errors():
    return _adapter(cls).validate_json(json.dumps(value))


@functools.cache
def _adapter(cls):
  return pydantic.TypeAdapter(cls)
