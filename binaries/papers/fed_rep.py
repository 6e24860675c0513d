"""FedRep on images: its table, local epochs, and new clients.

* `fedrep_local_epochs`: accuracy against the number of local epochs, of the
  head for FedRep, of the whole model for FedAvg.
* `fedrep_new_clients`: accuracy of clients that took no part in training and
  whose classes were not in it, after some epochs on the head with the body
  frozen. FedRep's heads are personal, and a head of the other methods has
  learned other classes: so with all methods a new client starts from the head
  that training started from, and only the bodies differ. They are the server's;
  of LG-FedAvg, whose bodies are personal, the mean of all clients'. APFL is
  left out: the model that its server has is FedAvg's.
* `fedrep_table_1`, `fedrep_table_1_5_classes`: all methods on CIFAR-10, clients
  with 2 and 5 classes.

Deviations from the paper: its figures are of CIFAR-10 with a convolutional
network, and of FEMNIST's letters and digits. Here the network is an MLP, to
spare time on a CPU (`--size=model=cnn` is the paper's), and Fashion-MNIST
stands for CIFAR-10 and for the letters.
Training is as in the paper's table: momentum 0.5, batches of 10, a learning
rate of 0.01. There are fewer rounds. As in figure 6, clients of
`fedrep_new_clients` have 5 of 10 classes; they hold 400 images instead of 148
on average, and the new clients' images are MNIST's.

Of the table: 40 rounds of a CNN with 8 and 16 channels and 64 hidden neurons,
in place of 100 of a larger one, for the time on a CPU (at its size:
`binaries/flagfiles/papers/fedrep_table1_*.txt`). Where only some of the 10,000
test images are at hand, training and test images are pooled and 17% of each
client's are its test set. `Local Only` trains when a client is sampled, as the
others do, and not to convergence. SCAFFOLD is without momentum.

The other methods' strengths, of appendix A.2, are not legible in our copy but
for L2GD's share of local rounds, Per-FedAvg's batches and SCAFFOLD's global
rate; the others are the defaults of the authors' code (lgcollins/FedRep): 0.1
of FedProx, 0.75 of APFL, 1 of Ditto, 0.0001 of Per-FedAvg's inner rate, and 0.5
of L2GD, with all clients in each round, of which a tenth is local. There its
pull is half the rate of local steps. Fed-MTL has this library's default. A
model that the server has averaged is scored as such, and after fine-tuning its
head; but `Per-FedAvg` stands for models as they leave the clients' training,
which the table is taken to score (no program of that code runs Per-FedAvg), and
`Per-FedAvg, one step` for those of the inner step, which at this rate moves
next to nothing.

What comes out is in docs/results/fedrep.md.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, section 5.2, table 1, figures
  5 and 6, appendix A.2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

import tff_pfl as pfl
from tff_pfl import datasets
from tff_pfl.models import split_model
from tff_pfl.runs import evaluation
from tff_pfl.runtime import base as runtime_base

from .. import published
from .engine import claims, panels, paper, trials

_TABLE = 'FedRep, table 1'
_LOCAL_EPOCHS_FIGURE = 'FedRep, figure 5'
_NEW_CLIENTS_FIGURE = 'FedRep, figure 6'
_FED_REP, _FED_AVG, _PER_FED_AVG = 'FedRep', 'FedAvg', 'Per-FedAvg'
_UNTRAINED = 'Untrained body'
# A smaller change of accuracy passes for none.
_TOLERANCE = 0.01
_FED_PROX = trials.Method('FedProx', 'fed_prox', {'proximal_strength': 0.1})


@dataclasses.dataclass(frozen=True)
class LocalEpochsSizes:
  """Sizes and hyperparameters of `fedrep_local_epochs`.

  Attributes:
    learning_rate: The same for all methods, as is the momentum.
    nums_epochs: Local epochs, smallest first: of FedRep's head (its body has
      one) and of FedAvg.
    num_final_evaluations: Last rounds over which accuracies are averaged.
  """

  dataset: str = 'fashion_mnist'
  partition: str = 'shards:2'
  num_clients: int = 100
  cohort_size: int = 10
  model: str = 'mlp'
  model_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'widths': (128, 64)}
  )
  num_rounds: int = 50
  batch_size: int = 10
  learning_rate: float = 0.01
  momentum: float = 0.5
  nums_epochs: Sequence[int] = (1, 2, 5, 10, 20)
  num_final_evaluations: int = 10
  num_seeds: int = 5


@dataclasses.dataclass(frozen=True)
class NewClientsSizes(LocalEpochsSizes):
  """Sizes and hyperparameters of `fedrep_new_clients`.

  Attributes:
    learning_rate: For training and for a new client's head, as are the momentum
      and the batch size.
    nums_epochs: Epochs of a new client on its head, smallest first.
    num_head_epochs: FedRep's epochs on the head in a round.
    num_epochs: FedRep's epochs on the body in a round, and the other methods'
      on the model.
    num_meta_steps: Per-FedAvg's steps in the place of an epoch, one for each 10
      of a client's 400 examples.
    l2gd_learning_rate: Of L2GD's local steps (the paper: 0.001 on letters).
    classes: Classes of training.
    new_classes: The classes of `new_dataset` that new clients have.
    num_new_client_examples: Training examples of each, at least.
  """

  partition: str = 'shards:5'
  num_clients: int = 150
  cohort_size: int = 15
  num_rounds: int = 60
  nums_epochs: Sequence[int] = (1, 2, 5, 10)
  num_final_evaluations: int = 1
  num_head_epochs: int = 10
  num_epochs: int = 5
  num_meta_steps: int = 40
  l2gd_learning_rate: float = 0.01
  classes: Sequence[int] = tuple(range(10))
  new_dataset: str = 'mnist'
  new_classes: Sequence[int] = tuple(range(10))
  new_client_partition: str = 'shards:5'
  num_new_clients: int = 50
  num_new_client_examples: int = 500


@dataclasses.dataclass(frozen=True)
class TableSizes:
  """Sizes and hyperparameters of a column of table 1.

  Attributes:
    partitions: Partitions of the data by their names in the table.
    num_epochs: Epochs of a round, of FedRep on the body.
    num_head_epochs: FedRep's epochs on the head.
    num_fine_tuning_epochs: Epochs on the head of a global model (+FT).
    num_meta_steps: Per-FedAvg's steps in the place of an epoch, one for each 10
      of a client's 500 examples.
  """

  dataset: str = 'cifar10'
  dataset_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'test_fraction': 0.17}
  )
  augmentation: str = 'crop:4+flip'
  num_clients: int = 100
  cohort_size: int = 10
  partitions: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {'2 classes': 'shards:2'}
  )
  model: str = 'cnn'
  model_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'filters': (8, 16), 'widths': (64,)}
  )
  num_rounds: int = 40
  num_epochs: int = 1
  num_head_epochs: int = 10
  num_fine_tuning_epochs: int = 10
  num_meta_steps: int = 50
  learning_rate: float = 0.01
  momentum: float = 0.5
  batch_size: int = 10
  num_seeds: int = 5


LOCAL_EPOCHS_FAST = LocalEpochsSizes(
  dataset='digits',
  num_clients=20,
  cohort_size=5,
  num_rounds=20,
  learning_rate=0.05,
  nums_epochs=(1, 10),
  num_final_evaluations=3,
  num_seeds=1,
)
NEW_CLIENTS_FAST = NewClientsSizes(
  dataset='digits',
  num_clients=10,
  cohort_size=5,
  num_rounds=30,
  nums_epochs=(2, 10),
  num_meta_steps=4,
  classes=(0, 1, 2, 3, 4, 5, 6),
  new_dataset='digits',
  new_classes=(7, 8, 9),
  new_client_partition='shards:3',
  num_new_clients=4,
  num_new_client_examples=100,
  num_seeds=1,
)
TABLE_FULL = TableSizes()
_FIVE_CLASSES = TableSizes(partitions={'5 classes': 'shards:5'}, num_epochs=5)
TABLE_FAST = dataclasses.replace(
  TABLE_FULL,
  dataset='digits',
  augmentation='crop:1',
  num_clients=8,
  cohort_size=3,
  model_arguments={'filters': 2, 'widths': (4,)},
  num_rounds=2,
  num_head_epochs=1,
  num_fine_tuning_epochs=1,
  num_meta_steps=2,
  num_seeds=1,
)


def _per_fed_avg(
  name: str, sizes: Union[NewClientsSizes, TableSizes]
) -> trials.Method:
  hparams = {
    'variant': 'hessian_free',
    'num_steps': sizes.num_epochs * sizes.num_meta_steps,
    # The support set and the target set.
    'inner_batch_size': 8,
    'batch_size': 2,
    'curvature_batch_size': 8,
    'inner_learning_rate': 1e-4,
  }
  return trials.Method(name, 'per_fed_avg', hparams)


def _l2gd(
  sizes: Union[NewClientsSizes, TableSizes], learning_rate: float
) -> trials.Method:
  """L2GD with a learning rate of its local steps."""
  local_share = 0.1  # Of its rounds.
  settings = {
    'aggregation_probability': 1 - local_share,
    'learning_rate': local_share * learning_rate,
    'coupling_strength': 0.5 * (1 - local_share) / local_share,
    'cohort_size': sizes.num_clients,
  }
  return trials.Method('L2GD', 'l2gd', settings)


def _train(
  context: trials.Context,
  compared: Mapping[Hashable, Sequence[trials.Method]],
  **settings: Any,
) -> Iterator[trials.Result]:
  """Runs methods with all seeds, by condition."""
  return context.run(
    {name: trials.Condition(several) for name, several in compared.items()},
    client_weighting='uniform',
    **settings,
  )


def measure_local_epochs(context: trials.Context) -> paper.Rows:
  """Accuracies by the number of local epochs."""
  compared = {
    n: [
      trials.Method(
        _FED_REP, 'fed_rep', {'num_head_epochs': n, 'num_body_epochs': 1}
      ),
      trials.Method(_FED_AVG, 'fed_avg', {'num_epochs': n}),
    ]
    for n in context.sizes.nums_epochs
  }
  for result in _train(context, compared):
    last = result.run.evaluations[-context.sizes.num_final_evaluations :]
    yield {
      'method': result.method,
      'num_epochs': result.condition,
      'seed': result.seed,
      'accuracy': np.mean([row['personal']['accuracy'] for row in last]),
    }


def make_local_epochs_claims(
  table: paper.Table, sizes: LocalEpochsSizes
) -> paper.Claims:
  """Claims of figure 5 on more local epochs, and on the two methods."""

  def accuracy(method, num_epochs):
    return table.values('accuracy', method=method, num_epochs=num_epochs)

  fewest, *_, most = sizes.nums_epochs
  for fewer, more in zip(sizes.nums_epochs, sizes.nums_epochs[1:]):
    yield claims.difference(
      f'{more} local epochs of the head do not hurt FedRep: its accuracy less'
      f' that with {fewer}',
      _LOCAL_EPOCHS_FIGURE,
      accuracy(_FED_REP, more) - accuracy(_FED_REP, fewer),
      above=-_TOLERANCE,
    )
  yield claims.difference(
    'FedAvg does not gain from more local epochs: its accuracy with'
    f' {most} less that with {fewest}',
    _LOCAL_EPOCHS_FIGURE,
    accuracy(_FED_AVG, most) - accuracy(_FED_AVG, fewest),
    below=_TOLERANCE,
  )
  for num_epochs in sizes.nums_epochs:
    yield claims.difference(
      f'FedRep with {most} local epochs of the head is more accurate than'
      f' FedAvg with {num_epochs}',
      _LOCAL_EPOCHS_FIGURE,
      accuracy(_FED_REP, most) - accuracy(_FED_AVG, num_epochs),
    )


def measure_new_clients(context: trials.Context) -> paper.Rows:
  """New clients' accuracies by the body's method and the number of epochs."""
  sizes = context.sizes
  compared = (
    trials.Method(_FED_REP, 'fed_rep'),
    trials.Method(_FED_AVG, 'fed_avg'),
    _FED_PROX,
    _per_fed_avg(_PER_FED_AVG, sizes),
    trials.Method('LG-FedAvg', 'lg_fed_avg'),
    _l2gd(sizes, sizes.l2gd_learning_rate),
  )
  runs = {
    (result.method, result.seed): result.run
    for result in _train(
      context, {'': compared}, dataset_arguments={'classes': sizes.classes}
    )
  }
  new = context.load_arrays(sizes.new_dataset).class_subset(sizes.new_classes)
  for seed in context.progress(context.seeds):
    clients = _new_clients(new, sizes, seed)
    with context.create_runtime() as runtime:
      bodies = {}
      for name in (method.name for method in compared):
        bodies[name] = _body(runs[name, seed].open(), runtime)
      bodies[_UNTRAINED] = {}
      # New clients train the head that FedAvg began with on methods' bodies.
      run = runs[_FED_AVG, seed].open()
      for num_epochs in sizes.nums_epochs:
        process = run.build_process(
          dataclasses.replace(
            run.settings.process.personalization,
            fine_tune='head',
            num_epochs=num_epochs,
          )
        )
        state = runtime.run(process.initialize)
        initial = state.global_weights
        for name, body in bodies.items():
          weights = split_model.select({**initial, **body}, initial)
          scores = evaluation.evaluate(
            process,
            runtime,
            state._replace(global_weights=weights),
            evaluation.new_states(process, runtime, sizes.num_clients),
            clients,
          )
          accuracies = [row['after']['accuracy'] for row in scores.rows]
          yield {
            'seed': seed,
            'method': name,
            'num_epochs': num_epochs,
            'accuracy': np.mean(accuracies),
          }


def _body(
  run: pfl.Run, runtime: runtime_base.Runtime
) -> Mapping[str, np.ndarray]:
  """The server's body, or the mean of clients' where it has none."""
  names = run.model.weight_names(run.model.body_layers)
  weights = run.global_weights(runtime)
  if set(names) <= set(weights):
    return split_model.select(weights, names)
  clients = [run.personal_weights(i, runtime) for i in run.data.client_ids]
  return {n: np.mean([c[n] for c in clients], axis=0) for n in names}


def _new_clients(
  arrays: datasets.Arrays, sizes: NewClientsSizes, seed: int
) -> pfl.FederatedDataset:
  """Clients of `num_new_client_examples`, or a few more, each."""
  clients = arrays.to_clients(
    len(arrays.y) // sizes.num_new_client_examples,
    sizes.new_client_partition,
    seed=seed,
  )
  return clients.subset(clients.client_ids[: sizes.num_new_clients])


def make_new_clients_claims(
  table: paper.Table, sizes: NewClientsSizes
) -> paper.Claims:
  """Claims of figure 6 on the order of the methods."""
  bodies = table.distinct('method')
  for other in [n for n in bodies if n not in (_FED_REP, _UNTRAINED)]:
    for num_epochs in sizes.nums_epochs:
      yield claims.difference(
        f"New clients learn their classes better on FedRep's body than on"
        f" {other}'s, in {num_epochs} epoch{'s' * (num_epochs > 1)}",
        _NEW_CLIENTS_FIGURE,
        table.lead('accuracy', _FED_REP, other, num_epochs=num_epochs),
      )


def _with_tuned_head(method):
  """A method whose global model's head clients fine-tune, too."""
  return method._replace(
    fine_tuned=f'{method.name} + FT', fine_tuned_scope='head'
  )


