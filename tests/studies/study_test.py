"""What studies are made of, without running them."""

import dataclasses

import pytest

import tff_pfl as pfl
from tff_pfl.methods import registry
from tff_pfl.studies import plan

_SEARCH = {'num_search_trials': 1}
_RATES = pfl.Range(1e-3, 1.0, log=True)


@dataclasses.dataclass(frozen=True)
class _Parameters:
  depth: int = 3


def _study(methods=('fed_avg', 'fed_rep'), **changes):
  methods = [*methods] if isinstance(methods, tuple) else methods
  changes = {'settings': {'num_clients': 6, 'num_rounds': 7}, **changes}
  return pfl.Study(methods=methods, **changes)


def _hparams(study, method, condition=''):
  return study.settings_of(condition, method, 0).method


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'methods': {}}, '`methods` to be at least one'),
    ({'methods': ['fed_foo']}, "'fed_foo'"),
    ({'methods': 'fed_avg'}, "`methods` to be a mapping or a list.*'fed_avg'"),
    ({'methods': {'A': 'fed_avg'}}, "Method, found 'fed_avg'"),
    ({'seeds': (1, 1)}, '`seeds` to be .*none twice'),
    ({'seeds': ()}, '`seeds` to be .*at least one'),
    ({'seeds': (-1,)}, '`seeds.*` to be at least 0'),
    ({'num_folds': 1}, '`num_folds` to be at least 2'),
    ({'num_new_clients': -3}, '`num_new_clients` to be at least 0'),
    ({'num_search_trials': 0}, '`num_search_trials` to be at least 1'),
    ({'validation_fraction': 1.0}, '`validation_fraction` to be less than 1'),
    ({'clams': ()}, '`clams`. Did you mean claims'),
    ({'claims': ['x']}, "`claims` to be better.*found 'x'"),
    ({'claims': [pfl.better('fed_avgg', 'fed_rep')]}, "found 'fed_avgg'"),
    (
      {'claims': [pfl.better('fed_avg', 'fed_rep', conditions='easy')]},
      "`conditions` to be .*found 'easy'",
    ),
    ({'published': {('fed_avg', 'x'): 3}}, "`conditions` to be .*found 'x'"),
    (
      {'scales': {'cpu': {}}, 'claims': [pfl.at_least(0.5, 'fed_foo')]},
      "`methods` to be .*found 'fed_foo'",
    ),
    (
      {'conditions': {1: {}}, 'claims': [pfl.at_least(0, conditions=0)]},
      '`conditions` to be one of 1, found 0',
    ),
    ({'methods': ['fed_avg', 'fed_avg']}, '`methods` to be none twice'),
    ({'conditions': {}}, '`conditions` to be at least one'),
    ({'conditions': {(1, 2): {}}}, r'`conditions` to be named .*\(1, 2\)'),
    ({'settings': {'num_round': 5}}, '`num_round`. Did you mean num_rounds'),
    ({'settings': {'learnin_rate': 5}}, 'Did you mean .*learning_rate'),
    ({'settings': {'seed': 5}}, 'no argument `seed`'),
    ({'overrides': {'method': 'fed_avg'}}, 'no argument `method`'),
    ({'conditions': {'A': {'partitio': 5}}}, 'Did you mean partition'),
    ({'conditions': {'A': {'fed_av.momentum': 0}}}, "'fed_av'"),
    ({'settings': {'fed_avg.num_clusters': 5}}, 'no argument `num_clusters`'),
    ({'tune': {'fed_avg.learning_rat': (0.1,)}}, "`tune`.*'fed_avg.learning_"),
    ({'tune': {'num_clusters': (2,)}}, 'of fed_avg, fed_rep, .*num_clusters'),
    ({'tune': {'ditto.momentum': (0.1,)}}, "fed_rep, found 'ditto.momentum'"),
    ({'tune': {'momentum': 0.1}}, '`tune` to be a list of values of momentum'),
    ({'tune': {'momentum': ()}}, '`tune` to be a list of values of momentum'),
    ({'tune': {'momentum': (0.1, 0.1)}}, '`tune` to be .*none twice'),
    ({'tune': {'learning_rate': _RATES}}, '`num_search_trials` to be given'),
    ({**_SEARCH, 'tune': {'momentum': pfl.Range(1, 1)}}, 'lower to a higher'),
    ({**_SEARCH, 'tune': {'momentum': pfl.Range(0, 1, True)}}, 'from above 0'),
  ],
)
def test_wrong_studies_are_refused(changes, message):
  with pytest.raises((ValueError, TypeError), match=message):
    _study(**changes)


