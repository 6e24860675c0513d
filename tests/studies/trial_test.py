import dataclasses
import json
import shutil

import numpy as np
import pytest

from tests.studies import poisoned_examples
from tff_pfl import datasets, errors, fields
from tff_pfl.core import personalization
from tff_pfl.runs import run_store, settings
from tff_pfl.studies import trial

_Options = personalization.Personalization

pytestmark = pytest.mark.usefixtures('one_process')


def _config(**changes):
  sizes = {'num_clients': 3, 'num_rounds': 2, 'cohort_size': 2}
  base = {'method': 'fed_avg', 'dataset': 'synthetic', 'model': 'linear'}
  return settings.Settings(**{**base, **sizes, **changes})


def _process(config):
  data = config.load_data()
  return config.build_process(config.build_model(data), data)


def _run(directory, spec):
  trial.run_trial(spec, str(directory))
  return json.loads((directory / 'scores.json').read_text())


@pytest.fixture(scope='module', name='plain')
def _plain(tmp_path_factory):
  """The folder and the scores of a trial that is a run and nothing more."""
  directory = tmp_path_factory.mktemp('plain')
  return directory, _run(directory, trial.Trial('x', _config()))


def test_new_clients_are_dealt_data_and_not_trained(tmp_path):
  config = _config(method='local_only', num_rounds=4)
  expected = trial.Trial('x', config, num_new_clients=2)
  trained, new = trial.load_data(expected)
  assert (trained.num_clients, new.num_clients) == (3, 2)
  whole = datasets.load_dataset(
    'synthetic', num_clients=5, partition='shards:2', seed=0
  )
  assert {*whole.client_ids} == {*trained.client_ids, *new.client_ids}
  for part in (trained, new):
    assert list(part.client_ids) == sorted(part.client_ids)
    for client_id in part.client_ids:
      np.testing.assert_array_equal(
        part.train(client_id).x, whole.train(client_id).x
      )

  scores = _run(tmp_path, expected)['variants'][trial.OWN_VARIANT]
  for key, part in (('clients', trained), ('new_clients', new)):
    assert [row['client'] for row in scores[key]] == [*part.client_ids]
  assert {row['num_rounds'] for row in scores['new_clients']} == {0}
  # The ensemble is of the last cohort, though all were trained.
  assert all(row['num_rounds'] for row in scores['clients'])
  by_ensemble = scores['new_clients_by_ensemble']
  assert [row['num_models'] for row in by_ensemble] == [2, 2]
  with run_store.RunStore.open_for_reading(tmp_path) as store:
    assert store.config['num_clients'] == 3
    # It cannot be built again from the settings of a run alone.
    with pytest.raises(errors.RunError, match='set new clients'):
      settings.Settings.from_record(store.config)


def test_new_clients_that_cannot_be_scored_are_refused_with_the_data():
  # There are 1,437 training and 360 test examples.
  changes = {'dataset': 'digits', 'num_clients': 1300, 'partition': 'iid'}
  expected = trial.Trial('x', _config(seed=1, **changes), num_new_clients=1)
  trial.load_data(dataclasses.replace(expected, num_new_clients=50))
  with pytest.raises(ValueError, match='test examples.*found .none among 1 '):
    trial.load_data(expected)


