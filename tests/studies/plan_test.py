import dataclasses
import itertools

import pytest

import tff_pfl as pfl
from tff_pfl.core import personalization
from tff_pfl.methods import registry
from tff_pfl.studies import plan, trial


def _study(methods=('fed_avg', 'fed_rep'), **changes):
  settings = {'num_clients': 6, 'cohort_size': 3, 'num_rounds': 7}
  return pfl.Study(**{'settings': settings, 'methods': methods, **changes})


def _hparams(study, chosen=None):
  """Those of the trials, by method."""
  return {
    entry.method: entry.trial.settings.method
    for entry in plan.entries(study, chosen)
  }


def test_every_method_runs_in_every_condition_with_every_seed():
  study = _study(
    {'FedAvg': pfl.Method('fed_avg', num_epochs=2), 'A/B': pfl.Method('ditto')},
    conditions={2: {'partition': 'shards:2'}, 'all': {}},
    seeds=(3, 5),
    num_new_clients=2,
    modules=('json',),
  )
  entries = plan.entries(study)
  assert [e.method for e in entries] == ['FedAvg'] * 4 + ['A/B'] * 4
  trials = iter(plan.trials_of(entries))
  for seed, method, condition in itertools.product(
    (3, 5), study.methods, study.conditions
  ):
    one, own = next(trials), {'num_epochs': 2} if method == 'FedAvg' else {}
    assert one.name == f'{condition}-{method}-seed{seed}'.replace('/', '_')
    of = study.methods[method].algorithm
    assert one.settings == pfl.Settings(
      method=registry.get_algorithm(of).hparams(**own),
      seed=seed,
      **study.settings,
      **study.conditions[condition],
    )
    assert (one.num_new_clients, one.modules) == (2, ('json',))
    assert one.validation_fraction is None
  assert not any(plan.is_tuned(study, key) for key in plan.runs(study))


def test_every_method_runs_in_every_fold():
  study = _study(['fed_avg'], seeds=(3,), num_folds=2)
  trials = plan.trials_of(plan.entries(study))
  assert [(t.name, t.fold) for t in trials] == [
    (f'fed_avg-seed3-fold{i}of2', (i, 2)) for i in (0, 1)
  ]
  # A sweep reads the training examples of the first.
  assert plan.tuning_trial(study, ('', 'fed_avg'), {}).fold == (0, 2)


def test_methods_that_are_only_personalized_otherwise_share_a_run():
  own = {'+ FT': {'fine_tune': 'head', 'fine_tune_num_epochs': 3}, 'FedAvg': {}}
  own.update({'global': {'score': 'global'}, 'other': {'learning_rate': 0.5}})
  study = _study({n: pfl.Method('fed_avg', **own[n]) for n in own})
  # The name is of one that is evaluated after more than the last round.
  assert plan.runs(study) == {
    ('', 'FedAvg'): ('FedAvg', 'global', '+ FT'),
    ('', 'other'): ('other',),
  }
  entries = plan.entries(study)
  names = ['FedAvg-seed0'] * 3 + ['other-seed0']
  assert [entry.trial.name for entry in entries] == names
  own = trial.OWN_VARIANT
  assert [entry.variant for entry in entries] == ['+ FT', own, own, own]
  shared = entries[0].trial
  options = personalization.Personalization(fine_tune='head', num_epochs=3)
  assert shared.variants == {'+ FT': options}
  # Selected alone, a method has the same run and no other.
  for name in ('+ FT', 'FedAvg', 'global'):
    (entry,) = plan.entries(study.select(methods=[name]))
    assert (entry.method, entry.trial) == (name, shared)


def test_settings_that_fine_tune_do_so_in_all_evaluations():
  scopes = {'tuned': {}, 'same': {'fine_tune': 'all'}}
  scopes['plain'] = {'fine_tune': 'none'}
  methods = {name: pfl.Method('fed_avg', **own) for name, own in scopes.items()}
  study = _study(methods, settings={'fine_tune': 'all'})
  entries = plan.entries(study)
  assert [e.variant for e in entries] == ['', '', 'plain']
  (run,) = plan.trials_of(entries)
  assert run.settings.process.personalization.fine_tune == 'all'
  assert [o.fine_tune for o in run.variants.values()] == ['none']


