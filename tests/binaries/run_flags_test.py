import dataclasses
from collections.abc import Sequence
from typing import Optional, Union

import pytest
from absl import flags
from absl.testing import flagsaver

from binaries import made_flags, program, run_flags
from tests.binaries import tiny
from tff_pfl import errors, fields
from tff_pfl.core import personalization, process_options, training_options
from tff_pfl.runs import loop, settings, start


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
  towns: Optional[Sequence[fields.one_of({'Ulm': 1, 'Bonn': 2})]] = None,
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
  water = made_flags.ArgumentFlags(
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
    'With --water=lake or river: lake: In metres, which may be none. river: Of '
    'the river. (default: lake 2.5, river 1.0)'
  )
  assert flags.FLAGS['water_locks'].help == 'With --water=river: If any.'


@pytest.mark.parametrize(
  'arguments, expected',
  [
    ('lake', {}),
    (
      'river depth=3 name=Main locks=0',
      {'depth': 3.0, 'name': 'Main', 'locks': 0},
    ),
    ('river bends=4', {'bends': 4}),
    ('river bends=4,5', {'bends': [4, 5]}),
    ('lake ferries=4', {'ferries': [4]}),
    ('lake bends=', {}),
    ('lake fish=carp', {'fish': ['carp']}),
    ('river towns=Ulm,Bonn', {'towns': ['Ulm', 'Bonn']}),
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


def _refusal(text):
  """The line of a run with these flags, which fails before it is trained."""
  with flagsaver.flagsaver():
    flags.FLAGS(['train', *tiny.FLAGS, *text.split()])
    with pytest.raises(errors.EXPECTED) as error:
      config = run_flags.settings_from_flags(run_flags.selected_algorithm())
      data = config.load_data()
      config.build_process(config.build_model(data), data)
  return program.in_flags(errors.reason(error.value))


_ELEMENTS = '--algorithm=fed_split --fed_split_personal_elements'


@pytest.mark.parametrize(
  'given, named',
  [
    # Hyperparameters: of their dataclass, of a phase and of the model's layers.
    (
      '--fed_rep_num_head_steps=-1',
      '--fed_rep_num_head_steps to be at least 1, found -1.',
    ),
    ('--fed_rep_num_body_epochs=2000000000', '--fed_rep_num_body_epochs to be'),
    ('--batch_size=3000000000', '--batch_size to be at most 2147483647, '),
    (f'{_ELEMENTS}=:', '--fed_split_personal_elements to be names of layers'),
    ('--algorithm=fed_per --fed_per_local_depth=9', '--fed_per_local_depth to'),
    # Of the same name in two flags: the one that is wrong.
    *(
      (
        f'--fine_tune=all {wrong}=2 {right}=0.2',
        f'{wrong} to be less than 1, found 2.0',
      )
      for wrong, right in (
        ('--fed_rep_momentum', '--fine_tune_momentum'),
        ('--fine_tune_momentum', '--fed_rep_momentum'),
      )
    ),
    # Personalization.
    ('--fine_tune=all --fine_tune_num_steps=-1', '--fine_tune_num_steps to be'),
    (
      '--fine_tune=all --fine_tune_num_epochs=2 --fine_tune_num_steps=3',
      'no --fine_tune_num_epochs: --fine_tune_num_steps is 3, and steps are',
    ),
    ('--fine_tune_num_steps=5', 'no --fine_tune_num_steps: it is for --fine_'),
    ('--new_client_epochs=-1', '--new_client_epochs to be at least 0, '),
    # Arguments of models, datasets and aggregators.
    ('--model_widths=0', '--model_widths to be at least 1, found 0'),
    (
      '--model_padding=same',
      'no --model_padding: --model=mlp does not take it, of such flags it '
      'takes --model_widths, --model_activation, ',
    ),
    (
      '--dataset_classes=77',
      '--dataset_classes to be integers in [0, 10)',
    ),
    ('--data_dir=.', '--data_dir to be unset for the dataset'),
    ('--model=linear --model_widths=', '--model to be'),
    ('--class_weight=12:3', '--class_weight'),
    ('--aggregator=dp', '--dp_epsilon to be given, or else --dp_noise_mult'),
    ('--dp_epsilon=1', 'no --dp_epsilon: --aggregator=mean does not take it'),
    ('--aggregator=dp --dp_noise_multiplier=-1', '--dp_noise_multiplier to be'),
    ('--aggregator=dp --dp_epsilon=1 --dp_clip=-5', '--dp_clip to be fixed:'),
    # Parts of a text.
    (
      '--partition=shards:0',
      '`shards_per_client` in --partition to be at least 1, found',
    ),
    (
      '--partition=dirichlet:1:999',
      '--partition to give each of 6 clients at least 999 of 1437 training',
    ),
    (
      '--attack=sign_flip',
      '--attacked_fraction to be such that some of 6 clients attack',
    ),
    ('--attacked_fraction=0.3', '--attacked_fraction to be 0 without an'),
    ('--server_learning_rate=-1', '--server_learning_rate to be greater than'),
    # For all parts of a model that have a rate.
    ('--learning_rate=-1', '--learning_rate to be greater than 0, found -1.'),
  ],
)
def test_an_error_names_the_flag_that_gave_the_value(given, named):
  assert _refusal(given).startswith(f'Expected {named}')


@pytest.mark.parametrize(
  'owner',
  [
    settings.DataOptions,
    settings.ModelOptions,
    settings.Settings,
    process_options.ProcessOptions,
    training_options.TrainingOptions,
    personalization.Personalization,
    loop.RunOptions,
    start.Start,
  ],
)
def test_every_setting_has_a_help_text(owner):
  for field in dataclasses.fields(owner):
    assert fields.help_text(owner, field.name)