@pytest.mark.parametrize(
  'algorithm, settings, message',
  [
    ('fed_foo', {}, "'fed_foo'"),
    ('fed_avg', {'score': 'clients'}, '`score` to be one of personal, global'),
    ('fed_avg', {'fine_tun': 'head'}, 'Did you mean fine_tune'),
    ('fed_avg', {'seed': 3}, 'no argument `seed`'),
    ('fed_avg', {'num_head_epochs': 3}, 'no argument `num_head_epochs`'),
  ],
)
def test_wrong_methods_are_refused(algorithm, settings, message):
  with pytest.raises((ValueError, TypeError), match=message):
    pfl.Method(algorithm, **settings)


def test_the_last_layer_counts():
  for known in range(1, 5):
    rates = [{'learning_rate': i / 10} for i in range(1, known + 1)]
    of_study, of_condition, of_method, last = [*rates, {}, {}, {}][:4]
    methods = {'A': pfl.Method('fed_avg', **of_method)}
    study = _study(methods, settings=of_study, conditions={'x': of_condition})
    study = study.with_settings(**last)
    assert _hparams(study, 'A', 'x').learning_rate == known / 10
  # And before all of them what a sweep chose.
  settings = study.settings_of('x', 'A', 5, {'learning_rate': 0.7})
  assert (settings.method.learning_rate, settings.seed) == (0.7, 5)


def test_a_hyperparameter_is_for_each_method_that_has_it():
  # What is said of one method alone goes before, in any order.
  settings = {'fed_avg.momentum': 0.1, 'momentum': 0.2}
  rates = {'head_learning_rate': 0.3, 'learning_rate': 0.4}
  study = _study(settings={**settings, **rates})
  fed_avg, fed_rep = (_hparams(study, name) for name in study.methods)
  assert (fed_avg.momentum, fed_avg.learning_rate) == (0.1, 0.4)
  rates = fed_rep.head_learning_rate, fed_rep.body_learning_rate
  assert (fed_rep.momentum, *rates) == (0.2, 0.3, 0.4)


def test_a_name_of_a_setting_is_the_methods_if_it_has_its_own():
  methods = {
    'FedDAR': pfl.Method('fed_dar', ridge=2.0, reweight_domains=False),
    'FedAvg': pfl.Method('fed_avg', reweight_domains=True),
  }
  study = _study(methods)
  fed_dar, fed_avg = (study.settings_of('', n, 0) for n in methods)
  assert (fed_dar.method.ridge, fed_dar.method.reweight_domains) == (2, False)
  default = pfl.Settings(method='fed_avg', num_clients=6, num_rounds=7)
  assert fed_avg == dataclasses.replace(default, reweight_domains=True)


def test_epochs_take_the_place_of_steps():
  of_steps = pfl.Method('per_fed_avg', num_steps=4)
  methods = {'FedRep': pfl.Method('fed_rep'), 'of steps': of_steps}
  methods['Per-FedAvg'] = pfl.Method('per_fed_avg')
  study = _study(methods, settings={'num_epochs': 3})
  fed_rep, per_fed_avg = (
    _hparams(study, 'FedRep'),
    _hparams(study, 'Per-FedAvg'),
  )
  default = registry.ALGORITHMS['fed_rep'].hparams()
  assert fed_rep.num_body_epochs == 3
  assert fed_rep.num_head_epochs == default.num_head_epochs
  assert registry.ALGORITHMS['per_fed_avg'].hparams().num_steps
  assert (per_fed_avg.num_epochs, per_fed_avg.num_steps) == (3, None)
  assert _hparams(study, 'of steps').num_steps == 4
  # Also those of a scale.
  scaled = study.with_settings(num_epochs=1)
  assert _hparams(scaled, 'of steps').num_steps is None


def test_settings_of_a_layer_take_others_back():
  study = _study(
    ('fed_avg',),
    settings={'cohort_size': 3, 'num_clients': 9},
    conditions={'few': {}, 'often': {'participation': 0.5}},
  )

  def rounds(study, name):
    rounds = study.settings_of(name, 'fed_avg', 0).rounds
    return rounds.cohort_size, rounds.participation

  assert rounds(study, 'few') == (3, None)
  assert rounds(study, 'often') == (None, 0.5)
  again = study.with_settings(cohort_size=2)
  assert rounds(again, 'often') == (2, None)
  assert rounds(study.with_settings(cohort_size=None), 'often') == (None, 0.5)


