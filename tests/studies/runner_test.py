"""The whole of a study, its trials made up."""

import dataclasses
import json
import os
import sys

import numpy as np
import pytest

import tff_pfl as pfl
from tests.studies import made_up_trials
from tff_pfl import errors
from tff_pfl.methods import registry
from tff_pfl.runs import directory_lock
from tff_pfl.studies import plan, trial
from tff_pfl.system import user_modules

_OF_ONE_METHOD = """
import tff_pfl as pfl

@pfl.fields.dataclass
class NearHParams(pfl.LocalTrainingHParams):
  strength: pfl.fields.NonNegative = 0.1

@pfl.method('clients train from the global model', NearHParams)
def near_global_of_tests(model, hparams):
  def train(client):
    loss = pfl.joint_loss(model)
    return client.result(client.sgd(loss, client.received, hparams.phase()))

  return pfl.global_weights_work(model, pfl.Exchange(train))
"""


def test_a_failed_trial_is_told_and_the_others_count(found):
  of = {'trial': made_up_trials.FAILING, 'algorithm': 'local_only', 'seed': 1}
  assert found.failures == [{**of, 'reason': 'no memory'}]
  assert {one.method for one in found} == {*made_up_trials.METHODS}


def test_the_sweep_is_told_and_taken_with_what_a_method_refuses(found):
  swept, untried = found.description['tunings']
  points = swept['points']
  assert [point['score'] for point in points] == [0.05, 1e-9, None, None]
  assert [point['chosen'] for point in points] == [True] + [False] * 3
  assert all('momentum' in point['failure'] for point in points[2:])
  tuned = found.description['methods']['FedAvg + FT']
  assert tuned['hparams']['learning_rate'] == 0.05
  # The only point that is allowed is taken untried.
  allowed, refused = untried['points']
  assert (untried['num_rounds'], allowed['chosen']) == (0, True)
  assert 'momentum' in refused['failure'] and not refused['chosen']


def test_partition_and_settings_are_those_that_the_runs_share(found):
  partition = found.description['partitions']['']
  # With new clients, of the first seed.
  assert (partition['seed'], partition['num_new_clients']) == (0, 1)
  assert len(partition['client_ids']) == partition['num_clients'] == 5
  counts = np.transpose([*partition['maps']['class'].values()])
  # The data of another seed have another partition.
  first, other = (
    np.concatenate([part.class_counts() for part in trial.load_data(one)])
    for one in plan.trials_of(plan.entries(made_up_trials.tuned_study()))[::2]
  )
  assert counts.tolist() == first.tolist() != other.tolist()
  assert counts.sum(axis=1).tolist() == partition['num_examples']
  # The synthetic clients have the two classes that were asked for.
  assert {*np.count_nonzero(counts, axis=1)} == {2}
  shared = found.description['settings']
  assert made_up_trials.SETTINGS.items() <= shared.items()
  assert not {'method', 'seed', 'data_dir', 'rounds'} & {*shared}
  # Something is fine-tuned.
  assert shared['fine_tune_num_epochs'] == 10


def test_everything_is_on_file(found, directory):
  assert json.loads((directory / 'study.json').read_text()) == found.description
  assert 'FedAvg + FT' in (directory / 'study.html').read_text()
  figure = (directory / 'figure.png').read_bytes()
  assert figure.startswith(b'\x89PNG\r\n\x1a\n')
  assert found.description['seconds'] > 0
  assert found.description['versions']['tensorflow']


