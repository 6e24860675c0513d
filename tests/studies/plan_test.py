import pytest

from tff_pfl.comparisons import plan
from tff_pfl.methods import registry
from tff_pfl.runs import settings

_RATES = plan.Range(1e-3, 1.0, log=True)


def _base(**changes):
  return settings.Settings(num_clients=6, cohort_size=3, **changes)


def _comparison(methods=('fed_avg', 'fed_rep'), **changes):
  return plan.Comparison(_base(num_rounds=7), methods, **changes)


def _hparams(comparison):
  """Those of the first seed's trials, by method."""
  return {t.config.algorithm: t.config.method for t in comparison.trials()}


def test_every_method_runs_with_every_seed():
  hparams = registry.get_algorithm('fed_avg').hparams(num_epochs=2)
  comparison = _comparison(
    (hparams, 'fed_rep'),
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
    of_method = {'fed_avg': hparams, 'fed_rep': _base().method}
    assert one.config.method == of_method[one.config.algorithm]
    assert one.config.rounds.num_rounds == 7
    assert one.num_new_clients == 2
    assert one.fine_tune_variants == ('all',)
    assert one.validation_fraction is None
  assert not any(map(comparison.is_tuned, comparison.algorithms))


def test_every_method_runs_in_every_fold():
  comparison = _comparison(('fed_avg',), seeds=(3,), num_folds=2)
  assert [(t.name, t.config.seed, t.fold) for t in comparison.trials()] == [
    ('fed_avg-seed3-fold0of2', 3, (0, 2)),
    ('fed_avg-seed3-fold1of2', 3, (1, 2)),
  ]
  # A sweep reads the training examples of the first.
  assert comparison.tuning_trial('fed_avg', {}).fold == (0, 2)


@pytest.mark.parametrize(
  'texts, fed_avg, fed_rep',
  [
    (
      'fed_avg.learning_rate=0.1,0.2 fed_avg.momentum=0,0.9',
      'learning_rate=0.1-momentum=0.0 learning_rate=0.1-momentum=0.9 '
      'learning_rate=0.2-momentum=0.0 learning_rate=0.2-momentum=0.9',
      '',
    ),
    (
      # A name stands for all hyperparameters that end in it.
      'learning_rate=0.1,0.2',
      'learning_rate=0.1 learning_rate=0.2',
      'head_learning_rate=0.1-body_learning_rate=0.1 '
      'head_learning_rate=0.2-body_learning_rate=0.2',
    ),
    (
      # What is said of a method goes before what is said of any.
      'fed_avg.learning_rate=0.5 learning_rate=0.1 momentum=0,0.9',
      'momentum=0.0-learning_rate=0.5 momentum=0.9-learning_rate=0.5',
      'head_learning_rate=0.1-body_learning_rate=0.1-momentum=0.0 '
      'head_learning_rate=0.1-body_learning_rate=0.1-momentum=0.9',
    ),
    (
      # A value for all that a method refuses is not tried with it.
      'fed_avg.num_epochs=1,2 learning_rate=0.1,-1',
      'learning_rate=0.1-num_epochs=1 learning_rate=0.1-num_epochs=2',
      'head_learning_rate=0.1-body_learning_rate=0.1',
    ),
  ],
  ids=['product', 'name_of_several', 'own_before_any', 'refused'],
)
def test_points_of_a_grid(texts, fed_avg, fed_rep):
  algorithms = ('fed_avg', 'fed_rep')
  comparison = _comparison(grid=plan.parse_grid(texts.split(), algorithms))
  for algorithm, expected in zip(algorithms, (fed_avg, fed_rep)):
    names = [
      comparison.tuning_trial(algorithm, point).name
      for point in comparison.points(algorithm)
    ]
    start = f'tune-{algorithm}-'
    assert names == [start + name for name in expected.split(' ')]


def test_a_sweep_has_the_first_seed_and_a_part_of_the_training_data():
  comparison = _comparison(
    ('fed_avg', 'fed_rep', 'ditto'),
    seeds=(4, 1),
    grid={'fed_avg': {'learning_rate': (0.1, 0.2)}},
    validation_fraction=0.25,
    tuning_rounds=3,
    num_new_clients=2,
    fine_tune_variants=('all',),
  )
  assert comparison.is_tuned('fed_avg')
  assert not comparison.is_tuned('fed_rep')
  one = comparison.tuning_trial('fed_avg', {'learning_rate': 0.2})
  assert one.name == 'tune-fed_avg-learning_rate=0.2'
  assert one.config.method.learning_rate == 0.2
  assert (one.config.seed, one.config.rounds.num_rounds) == (4, 3)
  assert one.validation_fraction == 0.25
  # The same clients are trained, none but they are scored, in one way.
  assert one.num_new_clients == 2
  assert not one.fine_tune_variants
  # Points that differ have names that differ.
  names = {
    comparison.tuning_trial('ditto', {'personal_learning_rate': rate}).name
    for rate in (None, 0.1, 0.2)
  }
  assert len(names) == 3


def test_the_runs_take_what_the_sweep_chose():
  comparison = _comparison(grid={'*': {'learning_rate': (0.1, 0.2)}})
  points = {name: comparison.points(name)[1] for name in comparison.algorithms}
  fed_avg, fed_rep = comparison.trials(points)
  assert fed_avg.config.method.learning_rate == 0.2
  assert fed_rep.config.method.head_learning_rate == 0.2
  # A method whose sweep found nothing is left out.
  (one,) = comparison.trials({**points, 'fed_avg': None})
  assert one.config.algorithm == 'fed_rep'
  # A grid of one value is taken without a sweep.
  comparison = _comparison(grid={'fed_avg': {'learning_rate': (0.3,)}})
  assert not comparison.is_tuned('fed_avg')
  assert _hparams(comparison)['fed_avg'].learning_rate == 0.3


def test_epochs_of_a_grid_take_the_place_of_steps():
  fed_rep = registry.get_algorithm('fed_rep').hparams(num_head_steps=4)
  methods = ('fed_avg', 'per_fed_avg', fed_rep)
  comparison = _comparison(
    methods,
    grid={'*': {'num_epochs': (1,), 'num_head_epochs': (2,)}},
  )
  # Where there are no steps, nothing but what was written is said.
  assert comparison.points('fed_avg') == [{'num_epochs': 1}]
  found = _hparams(comparison)
  for name in ('fed_avg', 'per_fed_avg'):
    assert (found[name].num_epochs, found[name].num_steps) == (1, None)
  fed_rep = found['fed_rep']
  assert (fed_rep.num_head_epochs, fed_rep.num_head_steps) == (2, None)
  # Those that the grid has stay.
  grid = {'*': {'num_epochs': (1,)}, 'per_fed_avg': {'num_steps': (7,)}}
  found = _hparams(_comparison(methods, grid=grid))
  assert found['fed_avg'].num_epochs == 1
  assert found['per_fed_avg'].num_steps == 7


@pytest.mark.parametrize(
  'changes,message',
  [
    ({'methods': ()}, '`methods`.*at least one'),
    ({'methods': ('fed_foo',)}, "'fed_foo'"),
    (
      {'methods': ('ditto', registry.get_algorithm('ditto').hparams())},
      '`methods`.*none twice',
    ),
    ({'seeds': (1, 1)}, '`seeds`.*none twice'),
    ({'fine_tune_variants': ('method',)}, 'none, head, all, trained'),
    ({'num_folds': 1}, '`num_folds` to be at least 2'),
    ({'base': 5}, '`base` to be of type Settings, found 5'),
    ({'methods': 'fed_avg'}, "`methods` to be a list.*'fed_avg'"),
    ({'methods': (1,)}, '`method` to be hyperparameters of a method, found 1'),
    ({'num_search_trials': 0}, '`num_search_trials` to be at least 1'),
    (
      {'grid': {'*': {'learning_rate': _RATES}}},
      '`num_search_trials` to be given for learning_rate, a range',
    ),
    ({'num_new_clients': -3}, '`num_new_clients` to be at least 0'),
    (
      {'grid': {'fed_avg': {'learning_rat': (0.1,)}}},
      "found 'fed_avg.learning_rat'",
    ),
    ({'grid': {'*': {'num_clusters': (2,)}}}, "found '.*num_clusters'"),
    ({'grid': {'ditto': {'momentum': (0.1,)}}}, "fed_rep, found 'ditto.momen"),
    ({'grid': {'fed_avg': 0.1}}, '`grid.fed_avg` to be a mapping, found 0.1'),
    (
      {'grid': {'*': {'momentum': 0.1}}},
      'of type Range or a list, found 0.1',
    ),
    ({'validation_fraction': 1.0}, '`validation_fraction` to be less than 1'),
    ({'grid': {'*': {'momentum': (0.1, 0.1)}}}, '`grid` to be .*none twice'),
    # The hyperparameters' own checks, before anything runs.
    ({'grid': {'fed_avg': {'learning_rate': (0.1, -1.0)}}}, 'learning_rate'),
    ({'grid': {'*': {'learning_rate': (-2.0, -1.0)}}}, 'learning_rate'),
  ],
)
def test_wrong_plans_are_refused(changes, message):
  plan_of = {'base': _base(), 'methods': ('fed_avg', 'fed_rep'), **changes}
  with pytest.raises((ValueError, TypeError), match=message):
    plan.Comparison(**plan_of)


@pytest.mark.parametrize(
  'texts, flag, expected',
  [
    (
      'learning_rate=0.01,1 fed_avg.num_steps=5,none '
      'fed_avg.optimizer=sgd,adam fed_dbe.personal_bias=False,true',
      'grid',
      {
        '*': {'learning_rate': (0.01, 1.0)},
        'fed_avg': {'num_steps': (5, None), 'optimizer': ('sgd', 'adam')},
        'fed_dbe': {'personal_bias': (False, True)},
      },
    ),
    (
      # 0 is None where None is a value and not the default.
      'batch_size=0,5 per_fed_avg.num_steps=0 momentum=0',
      'grid',
      {
        '*': {'batch_size': (None, 5), 'momentum': (0.0,)},
        'per_fed_avg': {'num_steps': (None,)},
      },
    ),
    # One of them takes adam.
    ('optimizer=adam', 'grid', {'*': {'optimizer': ('adam',)}}),
    # To fed_avg 0 steps mean nothing.
    ('num_steps=0', 'grid', {'*': {'num_steps': (0,)}}),
    # Only methods that are left out have that.
    ('num_clusters=2 ditto.proximal_strength=1', 'grid', {}),
    (
      'learning_rate=0.001:1:log num_epochs=1:3 fed_rep.optimizer=sgd,adam',
      'search',
      {
        '*': {'learning_rate': _RATES, 'num_epochs': plan.Range(1, 3)},
        'fed_rep': {'optimizer': ('sgd', 'adam')},
      },
    ),
  ],
)
def test_grids_are_read_in_the_types_of_the_hyperparameters(
  texts, flag, expected
):
  algorithms = ('fed_avg', 'fed_rep', 'fed_dbe', 'per_fed_avg', 'scaffold')
  found = plan.parse_grid(texts.split(), algorithms, flag)
  # 1.0 is not 1.
  assert repr(found) == repr(expected)


@pytest.mark.parametrize(
  'texts,message',
  [
    ('momentum=0 momentum=0.9', 'once for each name'),
    ('learning_rate=', r'\[method.\]hyperparameter=value'),
    ('=0.1', r'\[method.\]hyperparameter=value'),
    ('dito.momentum=0.1', 'one of the methods fed_avg'),
    ('ditto.speed=0.1', "hyperparameters of ditto, found 'ditto.speed=0.1'"),
    ('speed=0.1', "hyperparameters of fed_avg, found 'speed=0.1'"),
    ('learning_rate=fast', "takes, found 'learning_rate=fast'"),
    ('num_epochs=none', "found 'num_epochs=none'"),
    ('momentum=a:b', "found 'momentum=a:b'"),
    ('momentum=0:1:lin', "found 'momentum=0:1:lin'"),
    ('optimizer=a:b', "found 'optimizer=a:b'"),
  ],
)
def test_grids_of_another_form_are_refused(texts, message):
  flag = 'search' if ':' in texts else 'grid'
  with pytest.raises(ValueError, match=message):
    plan.parse_grid(texts.split(), ('fed_avg',), flag)
