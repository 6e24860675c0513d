import json

import pytest

from tff_pfl.comparisons import plan, trial
from tff_pfl.core import personalization
from tff_pfl.methods import registry
from tff_pfl.runs import run_config


def _base(**changes):
  return run_config.RunConfig(num_clients=6, cohort_size=3, **changes)


def _comparison(algorithms=('fed_avg', 'fed_rep'), **changes):
  return plan.Comparison(_base(num_rounds=7), algorithms, **changes)


def test_every_method_runs_with_every_seed():
  hparams = registry.get_algorithm('fed_avg').hparams(num_epochs=2)
  comparison = _comparison(
    hparams={'fed_avg': hparams},
    seeds=(3, 5),
    num_new_clients=2,
    fine_tune_variants=('all',),
  )
  trials = comparison.trials()
  assert [(t.name, t.config.algorithm, t.config.seed) for t in trials] == [
    ('fed_avg-seed3', 'fed_avg', 3),
    ('fed_rep-seed3', 'fed_rep', 3),
    ('fed_avg-seed5', 'fed_avg', 5),
    ('fed_rep-seed5', 'fed_rep', 5),
  ]
  for one in trials:
    default = registry.get_algorithm(one.config.algorithm).hparams()
    assert one.config.hparams == comparison.hparams.get(
      one.config.algorithm, default
    )
    assert one.config.num_rounds == 7
    assert one.num_new_clients == 2
    assert one.fine_tune_variants == ('all',)
    assert one.validation_fraction is None
  assert not comparison.tuning_trials()


@pytest.mark.parametrize(
  'grid, fed_avg, fed_rep',
  [
    (
      {'fed_avg': {'learning_rate': (0.1, 0.2), 'momentum': (0.0, 0.9)}},
      [
        {'learning_rate': 0.1, 'momentum': 0.0},
        {'learning_rate': 0.1, 'momentum': 0.9},
        {'learning_rate': 0.2, 'momentum': 0.0},
        {'learning_rate': 0.2, 'momentum': 0.9},
      ],
      [{}],
    ),
    (
      {'*': {'learning_rate': (0.1, 0.2)}},
      [{'learning_rate': 0.1}, {'learning_rate': 0.2}],
      # A name stands for all hyperparameters that end in it.
      [
        {'head_learning_rate': value, 'body_learning_rate': value}
        for value in (0.1, 0.2)
      ],
    ),
    (
      # What is said of a method goes before what is said of any.
      {
        'fed_avg': {'learning_rate': (0.5,)},
        '*': {'learning_rate': (0.1,), 'momentum': (0.0, 0.9)},
      },
      [
        {'momentum': 0.0, 'learning_rate': 0.5},
        {'momentum': 0.9, 'learning_rate': 0.5},
      ],
      [
        {
          'head_learning_rate': 0.1,
          'body_learning_rate': 0.1,
          'momentum': momentum,
        }
        for momentum in (0.0, 0.9)
      ],
    ),
  ],
  ids=['product', 'name_of_several', 'own_before_any'],
)
def test_points_of_a_grid(grid, fed_avg, fed_rep):
  comparison = _comparison(grid=grid)
  assert comparison.points('fed_avg') == fed_avg
  assert comparison.points('fed_rep') == fed_rep


def test_a_sweep_has_the_first_seed_and_a_part_of_the_training_data():
  comparison = _comparison(
    seeds=(4, 1),
    grid={'fed_avg': {'learning_rate': (0.1, 0.2)}},
    validation_fraction=0.25,
    tuning_rounds=3,
    num_new_clients=2,
    fine_tune_variants=('all',),
  )
  sweeps = comparison.tuning_trials()
  assert list(sweeps) == ['fed_avg']
  assert [t.name for t in sweeps['fed_avg']] == [
    'tune-fed_avg-learning_rate=0.1',
    'tune-fed_avg-learning_rate=0.2',
  ]
  for one, learning_rate in zip(sweeps['fed_avg'], (0.1, 0.2)):
    assert one.config.hparams.learning_rate == learning_rate
    assert one.config.seed == 4
    assert one.config.num_rounds == 3
    assert one.validation_fraction == 0.25
    # The same clients are trained, none but they are scored, in one way.
    assert one.num_new_clients == 2
    assert not one.fine_tune_variants