def test_settings_may_be_those_of_a_run():
  own = {'num_clients': 6, 'fine_tune': 'head'}
  settings = pfl.Settings(method='ditto', seed=4, learning_rate=0.3, **own)
  study = _study(settings=settings)
  assert study.settings == own
  actual = study.settings_of('', 'fed_avg', 1)
  assert actual == pfl.Settings(method='fed_avg', seed=1, **own)


def test_data_sets_without_files_need_no_folder():
  study = _study(settings={'data_dir': 'there'})
  for dataset, folder in (('digits', None), ('mnist', 'there')):
    of = study.with_settings(dataset=dataset).settings_of('', 'fed_avg', 0)
    assert of.data.data_dir == folder


def test_scales_replace_fields_settings_and_parameters():
  fed_avg, fed_rep = pfl.Method('fed_avg', num_epochs=9), pfl.Method('fed_rep')
  small = {'seeds': (7,), 'methods': ['FedAvg'], 'conditions': ['5']}
  changes = {'num_epochs': 1, 'depth': 4, 'dataset': 'synthetic'}
  small.update(changes, settings={'num_rounds': 2})
  cpu = {'conditions': {3: {}}, 'methods': {'Ditto': pfl.Method('ditto')}}
  study = _study(
    {'FedAvg': fed_avg, 'FedRep': fed_rep},
    conditions={2: {}, 5: {}},
    parameters=_Parameters(),
    scales={'small': small, 'cpu': cpu},
    claims=[pfl.at_least(0, 'Ditto', conditions=3), pfl.at_least(0, 'FedRep')],
  )
  small = study.at('small')
  assert (small.scale, study.scale) == ('small', 'paper')
  assert (small.seeds, small.method_names) == ((7,), ('FedAvg',))
  assert [*small.conditions] == [5]
  assert small.parameters == _Parameters(depth=4)
  settings = small.settings_of(5, 'FedAvg', 7)
  assert settings.method.num_epochs == 1
  # A scale's settings are added to the study's.
  assert settings.rounds.num_rounds == 2
  assert (settings.data.num_clients, settings.data.name) == (4, 'synthetic')
  cpu = study.at('cpu')
  assert ([*cpu.conditions], [*cpu.methods]) == ([3], ['Ditto'])
  # A study need not have this one.
  assert _study().at('cpu').method_names == ('fed_avg', 'fed_rep')
  with pytest.raises(ValueError, match='one of paper, cpu, small'):
    study.at('large')
  # Any study has a small scale.
  own = {'model': 'cnn', 'model_filters': 8}
  small = _study(settings=own, seeds=(3, 4)).at('small')
  settings = small.settings_of('', 'fed_avg', 3)
  assert dict(settings.model.arguments) == {'widths': (4,)}
  assert (small.seeds, settings.rounds.num_rounds) == ((3,), 2)


def test_a_part_of_a_study_is_selected():
  study = _study(
    conditions={2: {}, 5: {}},
    seeds=(0, 1),
    # Of which there are none in a part.
    claims=[pfl.better('fed_rep', than='fed_avg', conditions=5)],
    published={('fed_avg', 5): 3.0},
  )
  part = study.select(methods=['fed_rep'], conditions=['2'], seeds=[4])
  (entry,) = plan.entries(part)
  assert entry.trial.name == '2-fed_rep-seed4'
  # Its points are chosen as in the whole.
  assert plan.tuning_trial(part, (2, 'fed_rep'), {}).settings.seed == 0
  assert study.select() == study
  with pytest.raises(ValueError, match='`methods` to be one of fed_avg, fed_'):
    study.select(methods=['ditto'])
  with pytest.raises(ValueError, match='`conditions` to be one of 2, 5'):
    study.select(conditions=['3'])


def test_other_settings_are_checked():
  study = _study(parameters=_Parameters())
  changed = study.with_settings(depth=5, num_clients=3)
  assert changed.parameters == _Parameters(5)
  assert changed.settings_of('', 'fed_avg', 0).data.num_clients == 3
  with pytest.raises(TypeError, match='Did you mean num_clients'):
    study.with_settings(num_client=3)
  with pytest.raises(TypeError, match='`depth` to be an integer, found 1000.0'):
    study.with_settings(depth=1e3)