def _compared(sizes: TableSizes) -> Sequence[trials.Method]:
  """The methods of the table, with their own strengths."""
  return (
    trials.Method('Local Only', 'local_only'),
    _with_tuned_head(trials.Method(_FED_AVG, 'fed_avg')),
    _with_tuned_head(_FED_PROX),
    # Its control variates are those of plain SGD.
    _with_tuned_head(trials.Method('SCAFFOLD', 'scaffold', {'momentum': 0.0})),
    trials.Method('Fed-MTL', 'fed_mtl'),
    _per_fed_avg(f'{_PER_FED_AVG}, one step', sizes)._replace(
      fine_tuned=_PER_FED_AVG, fine_tuned_scope='trained'
    ),
    # All but the convolutions.
    trials.Method('LG-FedAvg', 'lg_fed_avg', {'global_depth': 2}),
    _l2gd(sizes, sizes.learning_rate),
    trials.Method('APFL', 'apfl', {'mixing_weight': 0.75}),
    trials.Method('Ditto', 'ditto', {'proximal_strength': 1.0}),
    trials.Method('FedPer', 'fed_per'),
    trials.Method(_FED_REP, 'fed_rep'),
  )


def measure_table(context: trials.Context) -> paper.Rows:
  """The accuracies of all methods, beside the published ones."""
  sizes = context.sizes
  conditions = {
    name: trials.Condition(_compared(sizes), {'partition': partition})
    for name, partition in sizes.partitions.items()
  }
  for result in context.run(
    conditions,
    client_weighting='uniform',
    fine_tune_num_epochs=sizes.num_fine_tuning_epochs,
  ):
    yield {
      **result.columns(),
      'accuracy': result.accuracy(),
      'published': published.value(
        'FedRep',
        result.method,
        sizes.dataset,
        sizes.num_clients,
        sizes.partitions[result.condition],
      ),
    }


