import collections
import types

import numpy as np
import pytest
import tensorflow as tf

import tff_pfl as pfl
from binaries.papers import fed_rep
from tests.papers import untrained
from tff_pfl import datasets
from tff_pfl.models import zoo
from tff_pfl.runs import evaluation
from tff_pfl.studies.numbers import Numbers


def test_local_epochs_are_of_fed_reps_head_and_of_fed_avgs_model():
  study = fed_rep.LOCAL_EPOCHS.at('cpu')
  context = untrained.Context(study.select(conditions=[1, 10], seeds=[0]))
  context.run()
  own = {expected.name: expected.settings.method for expected in context.trials}
  for n in (1, 10):
    head = own[f'{n}-FedRep-seed0']
    assert (head.num_head_epochs, head.num_body_epochs) == (n, 1)
    assert own[f'{n}-FedAvg-seed0'].num_epochs == n


def test_local_epochs_claims_compare_epochs_and_methods():
  numbers = Numbers(
    {'condition': n, 'method': method, 'seed': 0, 'score': base + score}
    for method, base in (('FedRep', 0.5), ('FedAvg', 0.1))
    for n, score in zip((1, 5, 20), (0.0, 0.2, 0.1))
  )
  actual = fed_rep.local_epochs_claims(numbers, fed_rep.LOCAL_EPOCHS)
  np.testing.assert_allclose(
    [claim.measured for claim in actual], [0.2, -0.1, 0.1, 0.5, 0.3, 0.4]
  )


def test_new_clients_have_new_classes_only():
  study = fed_rep.NEW_CLIENTS.at('small')
  sizes = study.parameters
  trained = study.overrides['dataset_arguments']['classes']
  assert not set(trained) & set(sizes.new_classes)
  arrays = datasets.load_arrays('digits').class_subset(sizes.new_classes)
  clients = fed_rep.new_clients(arrays, sizes, seed=0)
  assert clients.num_clients == sizes.num_new
  counts = clients.class_counts()
  assert not counts[:, list(trained)].any()
  assert counts.sum(axis=1).min() >= sizes.num_new_examples


class _FinishedRun:
  """A run that added 1 to all weights, on the mean of three clients.

  The server of FedRep has the body's, that of LG-FedAvg the head's.
  """

  data = types.SimpleNamespace(client_ids=['0', '1', '2'], num_clients=3)

  def __init__(self, settings):
    self.settings = settings
    spec = {'x': tf.TensorSpec([4]), 'y': tf.TensorSpec([], tf.int32)}
    self.model = zoo.mlp(collections.OrderedDict(spec), 10, widths=(3,))

  def _weights_plus(self, number, names):
    initial = self.model.initial_weights
    # In float64 the clients' mean is not rounded.
    return {name: np.float64(initial[name]) + number for name in names}

  def global_weights(self, runtime):
    layers = {
      'fed_rep': self.model.body_layers,
      'lg_fed_avg': self.model.head_layers,
    }.get(self.settings.algorithm, tuple(self.model.layers))
    return self._weights_plus(1, self.model.weight_names(layers))

  def personal_weights(self, client_id, runtime):
    return self._weights_plus(int(client_id), self.model.initial_weights)

  def build_process(self, options):
    of = self.settings.algorithm, self.model, self.settings.method
    options = pfl.ProcessOptions(personalization=options)
    return pfl.build(*of, options=options)


def test_new_clients_start_from_the_initial_head_on_the_trained_body(
  monkeypatch,
):
  scored = []

  def score(process, runtime, state, initial_states, clients):
    assert len(initial_states([0, 1])) == 2
    options = process.description['personalization']
    assert options['fine_tune'] == 'head'
    scored.append((options['num_epochs'], state.global_weights))
    rows = [{'after': {'accuracy': a}} for a in (0.5, 1.0)]
    return evaluation.Evaluation(rows, {})

  monkeypatch.setattr(evaluation, 'evaluate', score)
  # With the data of the small scale and the epochs of training of cpu.
  study = fed_rep.NEW_CLIENTS.at('small').with_settings(
    **{'num_epochs': 5, 'per_fed_avg.num_steps': 200, 'nums_epochs': (3,)}
  )

  def finish(expected):
    return types.SimpleNamespace(open=lambda: _FinishedRun(expected.settings))

  context = untrained.Context(study, finish)
  rows = context.measured().frame.to_dict('records')
  assert {row['accuracy'] for row in rows} == {0.75}
  initial = _FinishedRun(None).model.initial_weights
  for row, (num_epochs, weights) in zip(rows, scored, strict=True):
    assert row['num_epochs'] == num_epochs == 3
    trained = row['method'] != 'Untrained body'
    assert list(weights) == list(initial)
    for name, value in weights.items():
      added = trained and not name.startswith('head/')
      np.testing.assert_allclose(value, initial[name] + added, rtol=1e-6)
  assert (len(rows), rows[-1]['method']) == (7, 'Untrained body')
  hparams = {config.algorithm: config.method for config in context.configs}
  assert hparams['fed_rep'].num_body_epochs == 5
  assert hparams['per_fed_avg'].num_steps == 200


def test_all_methods_stand_beside_the_published_figures():
  five = 'CIFAR-10, 5 classes'
  study = fed_rep.TABLE_1.at('cpu').select(conditions=[five], seeds=[0])
  context = untrained.Context(study)
  numbers = context.measured()
  assert len(numbers.frame) == 16
  # None is illegible in the copy at hand. Per-FedAvg's is that of models as
  # they leave the clients' training, not after one step.
  for name, accuracy, published in (
    ('FedAvg', 0.5, 51.78),
    ('FedAvg + FT', 0.4, 73.68),
    ('Per-FedAvg', 0.4, 67.2),
    ('Per-FedAvg, one step', 0.5, None),
    ('FedRep', 0.5, None),
  ):
    assert numbers.values('score', method=name) == [accuracy], name
    assert study.published.get((name, five)) == published, name
  for trial in context.trials:
    config, hparams = trial.settings, trial.settings.method
    # The head, for 10 epochs, where a global model is fine-tuned.
    is_meta = config.algorithm == 'per_fed_avg'
    for options in trial.variants.values():
      assert options.fine_tune == ('trained' if is_meta else 'head')
      assert options.num_epochs == 10
    is_l2gd = config.algorithm == 'l2gd'
    assert config.rounds.participation == (1 if is_l2gd else 0.1)
    if is_l2gd:
      # Local steps have the rate of other methods, the pull half of it.
      local = hparams.learning_rate / (1 - hparams.aggregation_probability)
      assert [local, hparams.pull] == pytest.approx([0.01, 0.005])


def test_settings_of_a_column_for_one_method_alone():
  study = fed_rep.TABLE_1.at('paper')
  for method, rate in (('SCAFFOLD', 0.5), ('FedAvg', 1.0)):
    process = study.settings_of('FEMNIST', method, 0).process
    assert process.server_learning_rate == rate
  # Alone clients train as the authors train them, all in each round.
  for condition, num_epochs in (('FEMNIST', 1), ('Sent140', 5)):
    alone = study.settings_of(condition, 'Local Only', 0)
    assert alone.method.num_epochs == num_epochs
    assert alone.rounds.participation == 1