def test_what_is_new_is_run_and_nothing_again(tmp_path):
  run = made_up_trials.Ran()

  def run_study(**changes):
    own = {'FedAvg': made_up_trials.METHODS['FedAvg']}
    base = {'seeds': (0,), 'conditions': {2: {}}, 'methods': own}
    study = made_up_trials.study(**{**base, **changes})
    actual = made_up_trials.run_trials(study, tmp_path, run)
    assert not actual.failures
    return actual, ' '.join(sorted(run.taken()))

  two = made_up_trials.TWO_METHODS
  methods = {**two, '+ FT': pfl.Method('fed_avg', fine_tune='all')}
  conditions = {2: {}, 5: {'partition': 'shards:5'}}
  for changes, expected in (
    ({}, '2-FedAvg-seed0'),
    ({}, ''),
    ({'seeds': (0, 1)}, '2-FedAvg-seed1'),
    ({'methods': two}, '2-Local-seed0'),
    ({'conditions': conditions}, '5-FedAvg-seed0'),
  ):
    assert run_study(**changes)[1] == expected
  # Further ways to fine-tune are scored in the folders of the runs.
  actual, ran = run_study(methods=methods)
  assert ran == '2-FedAvg-seed0'
  assert [one.variant for one in actual] == ['', '', '+ FT']
  changes = {'methods': methods, 'conditions': conditions, 'seeds': (0, 1)}
  actual, ran = run_study(**changes)
  assert (len(actual), len(ran.split())) == (3 * 2 * 2, 6)
  assert run_study()[1] == ''
  assert run_study(**changes)[1] == ''


def test_claims_are_made_anew_of_what_has_ended(tmp_path):
  scores = {'FedAvg-seed0': 0.5, 'FedAvg-seed1': 0.75, 'FedAvg-seed2': 1.0}
  scores.update({f'Local-seed{seed}': 0.25 for seed in range(3)})
  run = made_up_trials.Ran(made_up_trials.FAILING, scores=scores)

  def claims_of(*checks):
    methods, seeds = made_up_trials.TWO_METHODS, range(3)
    study = made_up_trials.study(seeds=seeds, methods=methods, claims=checks)
    actual = made_up_trials.run_study(study, tmp_path, run)
    assert actual.claims.equals(pfl.open_study(tmp_path).claims)
    return actual.claims.to_dict('records')

  (claim,) = claims_of(pfl.better('FedAvg', than=pfl.ALL_OTHERS))
  # The seed with which one of them failed is left out.
  assert (claim['values'], claim['num_seeds']) == ([0.25, 0.75], 2)
  assert claim['statement'] == 'FedAvg is more accurate than Local'
  (claim,) = claims_of(pfl.at_least(0.2, 'Local'))
  assert claim['statement'] == 'the score of Local is at least 0.2'


def test_a_study_of_which_all_failed_tells_why(tmp_path):
  def run(expected, directory, **options):
    raise errors.RunError('no memory')

  study = made_up_trials.study(claims=[pfl.at_least(0.5)])
  actual = made_up_trials.run_study(study, tmp_path, run)
  assert (len(actual), len(actual.failures)) == (0, 4)
  assert actual.claims.empty
  assert actual.table() == ''
  assert len(pfl.open_study(tmp_path).failures) == 4
  # The next call tries again.
  actual = made_up_trials.run_trials(study, tmp_path)
  assert (len(actual), actual.failures) == (6, [])


def test_a_metric_that_no_run_has_is_refused(tmp_path):
  study = made_up_trials.study(methods=['fed_avg'], metric='personal_acuracy')
  message = '`metric` to be one of .*, personal_accuracy,'
  with pytest.raises(ValueError, match=message):
    made_up_trials.run_study(study, tmp_path)


def test_a_folder_is_one_processs_at_a_time(tmp_path):
  with directory_lock.DirectoryLock(str(tmp_path)):
    with pytest.raises(errors.RunError, match='in use by a running process'):
      made_up_trials.study().run(str(tmp_path))
  assert not (tmp_path / 'trials').exists()
  file = tmp_path / 'file'
  file.write_text('mine')
  cannot = 'Cannot write to the output directory'
  with pytest.raises(errors.RunError, match=cannot):
    directory_lock.DirectoryLock(str(file)).__enter__()
  assert file.read_text() == 'mine'


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'tuning_rounds': 1}, 'num_rounds=2, not 1'),
    ({'num_new_clients': 2}, 'num_new_clients=1, not 2'),
    ({'tune': {'momentum': (0.1, 0.2)}}, 'holds a grid of FedAvg among'),
    (
      {
        'methods': {'Local': pfl.Method('local_only', num_epochs=9)},
        'tune': {},
      },
      'holds a trial with .*num_epochs=.*, not 9',
    ),
  ],
)
def test_a_study_of_other_settings_is_not_overwritten(
  changes, message, found, directory
):
  before = (directory / 'study.json').read_text()
  with pytest.raises(errors.RunError, match=message):
    made_up_trials.run_study(made_up_trials.tuned_study(**changes), directory)
  assert (directory / 'study.json').read_text() == before


