import collections
import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Optional, Union

import numpy as np
import pydantic
import pytest

import tff_pfl as pfl
from tests.methods import toy_problems
from tff_pfl import errors, fields

_MAX32 = 2**31 - 1


@pytest.mark.parametrize(
  'hint, values, refused',
  [
    (fields.Count, (1, _MAX32), {0: 'at least 1', 2**31: 'at most 2147483647'}),
    (fields.Count, (), {1.0: 'an integer', '1': 'an integer'}),
    (fields.Count, (), {True: 'an integer', 2**99: 'at most'}),
    (fields.CountOrZero, (0,), {-1: 'at least 0', None: 'an integer'}),
    (fields.Seed, (0, 2**63 - 1), {-1: 'at least 0', 2**63: 'at most 92233'}),
    (fields.integer(2, 5), (2, 5), {1: 'at least 2', 6: 'at most 5'}),
    (fields.Float, (-3.4e38, 0, 1.5), {1e39: 'at most', '1': 'a number'}),
    (fields.Positive, (1e-38, 5), {0: 'greater than 0', True: 'a number'}),
    (fields.NonNegative, (0, 2.5), {-1: 'at least 0', float('inf'): 'at most'}),
    (fields.Share, (0, 0.5, 1), {-0.1: 'at least 0', 1.1: 'at most 1'}),
    (fields.PositiveShare, (1,), {0: 'greater than 0', 1.1: 'at most 1'}),
    (fields.ShareBelowOne, (0,), {-0.1: 'at least 0', 1: 'less than 1'}),
    (fields.InnerShare, (0.5,), {0: 'greater than 0', 1: 'less than 1'}),
    (fields.InnerShare, (), {float('nan'): 'greater than 0'}),
    (fields.Words, ((), ('a', 'b')), {'ab': 'a list', (1,): 'a string'}),
    (fields.Counts, ((), (1, 2)), {5: 'of type Sequence', 'a': 'a list'}),
    (fields.Counts, (), {(1, 0): 'at least 1, found 0', (1.5,): 'an integer'}),
    (fields.one_of(('a', 'b')), ('a',), {'c': 'one of a, b', 5: 'a string'}),
    (Optional[fields.one_of({'a': 1})], ('a', None), {'c': 'one of a'}),
    (fields.checked(str, float), ('0.5',), {'x': None}),
    (bool, (True, False), {1: 'True or False', 'no': 'True or False'}),
    (Optional[fields.Count], (None, 3), {0: 'at least 1', 'a': 'an integer'}),
    (Literal[18, 34], (18,), {19: 'one of 18 or 34'}),
    (
      Annotated[fields.Count, pydantic.Field(multiple_of=2)],
      (4,),
      {3: 'a mul'},
    ),
    (
      fields.instance_of(errors.RunError),
      (errors.RunError('a'),),
      {5: 'of ty'},
    ),
    (Mapping[str, int], ({'a': 1},), {'a': 'a mapping', 5: 'a mapping'}),
  ],
)
def test_what_a_type_takes(hint, values, refused):
  cls = fields.dataclass(type('Options', (), {'__annotations__': {'x': hint}}))
  for value in values:
    assert cls(x=value).x == value
  for value, constraint in refused.items():
    with pytest.raises((ValueError, TypeError)) as error:
      cls(x=value)
    if constraint:
      assert str(error.value).startswith(f'Expected `x` to be {constraint}')
      assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'hint, value',
  [(fields.Count, 3), (fields.Float, 0.5), (fields.Counts, [1, 2])],
)
def test_numbers_of_numpy_become_pythons(hint, value):
  cls = fields.dataclass(type('Options', (), {'__annotations__': {'x': hint}}))
  kept = cls(x=np.array(value)).x
  assert (kept, type(kept)) == (value, type(value))
  if not isinstance(value, list):
    assert type(cls(x=np.array([value])[0]).x) is type(value)


@fields.dataclass
class _Local:
  """Local training.

  Attributes:
    num_epochs: Epochs of
      a round.
    optimizer: Its name, or an object.
  """

  num_epochs: fields.Count = 5
  limit: fields.NonNegative | None = None
  optimizer: Union[fields.one_of(('sgd', 'adam')), Callable[..., Any]] = 'sgd'


@fields.dataclass
class _Attack:
  kind: str = 'none'
  fraction: Annotated[fields.Share, fields.FlatName('attacked_fraction')] = 0.0


@fields.dataclass
class _Settings:
  local: _Local = _Local()
  attack: _Attack = _Attack()
  most: float = float('inf')
  metrics: fields.Words = ()


def test_fields_within_others_are_set_by_flat_names():
  settings = _Settings(num_epochs=2, attacked_fraction=0.5, metrics=['auc'])
  assert settings == _Settings(
    local=_Local(num_epochs=2), attack=_Attack(fraction=0.5), metrics=('auc',)
  )
  assert fields.get(settings, 'attacked_fraction') == 0.5
  assert fields.get(settings, 'most') == float('inf')
  # What is given whole is changed by what is given beside it.
  settings = _Settings(local=_Local(num_epochs=2, limit=1), num_epochs=3)
  assert settings.local == _Local(num_epochs=3, limit=1)
  with pytest.raises(dataclasses.FrozenInstanceError):
    settings.most = 3


