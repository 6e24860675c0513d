from collections.abc import Sequence
from typing import Optional, Union

import pytest
from absl import flags
from absl.testing import flagsaver

from binaries import argument_flags


def _lake(
  surface: int,
  *,
  depth: float = 2.5,
  seed: int = 0,
  islands: Sequence[int] = (),
  fish: Sequence[str] = (),
  ferries: Optional[Sequence[int]] = None,
):
  """A lake.

  Args:
    surface: Not a keyword argument.
    depth: In metres, which
      may be none.
    seed: Common to all.
    islands: Their sizes.
    fish: Their kinds.
    ferries: Their numbers, if any.
  """


def _river(
  *,
  depth: float = 1.0,
  name: str = 'Rhine',
  bends: Union[int, Sequence[int]] = 3,
  locks: Optional[int] = None,
  towns: Optional[Sequence[str]] = None,
  tidal: bool = False,
):
  """A river.

  Args:
    depth: Of the river.
    name: Of it.
    bends: One number, or each.
    locks: If any.
    towns: By their names.
    tidal: Whether it is.
  """


@pytest.fixture(name='given', scope='module')
def _given():
  water = argument_flags.ArgumentFlags(
    'water', {'lake': _lake, 'river': _river}, common=('seed',)
  )

  def given(of, *arguments):
    with flagsaver.flagsaver():
      for argument in arguments:
        name, value = argument.split('=')
        flags.FLAGS[f'water_{name}'].parse(value)
      return water.given(of)

  return given


def test_each_keyword_argument_has_a_flag_with_its_documentation(given):
  del given
  names = [name[6:] for name in flags.FLAGS if name.startswith('water_')]
  assert ' '.join(sorted(names)) == (
    'bends depth ferries fish islands locks name tidal towns'
  )
  assert flags.FLAGS['water_depth'].help == (
    'With --water=lake or river: In metres, which may be none. (default: lake '
    '2.5, river 1.0)'
  )
  assert flags.FLAGS['water_locks'].help == (
    'With --water=river: If any. (default: None)'
  )


@pytest.mark.parametrize(
  'arguments, expected',
  [
    ('lake', {}),
    (
      'river depth=3 name=Main locks=0',
      {'depth': 3.0, 'name': 'Main', 'locks': 0},
    ),
    ('lake islands=4', {'islands': [4]}),
    ('river bends=4', {'bends': 4}),
    ('river bends=4,5', {'bends': [4, 5]}),
    ('lake ferries=4', {'ferries': [4]}),
    ('lake bends=', {}),
    ('river towns=Basel,Bonn', {'towns': ['Basel', 'Bonn']}),
    ('lake fish=carp', {'fish': ['carp']}),
    ('river tidal=false', {'tidal': False}),
  ],
)
def test_only_what_is_given_is_passed_on_with_its_type(
  given, arguments, expected
):
  assert given(*arguments.split()) == expected


def test_what_should_be_integers_and_is_not_is_refused(given):
  with pytest.raises(ValueError, match='`--water_islands`.*integers.*small'):
    given('lake', 'islands=small')


def test_what_the_selected_function_does_not_take_is_refused(given):
  with pytest.raises(ValueError) as error:
    given('lake', 'depth=3', 'locks=0')
  assert str(error.value) == (
    'Expected no --water_locks: --water=lake does not take it, of such flags '
    'it takes --water_depth, --water_islands, --water_fish, --water_ferries.'
  )