def test_methods_that_new_clients_score_need_some():
  study = _study({'A': pfl.Method('fed_avg', score='new_clients')})
  with pytest.raises(ValueError, match='`num_new_clients` .*because A is scor'):
    plan.entries(study)
  (entry,) = plan.entries(dataclasses.replace(study, num_new_clients=1))
  assert entry.trial.num_new_clients == 1


def test_names_that_give_one_folder_are_refused():
  study = _study({'A B': pfl.Method('fed_avg'), 'A_B': pfl.Method('fed_rep')})
  with pytest.raises(ValueError, match='two trials called A_B-seed0'):
    plan.entries(study)


@pytest.mark.parametrize(
  'texts, fed_avg, fed_rep',
  [
    (
      'fed_avg.num_epochs=1,2 fed_avg.momentum=0,0.9',
      'num_epochs=1-momentum=0.0 num_epochs=1-momentum=0.9 '
      'num_epochs=2-momentum=0.0 num_epochs=2-momentum=0.9',
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
      # An exact name leaves others to their ending, in any order.
      'head_learning_rate=0.5,0.6 learning_rate=0.1',
      'learning_rate=0.1',
      'head_learning_rate=0.5-body_learning_rate=0.1 '
      'head_learning_rate=0.6-body_learning_rate=0.1',
    ),
    (
      # A value for all that a method refuses is not tried with it.
      'fed_avg.num_epochs=1,2 learning_rate=0.1,-1',
      'learning_rate=0.1-num_epochs=1 learning_rate=0.1-num_epochs=2',
      'head_learning_rate=0.1-body_learning_rate=0.1',
    ),
  ],
  ids=['product', 'name_of_several', 'own_before_any', 'exact', 'refused'],
)
def test_points_of_a_grid(texts, fed_avg, fed_rep):
  algorithms = ('fed_avg', 'fed_rep')
  study = _study(tune=plan.parse_grid(texts.split(), algorithms))
  for algorithm, expected in zip(algorithms, (fed_avg, fed_rep)):
    names = [
      plan.tuning_trial(study, ('', algorithm), point).name
      for point in plan.points(study, '', algorithm)
    ]
    start = f'tune-{algorithm}-'
    assert names == [start + name for name in expected.split(' ')]


def test_a_sweep_has_the_first_seed_and_a_part_of_the_training_data():
  tuned = pfl.Method('fed_avg', fine_tune='all')
  methods = {'A': pfl.Method('fed_avg'), 'A + FT': tuned}
  study = _study(
    {**methods, 'Ditto': pfl.Method('ditto')},
    conditions={'x': {}},
    seeds=(4, 1),
    tune={'fed_avg.learning_rate': (0.1, 0.2)},
    **{'validation_fraction': 0.25, 'tuning_rounds': 3, 'num_new_clients': 2},
  )
  tuned = [key for key in plan.runs(study) if plan.is_tuned(study, key)]
  assert tuned == [('x', 'A')]
  one = plan.tuning_trial(study, ('x', 'A'), {'learning_rate': 0.2})
  assert one.name == 'tune-x-A-learning_rate=0.2'
  assert one.settings.method.learning_rate == 0.2
  assert (one.settings.seed, one.settings.rounds.num_rounds) == (4, 3)
  assert one.validation_fraction == 0.25
  # The same clients are trained, none but they are scored, in one way.
  assert one.num_new_clients == 2
  assert not one.variants
  # Points that differ have names that differ.
  points = [{'personal_learning_rate': rate} for rate in (None, 0.1, 0.2)]
  ditto = 'x', 'Ditto'
  assert len({plan.tuning_trial(study, ditto, p).name for p in points}) == 3