@pytest.mark.parametrize(
  'values, error, message',
  [
    (dict(num_epochs=0), ValueError, '`num_epochs` to be at least 1, found 0'),
    (
      dict(attacked_fraction=2),
      ValueError,
      '`attacked_fraction` to be at m',
    ),
    (dict(local=5), TypeError, '`local` to be of type _Local, found 5'),
    (
      dict(num_epoch=3),
      TypeError,
      'no argument `num_epoch`. Did you mean num_',
    ),
    (
      dict(epochs=3),
      TypeError,
      'no argument `epochs`. Did you mean num_epochs',
    ),
    (dict(xyz=3), TypeError, 'no argument `xyz`.'),
    (
      dict(optimizer='sgdm'),
      (ValueError, TypeError),
      "`optimizer` to be one of sgd, adam or a function, found 'sgdm'",
    ),
  ],
)
def test_wrong_settings_are_one_line_errors(values, error, message):
  with pytest.raises(error) as caught:
    _Settings(**values)
  assert str(caught.value).startswith(f'Expected {message}')


def test_fields_are_given_by_place_or_name():
  @fields.dataclass
  class Options:
    size: fields.Count = 1
    rate: fields.Share = dataclasses.field(default=0.5, kw_only=True)
    most: fields.Count = 2

  assert Options(3, np.int64(4), rate=1) == Options(size=3, most=4, rate=1)
  with pytest.raises(ValueError, match='`most` to be at least 1, found 0'):
    Options(3, 0)
  with pytest.raises(TypeError, match='too many positional arguments'):
    Options(3, 4, 1)
  with pytest.raises(TypeError, match='Expected `size` once, found it twice'):
    Options(3, size=3)


def test_settings_are_stored_as_json():
  settings = _Settings(num_epochs=2, metrics=['auc'], most=3.5)
  for one in (settings, _Settings(), _Settings(limit=0.1)):
    stored = fields.to_json(one)
    assert fields.from_json(_Settings, stored) == one
  assert stored['local'] == {'num_epochs': 5, 'limit': 0.1, 'optimizer': 'sgd'}
  with pytest.raises(ValueError, match='found an object of type function'):
    fields.to_json(_Settings(optimizer=lambda: None))
  stored['local']['num_epochs'] = 0
  with pytest.raises(ValueError, match='`local.num_epochs` to be at least 1'):
    fields.from_json(_Settings, stored)


def test_texts_become_the_types_of_the_fields():
  assert fields.from_texts(_Local, {'num_epochs': '3', 'limit': '0.5'}) == (
    _Local(num_epochs=3, limit=0.5)
  )
  for name, constraint in (('num_epochs', 'an integer'), ('limit', 'a number')):
    with pytest.raises(ValueError, match=f"`{name}` to be {constraint}, .*'x'"):
      fields.from_texts(_Local, {name: 'x'})


def test_help_is_that_of_the_docstring():
  assert fields.help_text(_Local, 'num_epochs') == 'Epochs of a round.'
  with pytest.raises(ValueError, match='no documentation of limit'):
    fields.help_text(_Local, 'limit')


class _Protocol(typing.Protocol):
  pass


@fields.checked_call
def _function(
  model: pfl.SplitModel,
  *others: pfl.SplitModel,
  settings: Optional[Mapping[str, int]] = None,
  names: Sequence[str] = (),
  rule: Union[str, Callable[..., Any]] = 'none',
  like: 'typing.SupportsInt | _Protocol' = 3,
  size: int = 3,
  flag: bool = False,
  widths: fields.Counts = (),
  rate: Optional[fields.Share] = None,
):
  del like, flag
  return model, others, settings, names, rule, size, widths, rate


class _Lazy(collections.UserDict):
  def __iter__(self):
    raise AssertionError('read')


def test_a_call_takes_objects_as_they_are_and_numbers_of_its_fields():
  model, names, lazy = toy_problems.classifier(), np.array(['a']), _Lazy()
  kept = _function(model, 5, settings=lazy, names=names, size='many')
  assert kept[2] is lazy
  assert kept[3] is names
  assert kept == (model, (5,), lazy, names, 'none', 'many', (), None)
  kept = _function(model, widths=np.array([1, 2]), rate=np.float32(0.5))
  assert kept[-2:] == ([1, 2], 0.5)
  assert type(kept[-1]) is float
  hint = typing.get_type_hints(_function)['widths']
  assert hint == Sequence[int]


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      {'model': 5},
      '`model` to be of type SplitModel (from_keras makes one from a Keras '
      'model), found 5.',
    ),
    ({'settings': 'x'}, "`settings` to be of type Mapping, found 'x'."),
    ({'names': 5}, '`names` to be a list, found 5.'),
    ({'names': 'a'}, "`names` to be a list, found 'a'."),
    ({'flag': 1}, '`flag` to be True or False, found 1.'),
    ({'widths': [1, 0]}, '`widths` to be at least 1, found 0.'),
    ({'rate': 1.5}, '`rate` to be at most 1, found 1.5.'),
    ({'width': [1]}, 'no argument `width`. Did you mean widths?'),
  ],
)
def test_a_call_is_checked_by_the_hints(arguments, message):
  arguments = {'model': toy_problems.classifier(), **arguments}
  with pytest.raises((ValueError, TypeError)) as error:
    _function(**arguments)
  assert str(error.value) == f'Expected {message}'


def test_what_a_call_lacks_is_named():
  with pytest.raises(TypeError, match="missing a required argument: 'model'"):
    _function()
  own = fields.arguments_of(_function)
  assert own(rate=0.5).rate == 0.5
  with pytest.raises(TypeError, match='no argument `ratio`. Did you mean rate'):
    own(ratio=0.5)