def test_a_study_is_run_anew(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  study = made_up_trials.study(
    methods={'A': pfl.Method('fed_avg')}, tune={'momentum': (0.1, 0.2)}
  )
  made_up_trials.run_study(study, tmp_path)
  other = dataclasses.replace(study, tune={}).with_settings(num_rounds=1)
  with pytest.raises(errors.RunError, match='momentum=0.1, not'):
    made_up_trials.run_study(other, tmp_path)
  run = made_up_trials.Ran()
  actual = made_up_trials.run_study(other, tmp_path, run, rerun=True)
  assert sorted(os.listdir(tmp_path / 'trials')) == ['A-seed0', 'A-seed1']
  assert not (tmp_path / 'search.sqlite').exists()
  assert actual.description['settings']['num_rounds'] == 1
  assert (tmp_path / 'notes.txt').read_text() == 'mine'


def test_results_of_another_kind_are_not_touched(tmp_path):
  (tmp_path / 'run.sqlite').touch()
  for rerun in (False, True):
    with pytest.raises(errors.RunError, match='holds a run: choose another'):
      made_up_trials.run_study(made_up_trials.study(), tmp_path, rerun=rerun)
  assert os.listdir(tmp_path) == ['run.sqlite']


def test_impossible_data_are_refused_before_anything_runs(tmp_path):
  run = made_up_trials.Ran()
  conditions = {'a': {}, 'b': {'partition': 'dirichlet:0.1'}}
  study = made_up_trials.study(conditions=conditions)
  with pytest.raises(ValueError, match='partition'):
    made_up_trials.run_study(study, tmp_path / 'out', run)
  assert not run.names
  assert not (tmp_path / 'out' / 'trials').exists()


@pytest.mark.parametrize(
  'options, message',
  [
    ({'num_proceses': 1}, 'Did you mean num_processes'),
    ({'num_processes': -1}, '`num_processes` to be at least 0'),
    ({'runtime': 'fast'}, '`runtime` to be one of'),
  ],
)
def test_wrong_arguments_are_refused(options, message, tmp_path):
  with pytest.raises((ValueError, TypeError), match=message):
    made_up_trials.study().run(str(tmp_path / 'out'), **options)
  assert not (tmp_path / 'out').exists()


def test_where_trials_run_may_change(tmp_path):
  expected = []

  def run(one, directory, **options):
    expected.append((one.settings.rounds.runtime, options['runtime_options']))
    made_up_trials.run(one, directory, **options)

  study = made_up_trials.study(methods=['fed_avg'], seeds=(0,))
  there = {'runtime': 'native', 'runtime_options': {'devices': 'cpu'}}
  made_up_trials.run_study(study, tmp_path, run, **there)
  ((runtime, options),) = expected
  assert (runtime, options['devices']) == ('native', 'cpu')
  actual = made_up_trials.run_study(study, tmp_path, run)
  assert len(actual) == len(expected) == 1


@pytest.mark.slow
def test_a_method_of_ones_own_runs_in_a_process(tmp_path, monkeypatch):
  path = tmp_path / 'near_global_module_of_tests.py'
  path.write_text(_OF_ONE_METHOD)
  with monkeypatch.context() as patches:
    patches.setattr(registry, 'ALGORITHMS', dict(registry.ALGORITHMS))
    user_modules.load([str(path)])
    study = pfl.Study(
      settings={**made_up_trials.SETTINGS, 'num_rounds': 1},
      methods={'Near': pfl.Method('near_global_of_tests', strength=0.5)},
      modules=[str(path)],
    )
    actual = study.run(
      str(tmp_path / 'out'), num_processes=1, show_progress=False
    )
    (one,) = actual
    assert one.run.settings.method.strength == 0.5
    assert 0 <= one.score() <= 1
    assert [row['round'] for row in one.run.evaluations] == [1]
    # Its models can be used.
    run = one.open()
    assert len(run.personal_model(run.scores['client'][0]).weights) == 2
    del sys.modules[str(path)]
