"""Runs whose means have noise."""

import dataclasses

import pytest

from tff_pfl import tff_api as tff
from tff_pfl.core import client_sampling, privacy
from tff_pfl.export import client_module
from tff_pfl.runs import loop, model_files, run_store
from tff_pfl.runs import settings as settings_lib

pytestmark = pytest.mark.usefixtures(
  'no_pictures', 'one_runtime', 'one_process'
)

_SETTINGS = settings_lib.Settings(
  method='fed_avg',
  num_steps=2,
  model='linear',
  num_clients=6,
  cohort_size=3,
  num_rounds=3,
  num_final_evaluations=1,
  aggregator=privacy.PrivateMean(noise_multiplier=1.0),
  seed=3,
)
_DISTRIBUTED = privacy.DistributedPrivateMean(noise_multiplier=1.0)


@pytest.fixture(name='data', scope='module')
def _data():
  return _SETTINGS.load_data()


@pytest.fixture(name='model', scope='module')
def _model(data):
  return _SETTINGS.build_model(data)


@pytest.mark.parametrize(
  ('name', 'changes'),
  [
    ('num_warmup_rounds', {'num_warmup_rounds': 1}),
    ('dropout_rate', {'aggregator': _DISTRIBUTED, 'dropout_rate': 0.1}),
    ('bits', {'aggregator': dataclasses.replace(_DISTRIBUTED, bits=1)}),
    ('aggregator', {'aggregator': 'krum'}),
    ('dp_metrics', {'aggregator': 'mean', 'dp_metrics': 'none'}),
  ],
)
def test_runs_that_the_noise_does_not_fit_are_refused(
  name, changes, data, model
):
  with pytest.raises(ValueError, match=f'^Expected `{name}`'):
    dataclasses.replace(_SETTINGS, **changes).build_process(model, data)


def test_settings_are_names_and_descriptions():
  with pytest.raises(ValueError, match='that can be stored as JSON'):
    dataclasses.replace(_SETTINGS, aggregator=tff.aggregators.MeanFactory())


def test_noise_for_an_epsilon_is_for_its_rounds(data, model, tmp_path):
  settings = dataclasses.replace(
    _SETTINGS, aggregator=privacy.PrivateMean(epsilon=5.0)
  )
  process = settings.build_process(model, data)
  with pytest.raises(ValueError, match='`num_rounds` to be at most 3, .*epsil'):
    loop.run(process, data, str(tmp_path), num_rounds=4, cohort_size=3)
  # It may stop before.
  run = loop.run(
    process, data, str(tmp_path / 'first'), num_rounds=2, cohort_size=3
  )
  assert run.continue_(3).last_round == 3
  # Also a run that continues, whose settings find other noise.
  settings.run(str(tmp_path), data=data, show_progress=False)
  with pytest.raises(ValueError, match='`num_rounds` to be at most 3, .*epsil'):
    settings.resume(str(tmp_path), data=data, num_rounds=4)


def _stored(directory):
  with run_store.RunStore.open_for_reading(directory) as store:
    return store.server_state(), [row['epsilon'] for row in store.history()]


def test_resumed_private_run_equals_an_uninterrupted_one(
  data, tmp_path, capsys, monkeypatch
):
  for folder, num_rounds in (('parts', 1), ('parts', 3), ('whole', 3)):
    run = dataclasses.replace(_SETTINGS, num_rounds=num_rounds).run(
      str(tmp_path / folder), data=data, resume=True, show_progress=False
    )
  assert '3 rounds, 3 of 6 clients' in capsys.readouterr().err
  whole = _stored(tmp_path / 'whole')
  assert _stored(tmp_path / 'parts') == whole
  delta = privacy.default_delta(6)
  sampler = client_sampling.CohortSampler(6, 3, 3)
  assert whole[1] == privacy.Accounting(1.0, sampler, delta).epsilons(3)
  assert run.summary['privacy'] == {
    'epsilon': whole[1][-1],
    'unit': 'client',
    'noise_multiplier': 1.0,
    'delta': delta,
  }
  # By its seed the noise could be taken off an exported model.
  monkeypatch.setattr(
    client_module, 'new_client_module', lambda _, state, *__, **___: state
  )
  exported = model_files.client_functions(run, None, None, run.cpu)
  assert (exported.seed, run.server_state().seed) == (0, 3)