def test_the_runs_take_what_the_sweep_chose():
  comparison = _comparison(grid={'*': {'learning_rate': (0.1, 0.2)}})
  points = {name: comparison.points(name)[1] for name in comparison.algorithms}
  fed_avg, fed_rep = comparison.trials(points)
  assert fed_avg.config.hparams.learning_rate == 0.2
  assert fed_rep.config.hparams.head_learning_rate == 0.2
  assert fed_rep.config.hparams.body_learning_rate == 0.2
  # A method whose sweep found nothing is left out.
  (one,) = comparison.trials({**points, 'fed_avg': None})
  assert one.config.algorithm == 'fed_rep'
  # A grid of one value is taken without a sweep.
  comparison = _comparison(grid={'fed_avg': {'learning_rate': (0.3,)}})
  assert not comparison.tuning_trials()
  assert comparison.trials()[0].config.hparams.learning_rate == 0.3


def test_epochs_of_a_grid_take_the_place_of_steps():
  comparison = _comparison(
    ('fed_avg', 'per_fed_avg', 'fed_rep'),
    hparams={
      'fed_rep': registry.get_algorithm('fed_rep').hparams(num_head_steps=4)
    },
    grid={'*': {'num_epochs': (1,), 'num_head_epochs': (2,)}},
  )
  # Where there are no steps, nothing but what was written is said.
  assert comparison.points('fed_avg') == [{'num_epochs': 1}]
  fed_avg, per_fed_avg, fed_rep = (
    t.config.hparams for t in comparison.trials()
  )
  assert (fed_avg.num_epochs, fed_avg.num_steps) == (1, None)
  assert (per_fed_avg.num_epochs, per_fed_avg.num_steps) == (1, None)
  assert (fed_rep.num_head_epochs, fed_rep.num_head_steps) == (2, None)


def test_steps_in_a_grid_stay_beside_epochs():
  comparison = _comparison(
    ('fed_avg', 'per_fed_avg'),
    grid={'*': {'num_epochs': (1,)}, 'per_fed_avg': {'num_steps': (7,)}},
  )
  fed_avg, per_fed_avg = (t.config.hparams for t in comparison.trials())
  assert fed_avg.num_epochs == 1
  assert per_fed_avg.num_steps == 7


def test_a_trial_survives_json():
  wanted = trial.Trial(
    name='fed_rep-seed0',
    config=_base(
      hparams=registry.get_algorithm('fed_rep').hparams(num_head_epochs=3),
      personalization=personalization.Personalization(fine_tune='head'),
      model_arguments={'widths': [4]},
    ),
    fine_tune_variants=('none', 'all'),
    num_new_clients=3,
    validation_fraction=0.5,
  )
  settings = json.loads(json.dumps(wanted.settings()))
  assert trial.Trial.from_settings(settings) == wanted


@pytest.mark.parametrize(
  'changes,message',
  [
    ({'algorithms': ()}, '`algorithms`.*at least one'),
    ({'algorithms': ('fed_avg', 'fed_avg')}, '`algorithms`.*none twice'),
    ({'algorithms': ('fed_foo',)}, "'fed_foo'"),
    ({'seeds': ()}, '`seeds`'),
    ({'seeds': (1, 1)}, '`seeds`.*none twice'),
    ({'seeds': (-1,)}, '`seeds`.*at least 0'),
    ({'fine_tune_variants': ('method',)}, 'none, head, all'),
    ({'validation_fraction': 1.0}, r'`validation_fraction`.*in \(0, 1\)'),
    ({'grid': {'*': {'momentum': ()}}}, 'grid of momentum.*at least one'),
    ({'grid': {'*': {'momentum': (0.1, 0.1)}}}, 'none twice'),
    # The hyperparameters' own checks, before anything runs.
    ({'grid': {'fed_avg': {'learning_rate': (0.1, -1.0)}}}, 'learning_rate'),
    ({'grid': {'*': {'learning_rate': (-2.0, -1.0)}}}, 'learning_rate'),
  ],
)
def test_wrong_plans_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _comparison(**changes)


