import types

from tff_pfl.experiments import laboratory, methods


def test_body_and_head_are_trained_with_what_all_methods_share():
  sizes = types.SimpleNamespace(
    num_epochs=3, num_head_epochs=7, learning_rate=0.1, batch_size=5
  )
  hparams = laboratory.hparams_of('fed_rep', methods.training(sizes), {})
  assert (hparams.num_body_epochs, hparams.num_head_epochs) == (3, 7)
  assert hparams.body_learning_rate == hparams.head_learning_rate == 0.1
  assert hparams.batch_size == 5
  # A method that trains all weights at once has epochs of one kind.
  hparams = laboratory.hparams_of('fed_avg', methods.training(sizes), {})
  assert hparams.num_epochs == 3


def test_fine_tuned_models_are_results_of_the_same_runs():
  def finished(accuracy):
    tuned = {'evaluation': {'personal': {'accuracy': accuracy + 0.1}}}
    return types.SimpleNamespace(
      summary={'accuracy': {'last_10_mean': accuracy}},
      variant={'all': tuned}.get,
    )

  lab = types.SimpleNamespace(
    seeds=range(2),
    run=lambda trials: {key: finished(t) for key, t in trials.items()},
  )
  compared = {
    'a': [laboratory.Method('x', 'fed_avg', fine_tuned='x, tuned')],
    'b': [laboratory.Method('y', 'fed_rep')],
  }
  accuracies = {('x', 'a'): 0.5, ('y', 'b'): 0.25}
  results = methods.run(
    lab, compared, lambda m, part, seed: accuracies[m.name, part] + seed / 16
  )
  assert [(*r.columns().values(), r.accuracy()) for r in results] == [
    ('a', 'x', 0, 0.5),
    ('a', 'x', 1, 0.5625),
    ('a', 'x, tuned', 0, 0.6),
    ('a', 'x, tuned', 1, 0.6625),
    ('b', 'y', 0, 0.25),
    ('b', 'y', 1, 0.3125),
  ]