def test_a_fold_is_of_all_clients_trained_and_new():
  whole = trial.Trial('x', _config(), num_new_clients=2)
  folded = dataclasses.replace(whole, fold=(1, 4))
  for one, part in zip(trial.load_data(whole), trial.load_data(folded)):
    assert part.client_ids == one.client_ids
    for i in part.client_ids:
      size = one.num_train_examples(i) + one.num_test_examples(i)
      num_test = part.num_test_examples(i)
      assert part.num_train_examples(i) + num_test == size
      assert num_test in (size // 4, size // 4 + 1)
  # It is scored on none of its test examples in a sweep.
  sweep = dataclasses.replace(folded, validation_fraction=0.5)
  tested = trial.load_data(folded)[0]
  tuned, _ = trial.load_data(sweep)
  for i in tuned.client_ids:
    read = np.concatenate([tuned.train(i).x, tuned.test(i).x])
    np.testing.assert_array_equal(
      np.sort(read, axis=0), np.sort(tested.train(i).x, axis=0)
    )


def test_new_clients_are_drawn_by_the_seed_alone():
  def new_clients(**changes):
    expected = trial.Trial('x', _config(**changes), num_new_clients=2)
    return trial.load_data(expected)[1].client_ids

  drawn = {seed: new_clients(seed=seed) for seed in range(6)}
  assert len(set(drawn.values())) > 1
  assert drawn[1] == new_clients(seed=1, method='ditto', num_rounds=9)


@pytest.mark.slow
def test_a_trial_goes_on_with_its_data_elsewhere(tmp_path, monkeypatch):
  load = datasets.load_dataset

  def load_anywhere(name, *, data_dir, **options):
    return load(name, **options)

  monkeypatch.setattr(datasets, 'load_dataset', load_anywhere)
  expected = trial.Trial('x', _config(), num_new_clients=1)
  before = _run(tmp_path, expected)
  moved = dataclasses.replace(expected, settings=_config(data_dir='elsewhere'))
  after = _run(tmp_path, moved)
  assert after['variants'] == before['variants']
  # What data it is about may not change.
  other = dataclasses.replace(expected, num_new_clients=2)
  with pytest.raises((errors.RunError, ValueError), match='num_new_clients'):
    _run(tmp_path, other)


def test_a_run_of_all_clients_is_one_of_the_train_program(plain):
  directory, scores = plain
  assert scores['variants'][trial.OWN_VARIANT]['new_clients'] == []
  with run_store.RunStore.open_for_reading(directory) as store:
    stored = settings.Settings.from_record(store.config)
  assert stored == _config()
  process = _process(stored)
  assert scores['bytes_per_round'] == process.bytes_per_round._asdict()
  # The pictures are those of the study.
  assert not list(directory.rglob('*.png'))


def test_a_sweep_never_reads_test_examples(tmp_path, monkeypatch):
  load = datasets.load_dataset

  def load_poisoned(*args, **kwargs):
    return poisoned_examples.poisoned(load(*args, **kwargs))

  whole = trial.Trial('x', _config(), num_new_clients=1)
  study, _ = trial.load_data(whole)
  monkeypatch.setattr(datasets, 'load_dataset', load_poisoned)
  expected = dataclasses.replace(whole, validation_fraction=0.25)
  (tmp_path / 'sweep').mkdir()
  scores = _run(tmp_path / 'sweep', expected)['variants'][trial.OWN_VARIANT]
  assert scores['new_clients'] == []
  # They are the clients of the study.
  assert [row['client'] for row in scores['clients']] == [*study.client_ids]
  data = load('synthetic', num_clients=4, partition='shards:2', seed=0)
  for row in scores['clients']:
    available = data.num_train_examples(row['client'])
    assert row['num_test_examples'] == round(available / 4)
    assert row['num_train_examples'] == available - round(available / 4)
  # That is worth something only if the examples are poisonous.
  with pytest.raises(AssertionError, match='were read'):
    trial.run_trial(trial.Trial('y', _config()), str(tmp_path / 'run'))


@pytest.mark.slow
def test_variants_are_what_runs_that_end_with_them_score(tmp_path):
  # One of the three clients is not scored.
  config = _config(num_evaluated_clients=2)
  options = _Options(fine_tune='all', num_epochs=3)
  variants = {'without': _Options(fine_tune='none'), '+ FT': options}
  target = trial.Trial('x', config, variants=variants, num_new_clients=1)
  scores = _run(tmp_path / 'plain', target)['variants']
  # Without fine-tuning is what fed_avg does anyway.
  assert [*scores] == [trial.OWN_VARIANT, 'without', '+ FT']
  flat = {'fine_tune': 'all', 'fine_tune_num_epochs': 3}
  config = _config(num_evaluated_clients=2, **flat)
  tuned = dataclasses.replace(target, settings=config)
  expected = _run(tmp_path / 'tuned', tuned)['variants']
  for variant, same in (
    ('+ FT', trial.OWN_VARIANT),
    (trial.OWN_VARIANT, 'without'),
  ):
    one, other = scores[variant], expected[same]
    for which in ('clients', 'new_clients'):
      assert one[which] == other[which]
    for which in ('personal', 'global', 'fairness'):
      assert one['evaluation'][which] == other['evaluation'][which]
  assert scores['+ FT'] != scores[trial.OWN_VARIANT]


def test_a_method_that_changes_the_model_has_variants():
  def variant(scope, **changes):
    return trial._variant(
      _process(_config(**changes)), _Options(fine_tune=scope)
    )

  # The model of FedEM's process is itself made of copies of the model.
  tuned = variant('head', method='fed_em')
  assert tuned.description['personalization']['fine_tune'] == 'head'
  assert variant('trained', method='fed_em')
  # A model that is made with the server is not one of a client's training.
  assert variant('trained', method='fed_pac', model='mlp') is None


def test_an_interrupted_trial_goes_on(plain, tmp_path):
  _config(num_rounds=1).run(str(tmp_path), show_progress=False)
  assert _run(tmp_path, trial.Trial('x', _config())) == plain[1]


def test_a_trial_that_was_continued_is_refused(plain, tmp_path):
  folder = shutil.copytree(plain[0], tmp_path / 'trial')
  spec = {'trial': fields.to_json(trial.Trial('x', _config()))}
  (folder / trial.SPEC_NAME).write_text(json.dumps(spec))
  finished = trial.FinishedTrial(str(folder))
  assert finished.scores == plain[1]
  finished.open().continue_(num_rounds=3, show_progress=False)
  with pytest.raises(errors.RunError, match='to 3 rounds, and its study has 2'):
    trial.FinishedTrial(str(folder))


@pytest.mark.parametrize(
  'text,words', [(None, 'No such file'), ('{', 'Cannot read')]
)
def test_a_folder_without_a_trial_is_one_line(
  tmp_path, text, words, capsys, monkeypatch
):
  # TensorFlow has been used in this process.
  threading = trial.tf.config.threading
  monkeypatch.setattr(threading, 'set_intra_op_parallelism_threads', id)
  if text is not None:
    (tmp_path / 'trial.json').write_text(text)
  with pytest.raises(SystemExit) as exit_info:
    trial.main(['trial', str(tmp_path)])
  assert exit_info.value.code == 1
  error = capsys.readouterr().err
  assert error.startswith(trial.ERROR_START)
  assert words in error
  assert error.count('\n') == 1