def test_a_value_for_all_that_a_method_refuses_is_not_tried_with_it():
  comparison = _comparison(
    grid={
      # FedRep's learning rates have other names.
      'fed_rep': {'momentum': (0.0, 0.5)},
      'fed_avg': {'num_epochs': (1, 2)},
      '*': {'learning_rate': (0.1, -1.0)},
    }
  )
  for algorithm, own in (('fed_avg', 'num_epochs'), ('fed_rep', 'momentum')):
    assert len(comparison.points(algorithm)) == 2
    refused = comparison.refused(algorithm)
    assert [point[own] for point, _ in refused] == list(
      comparison.grid[algorithm][own]
    )
    for point, reason in refused:
      assert -1.0 in point.values()
      assert 'learning_rate' in reason
  assert [len(trials) for trials in comparison.tuning_trials().values()] == [
    2,
    2,
  ]


def test_zero_in_a_grid_is_none_where_none_is_not_the_default():
  algorithms = ('fed_avg', 'per_fed_avg')
  grid = plan.parse_grid(
    ['batch_size=0,5', 'per_fed_avg.num_steps=0', 'momentum=0'], algorithms
  )
  assert grid == {
    '*': {'batch_size': (None, 5), 'momentum': (0.0,)},
    'per_fed_avg': {'num_steps': (None,)},
  }
  # To fed_avg 0 steps mean nothing.
  grid = plan.parse_grid(['num_steps=0'], algorithms)
  assert grid == {'*': {'num_steps': (0,)}}


def test_grids_are_read_in_the_types_of_the_hyperparameters():
  grid = plan.parse_grid(
    [
      'learning_rate=0.01,1',
      'fed_avg.num_steps=5,none',
      'fed_avg.optimizer=sgd,adam',
      'fed_dbe.personal_bias=False,true',
    ],
    ('fed_avg', 'fed_rep', 'fed_dbe'),
  )
  assert grid.pop('fed_dbe') == {'personal_bias': (False, True)}
  assert grid == {
    '*': {'learning_rate': (0.01, 1.0)},
    'fed_avg': {'num_steps': (5, None), 'optimizer': ('sgd', 'adam')},
  }
  assert isinstance(grid['*']['learning_rate'][1], float)
  assert plan.Comparison(
    _base(), ('fed_avg', 'fed_rep'), grid=grid
  ).tuning_trials()


@pytest.mark.parametrize(
  'text,message',
  [
    ('momentum=0 momentum=0.9', 'once for each name'),
    ('learning_rate', r'\[method.\]hyperparameter=value'),
    ('learning_rate=', r'\[method.\]hyperparameter=value'),
    ('=0.1', r'\[method.\]hyperparameter=value'),
    ('ditto.momentum=0.1', 'one of the methods fed_avg'),
    ('speed=0.1', "hyperparameters of fed_avg, found 'speed=0.1'"),
    ('learning_rate=fast', "floats, found 'learning_rate=fast'"),
    ('num_epochs=1.5', "ints, found 'num_epochs=1.5'"),
    ('num_epochs=none', 'ints'),
  ],
)
def test_grids_of_another_form_are_refused(text, message):
  with pytest.raises(ValueError, match=message):
    plan.parse_grid(text.split(), ('fed_avg',))


def test_points_that_differ_have_names_that_differ():
  grid = {'personal_learning_rate': (None, 0.1), 'optimizer': ('sgd', 'adam')}
  comparison = _comparison(('ditto',), grid={'ditto': grid})
  names = [t.name for t in comparison.tuning_trials()['ditto']]
  assert len(set(names)) == 4
  assert all('/' not in name for name in names)


def test_grid_of_what_only_methods_that_are_left_out_have_is_ignored():
  texts = ['num_epochs=1', 'num_body_epochs=2']
  assert plan.parse_grid(texts, ['fed_rep']) == {
    plan.ANY_METHOD: {'num_body_epochs': (2,)}
  }
  with pytest.raises(ValueError, match='`grid`'):
    plan.parse_grid(['num_epoch=1'], ['fed_rep'])