def make_table_claims(table: paper.Table, sizes: TableSizes) -> paper.Claims:
  """Claims that FedRep is the best of each column, or close to it."""
  others = [name for name in table.distinct('method') if name != _FED_REP]
  return claims.more_accurate(
    table,
    _TABLE,
    [(_FED_REP, other) for other in others],
    partition=sizes.partitions,
  )


_table_experiment = functools.partial(
  paper.Experiment,
  paper=_TABLE,
  measure=measure_table,
  claims=make_table_claims,
  draw=panels.accuracy_bars(by='partition', width=14),
  fast=TABLE_FAST,
)
EXPERIMENTS = (
  paper.Experiment(
    name='fedrep_local_epochs',
    summary="more local epochs of the head never hurt FedRep's accuracy",
    paper=_LOCAL_EPOCHS_FIGURE,
    measure=measure_local_epochs,
    claims=make_local_epochs_claims,
    draw=panels.curves(
      'accuracy',
      over='num_epochs',
      x_label='Local epochs (FedRep: of the head)',
      y_label='Mean test accuracy of the clients',
    ),
    full={
      name: LocalEpochsSizes(dataset=name)
      for name in ('fashion_mnist', 'mnist', 'cifar10')
    },
    fast=LOCAL_EPOCHS_FAST,
  ),
  paper.Experiment(
    name='fedrep_new_clients',
    summary="FedRep's body serves new clients with new classes best",
    paper=_NEW_CLIENTS_FIGURE,
    measure=measure_new_clients,
    claims=make_new_clients_claims,
    draw=panels.curves(
      'accuracy',
      over='num_epochs',
      x_label='Epochs on the head of a new client',
      y_label='Mean test accuracy of the new clients',
    ),
    full={
      'fashion_mnist': NewClientsSizes(),
      'mnist': NewClientsSizes('mnist', new_dataset='fashion_mnist'),
    },
    fast=NEW_CLIENTS_FAST,
  ),
  _table_experiment(
    name='fedrep_table_1',
    summary='FedRep and 14 others on CIFAR-10 with 2 classes a client',
    full={'cifar10': TABLE_FULL},
  ),
  _table_experiment(
    name='fedrep_table_1_5_classes',
    summary='The same with 5 classes a client',
    full={'cifar10': _FIVE_CLASSES},
  ),
)