def test_the_runs_take_what_the_sweep_chose():
  study = _study(tune={'learning_rate': (0.1, 0.2)})
  chosen = {key: plan.points(study, *key)[1] for key in plan.runs(study)}
  actual = _hparams(study, chosen)
  assert actual['fed_avg'].learning_rate == 0.2
  assert actual['fed_rep'].head_learning_rate == 0.2
  # A method whose sweep found nothing is left out.
  assert [*_hparams(study, {**chosen, ('', 'fed_avg'): None})] == ['fed_rep']
  # A grid of one value is taken without a sweep.
  study = _study(tune={'fed_avg.learning_rate': (0.3,)})
  assert not plan.is_tuned(study, ('', 'fed_avg'))
  assert _hparams(study)['fed_avg'].learning_rate == 0.3


def test_epochs_of_a_grid_take_the_place_of_steps():
  methods = {name: pfl.Method(name) for name in ('fed_avg', 'per_fed_avg')}
  methods['fed_rep'] = pfl.Method('fed_rep', num_head_steps=4)
  study = _study(methods, tune={'num_epochs': (1,), 'num_head_epochs': (2,)})
  # Where there are no steps, nothing but what was written is said.
  assert plan.points(study, '', 'fed_avg') == [{'num_epochs': 1}]
  actual = _hparams(study)
  for name in ('fed_avg', 'per_fed_avg'):
    assert (actual[name].num_epochs, actual[name].num_steps) == (1, None)
  fed_rep = actual['fed_rep']
  assert (fed_rep.num_head_epochs, fed_rep.num_head_steps) == (2, None)
  # Those that the grid has stay.
  tune = {'num_epochs': (1,), 'per_fed_avg.num_steps': (7,)}
  actual = _hparams(_study(methods, tune=tune))
  assert actual['fed_avg'].num_epochs == 1
  assert actual['per_fed_avg'].num_steps == 7


@pytest.mark.parametrize('rates', [(-2.0, -1.0), (-2.0,)])
def test_a_method_that_allows_no_point_is_refused_before_anything_runs(rates):
  with pytest.raises(ValueError, match='`learning_rate` to be greater than 0'):
    plan.entries(_study(tune={'fed_avg.learning_rate': rates}))


@pytest.mark.parametrize(
  'texts, flag, expected',
  [
    ('learning_rate=0.01,1', 'grid', {'learning_rate': (0.01, 1.0)}),
    ('fed_avg.num_steps=5,none', 'grid', {'fed_avg.num_steps': (5, None)}),
    (
      'fed_dbe.personal_bias=False,true momentum=0',
      'grid',
      {'fed_dbe.personal_bias': (False, True), 'momentum': (0.0,)},
    ),
    (
      # 0 is None where None is a value and not the default.
      'batch_size=0,5 per_fed_avg.num_steps=0',
      'grid',
      {'batch_size': (None, 5), 'per_fed_avg.num_steps': (None,)},
    ),
    # One of them takes adam.
    ('optimizer=adam', 'grid', {'optimizer': ('adam',)}),
    # As for other flags, the last one counts.
    ('momentum=0,0.5 momentum=0.9', 'grid', {'momentum': (0.9,)}),
    # To fed_avg 0 steps mean nothing.
    ('num_steps=0', 'grid', {'num_steps': (0,)}),
    # Only methods that are left out have that.
    ('num_clusters=2 ditto.proximal_strength=1', 'grid', {}),
    (
      'learning_rate=0.001:1:log num_epochs=1:3 fed_rep.optimizer=sgd,adam',
      'search',
      {
        'learning_rate': plan.Range(1e-3, 1.0, log=True),
        'num_epochs': plan.Range(1, 3),
        'fed_rep.optimizer': ('sgd', 'adam'),
      },
    ),
  ],
)
def test_grids_are_read_in_the_types_of_the_hyperparameters(
  texts, flag, expected
):
  algorithms = ('fed_avg', 'fed_rep', 'fed_dbe', 'per_fed_avg', 'scaffold')
  actual = plan.parse_grid(texts.split(), algorithms, flag)
  # 1.0 is not 1.
  assert repr(actual) == repr(expected)


@pytest.mark.parametrize(
  'texts,message',
  [
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
  with pytest.raises(ValueError, match=f'`{flag}` to be .*{message}'):
    plan.parse_grid(texts.split(), ('fed_avg',), flag)
