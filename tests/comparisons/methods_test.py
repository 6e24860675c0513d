import types

from tff_pfl.comparisons import context as context_lib
from tff_pfl.comparisons import methods


def test_body_and_head_are_trained_with_what_all_methods_share():
  sizes = types.SimpleNamespace(
    num_epochs=3, num_head_epochs=7, learning_rate=0.1, batch_size=5
  )
  hparams = context_lib.hparams_of('fed_rep', methods.training(sizes), {})
  assert (hparams.num_body_epochs, hparams.num_head_epochs) == (3, 7)
  assert hparams.body_learning_rate == hparams.head_learning_rate == 0.1
  assert hparams.batch_size == 5
  # A method that trains all weights at once has epochs of one kind.
  hparams = context_lib.hparams_of('fed_avg', methods.training(sizes), {})
  assert hparams.num_epochs == 3


def test_settings_have_methods_and_fine_tuned_models_are_of_the_same_runs():
  def make_trial(method, shared, *, seed, label, **config):
    return method.name, shared, seed, label, config

  def finished(trial):
    name, shared, seed, label, config = trial
    accuracy = {('x', '-a'): 0.5, ('y', '-b'): 0.25}[name, label] + seed / 16
    assert shared == {'learning_rate': 0.1, 'momentum': len(label) / 4}
    assert config == {
      'rounds_per_evaluation': 9,
      'cohort_size': 4,
      'initial_run': f'run {seed}',
    }
    tuned = {'evaluation': {'personal': {'accuracy': accuracy + 0.1}}}
    return types.SimpleNamespace(
      summary={'accuracy': {'last_10_mean': accuracy}},
      variant={'all': tuned}.get,
    )

  context = types.SimpleNamespace(
    sizes=types.SimpleNamespace(learning_rate=0.1, num_rounds=9),
    seeds=range(2),
    trial=make_trial,
    run=lambda trials: {key: finished(t) for key, t in trials.items()},
  )
  compared = {
    'a': context_lib.Method('x', 'fed_avg', {'k': 1}, fine_tuned='x, tuned'),
    'b': context_lib.Method('y', 'fed_rep', {'k': 2}),
  }
  settings = {
    name: methods.Condition(
      [method],
      {'initial_run': 'run {}'.format, 'cohort_size': 4},
      {'momentum': 0.5},
    )
    for name, method in compared.items()
  }
  results = list(methods.run(context, settings, cohort_size=3))
  assert [(*r.columns('c').values(), r.accuracy()) for r in results] == [
    ('a', 'x', 0, 0.5),
    ('a', 'x', 1, 0.5625),
    ('a', 'x, tuned', 0, 0.6),
    ('a', 'x, tuned', 1, 0.6625),
    ('b', 'y', 0, 0.25),
    ('b', 'y', 1, 0.3125),
  ]
  assert list(results[0].columns('c')) == ['c', 'method', 'seed']
  assert [r.hparams['k'] for r in results] == [1, 1, 1, 1, 2, 2]
