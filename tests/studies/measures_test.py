"""Studies with a measure of their own."""

import dataclasses

import numpy as np
import pytest

import tff_pfl as pfl
from tests.studies import made_up_trials
from tff_pfl import errors
from tff_pfl.studies import claims, measures, trial, trials


@dataclasses.dataclass(frozen=True)
class _Parameters:
  depth: int = 3
  width: float = 0.5


class _Measure:
  """A measure of no trials; knows how often it was asked."""

  def __init__(self, fail=None):
    self.contexts = []
    self.fail = fail

  def __call__(self, context):
    self.contexts.append(context)
    for depth, seed in context.each(range(context.parameters.depth)):
      if self.fail is not None and seed == 1:
        raise self.fail
      yield {'depth': depth, 'seed': seed, 'norm': depth + seed / 10}


def _norms(numbers, study):
  depth = study.parameters.depth - 1
  norms = numbers.values('norm', depth=depth)
  yield claims.measured(f'{depth} is', norms, above=1.95)


def _study(measure, claims=(_norms,), **changes):
  changes = {'seeds': (3, 1), 'source': 'Figure 1', **changes}
  changes.setdefault('parameters', _Parameters())
  return pfl.Study(measure=measure, claims=claims, **changes)


def _run(study, directory, **options):
  return study.run(str(directory), show_progress=False, **options)


def test_a_study_without_methods_has_numbers_and_claims(tmp_path):
  measure = _Measure()
  actual = _run(_study(measure), tmp_path)
  rows = [(i, seed, i + seed / 10) for i in range(3) for seed in (3, 1)]
  assert [*actual.numbers.itertuples(index=False, name=None)] == rows
  lines = (tmp_path / 'numbers.csv').read_text().splitlines()
  assert lines[:2] == ['depth,seed,norm', '0,3,0.3']
  (claim,) = actual.claims.to_dict('records')
  # Two seeds decide nothing.
  assert claim['verdict'] == claims.UNDECIDED
  assert (claim['statement'], claim['source']) == ('2 is', 'Figure 1')
  assert actual.description['parameters'] == {'depth': 3, 'width': 0.5}
  assert actual.description['seconds'] >= 0
  page = (tmp_path / 'study.html').read_text()
  assert '<dt>depth</dt><dd>3</dd>' in page
  assert '0 of 1 claims hold, 1 undecided' in page
  # There is nothing to draw that is known.
  assert not (tmp_path / 'figure.png').exists()
  assert pfl.open_study(tmp_path).numbers.equals(actual.numbers)


def test_numbers_are_kept_and_claims_made_anew(tmp_path):
  measure, drawn = _Measure(), []
  _run(_study(measure), tmp_path)

  def draw(numbers, study, figure):
    drawn.append(numbers.frame['norm'])

  changed = _study(measure, [], draw=draw)
  # Where it is measured changes no number.
  actual = _run(changed, tmp_path, runtime='native', data_dir='there')
  assert actual.claims.empty
  assert len(drawn[0]) == 6
  assert (tmp_path / 'figure.png').exists()
  assert len(measure.contexts) == 1


def test_other_parameters_and_damage_are_refused_until_it_is_rerun(tmp_path):
  measure = _Measure()
  _run(_study(measure), tmp_path)
  for changes, words in (
    ({'parameters': _Parameters(depth=2)}, 'parameters'),
    ({'seeds': (3,)}, 'seeds'),
    ({'seeds': (3,), 'overrides': {'num_rounds': 1}}, 'seeds and overrides'),
  ):
    other = _study(measure, **changes)
    with pytest.raises(errors.RunError, match=f'other {words}: .*`rerun`'):
      _run(other, tmp_path)
  assert len(measure.contexts) == 1
  (tmp_path / 'numbers.json').write_text('{')
  with pytest.raises(errors.RunError, match='Cannot read .*numbers.json'):
    _run(_study(measure), tmp_path)
  small = _study(measure, scales={'small': {'depth': 2, 'seeds': (7,)}})
  actual = _run(small.at('small'), tmp_path, rerun=True)
  assert actual.numbers['seed'].tolist() == [7, 7]
  assert actual.description['scale'] == 'small'


def test_an_interrupted_measure_is_told_and_taken_up(tmp_path):
  broken = _study(_Measure(KeyboardInterrupt()))
  with pytest.raises(KeyboardInterrupt):
    _run(broken, tmp_path)
  assert not (tmp_path / 'numbers.json').exists()
  begun = pfl.open_study(tmp_path)
  assert len(begun) == 0 and begun.numbers.empty and begun.claims.empty
  actual = _run(_study(_Measure()), tmp_path)
  assert len(actual.numbers) == 6
  # The time until the interruption is not known.
  assert actual.description['seconds'] is None
  actual = _run(_study(_Measure()), tmp_path, rerun=True)
  assert actual.description['seconds'] >= 0


