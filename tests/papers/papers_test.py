"""All studies of the papers, without training."""

import contextlib
import pathlib
from unittest import mock

import pytest
from matplotlib.figure import Figure

from binaries import papers
from binaries.papers import record
from tests.papers import untrained
from tff_pfl.studies import claims, plan, trial

_RECORDS = record.read(str(pathlib.Path(__file__).parents[2] / 'docs/results'))
_TRAINED = [study for study in papers.STUDIES.values() if study.methods]
# Their measures open runs, whose models are made by training alone.
_OPENS_RUNS = {
  *('fedavg_cka', 'fedavg_cosine', 'fedavg_new_classes', 'fedfac_ablation'),
  *('fedfac_features', 'fedrep_new_clients', 'fedsplit_neurons'),
}


def test_studies_have_names_of_their_own():
  assert len(papers.STUDIES) == len(papers._ALL)


def _statements(rows):
  return {(row['statement'], row['source'], row['is_ours']) for row in rows}


def _name(study):
  return study.name


@pytest.mark.parametrize('study', papers.STUDIES.values(), ids=_name)
def test_small_is_small_and_other_scales_have_enough_seeds(study):
  assert len(study.at('cpu').seeds) >= claims.MIN_SEEDS
  small = study.at('small')
  assert len(small.seeds) == 1
  for entry in plan.entries(small):
    settings = entry.trial.settings
    rounds, num_clients = settings.rounds, settings.data.num_clients
    assert max(rounds.num_rounds, settings.start.num_warmup_rounds) <= 2
    assert len(rounds.cohorts(num_clients, 0).sample(1)) <= 4


@pytest.mark.parametrize('study', _TRAINED, ids=_name)
def test_small_has_all_methods_and_conditions_also_of_published(study):
  small = study.at('small')
  for other in map(study.at, ('paper', 'cpu')):
    assert {*other.conditions} <= {*small.conditions}
    assert {*other.method_names} <= {*small.method_names}
    for method, condition in other.published:
      assert method in small.methods and condition in small.conditions
  assert all(0 < value < 100 for value in study.published.values())


@pytest.mark.parametrize('study', _TRAINED, ids=_name)
@pytest.mark.parametrize('scale', ['paper', 'cpu', 'small'])
def test_claims_and_picture_of_made_up_scores(study, scale, monkeypatch):
  monkeypatch.setattr(untrained.Context, 'load_arrays', mock.MagicMock())
  study = study.at(scale).select(seeds=study.seeds[:1])

  def finish(expected):
    return untrained.finished(0.5, 0.4, expected.settings.rounds.num_rounds)

  context = untrained.Context(study, finish)
  ends = contextlib.nullcontext()
  if study.name in _OPENS_RUNS:
    ends = pytest.raises(untrained.Opened)
  with ends:
    numbers = context.measured()
    found = claims.check(study.claims, numbers, study)
    assert found
    if scale == 'cpu':
      recorded = _RECORDS[study.name]['claims']
      assert _statements(c._asdict() for c in found) == _statements(recorded)
    if scale == 'small':  # Has the methods and conditions of all scales.
      if study.draw is not None:
        study.draw(numbers, study, Figure())
      # What was not run is left out.
      for column in {'method', 'condition'} & {*numbers.frame}:
        for value in numbers.distinct(column):
          claims.check(study.claims, numbers.where(**{column: value}), study)
  names = {}
  for expected in context.trials:
    # What is the same run in two places has the same settings.
    assert (
      names.setdefault(expected.name, expected.settings) == expected.settings
    )


@pytest.mark.parametrize('study', _TRAINED, ids=_name)
def test_data_of_every_condition_load_at_scale_small(study):
  entries = plan.entries(study.at('small'))
  # Each partition once.
  expected = {repr(e.trial.settings.data): e.trial for e in entries}
  for one in expected.values():
    assert trial.load_data(one)[0].num_clients


# The claims of `fedsplit_neurons` are of the outputs of a dense layer.
@pytest.mark.parametrize(
  'study',
  [study for study in _TRAINED if study.name != 'fedsplit_neurons'],
  ids=_name,
)
def test_every_study_on_data_sets_trains_any_network(study):
  other = study.at('small').with_settings(model='resnet_18', model_arguments={})
  entries = plan.entries(other)
  assert {e.trial.settings.model.name for e in entries} == {'resnet_18'}