def _biases(context):
  """A measure of trials, with a column of parameters."""
  for result in context.run():
    score = result.score() + context.parameters.depth
    yield {**result.columns(), 'bias': score}


def _study_of_trials(**changes):
  claim = pfl.at_least(3, metric='bias')
  own = {'measure': _biases, 'metric': 'bias', 'claims': [claim]}
  own.update(methods=made_up_trials.TWO_METHODS, parameters=_Parameters())
  return made_up_trials.study(**{**own, **changes})


def test_numbers_of_trials_are_measured_anew_with_other_parameters(tmp_path):
  run = made_up_trials.Ran()
  actual = made_up_trials.run_study(_study_of_trials(), tmp_path, run)
  by_name = {(one.method, one.seed): one.score() for one in actual}
  assert len(by_name) == len(run.taken()) == 4
  for row in actual.numbers.to_dict('records'):
    score = by_name[row['method'], row['seed']]
    assert (row['condition'], row['bias']) == ('', score + 3)
  assert actual.claims['measured'].between(3, 4).all()
  assert (tmp_path / 'figure.png').exists()
  # A further method, with other parameters.
  other = _study_of_trials(
    methods={**made_up_trials.METHODS, 'Ditto': pfl.Method('ditto')},
    parameters=_Parameters(depth=5),
  )
  again = made_up_trials.run_study(other, tmp_path, run)
  assert again.numbers['method'].unique().tolist() == [*other.methods]
  assert again.numbers['bias'].between(5, 6).all()
  # Of what had ended none but the fine-tuned models were missing.
  names = 'Ditto-seed0 Ditto-seed1 FedAvg-seed0 FedAvg-seed1'
  assert sorted(run.names) == names.split()


def test_a_measure_needs_all_of_its_trials(tmp_path):
  run = made_up_trials.Ran(made_up_trials.FAILING)
  with pytest.raises(errors.RunError, match='1 trials failed.*no memory'):
    made_up_trials.run_study(_study_of_trials(), tmp_path, run)
  assert not (tmp_path / 'numbers.json').exists()
  begun = pfl.open_study(tmp_path)
  assert (len(begun), len(begun.failures)) == (3, 1)


def test_a_refusal_leaves_the_results_as_they_were(tmp_path, monkeypatch):
  study = _study_of_trials()
  made_up_trials.run_study(study, tmp_path)
  before = (tmp_path / 'study.json').read_text()
  with pytest.raises(errors.RunError, match='num_rounds=2, not 1'):
    made_up_trials.run_study(study.with_settings(num_rounds=1), tmp_path)
  assert (tmp_path / 'study.json').read_text() == before
  # The data whose partition is known are not loaded again.
  monkeypatch.setattr(trial, 'load_data', None)
  made_up_trials.run_study(study, tmp_path)


def test_a_measure_may_run_another_study(tmp_path):
  def measure(context):
    yield from _biases(context)
    other = dataclasses.replace(context.study, seeds=(8,))
    for result in context.run(other):
      yield {**result.columns(), 'bias': -1.0}

  actual = made_up_trials.run_study(_study_of_trials(measure=measure), tmp_path)
  assert actual.numbers['seed'].tolist() == [0, 1, 0, 1, 8, 8]
  # It is the study that is described.
  assert pfl.open_study(tmp_path).description['seeds'] == [0, 1]


def test_a_context_has_data_and_a_runtime():
  overrides = {'data_dir': 'unused', 'runtime': 'in_process'}
  study = _study(_Measure(), overrides=overrides)
  context = measures.Context(study, 'unused', trials.Place(show_progress=False))
  # The digits are bundled, without a folder.
  arrays = context.load_arrays('digits')
  images = np.asarray(measures.test_images(arrays))
  assert len(images) == len(arrays.y_test)
  normalized = context.load_arrays('digits', normalize=True)
  ours = np.asarray(measures.test_images(normalized))
  assert abs(ours.mean()) < 0.1 < images.mean()
  cases = [*context.each('ab', [1])]
  assert cases == [(case, 1, seed) for case in 'ab' for seed in (3, 1)]
  with context.create_runtime() as runtime:
    assert type(runtime).__module__.endswith('in_process')
