"""FedAvg against D-SGD on images: the effect of local steps on representations.

D-SGD is FedAvg with one local step in a round (tau = 1). Both have the same
clients, cohort size, batch size, learning rate, initial weights and total
number of local updates of a client that always takes part, so that D-SGD has
tau times as many rounds.

* `fedavg_cosine`: similarity of features within and between classes, for
  several tau.
* `fedavg_new_classes`: accuracy on new clients after fine-tuning on a few
  examples of classes, or of a data set, that were not in training.
* `fedavg_cka`: similarity of each layer before and after fine-tuning on a new
  client.

Deviations from the paper: its data sets are CIFAR-10 and CIFAR-100 and its
network has nine layers with weights, of which six are convolutions. Here the
data are Fashion-MNIST, with MNIST as the other data set, and the layers are
dense, to spare time on a CPU; in place of figure 2's CIFAR-10 after CIFAR-100
clients fine-tune on classes that the training did not have. The text names
neither the learning rate nor the batch size. Error bars are over the means of
trials, not over all new clients of all trials.

What comes out is in docs/results/fedavg_fine_tuning.md.

References:
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, section 5 and appendix C.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from matplotlib.figure import Figure
from sklearn import metrics

import tff_pfl as pfl
from tff_pfl import datasets
from tff_pfl.runs import evaluation
from tff_pfl.runtime import base as runtime_base

from . import representation
from .engine import claims, panels, paper, trials

_PAPER = 'FedAvg with fine-tuning'
_D_SGD = 'D-SGD'
# The paper's "close to 1" and "close to 0" of a cosine similarity.
_ALIKE, _DISSIMILAR = 0.8, 0.2


def _layers(number):
  return {'widths': (64,) * number, 'initialization': 'fan_in'}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters of training, for all three experiments.

  Attributes:
    nums_local_steps: Local steps in a round (tau), increasing: D-SGD's, which
      is 1, and FedAvg's.
    num_rounds: Rounds of D-SGD, a multiple of each of `nums_local_steps`.
    learning_rate: Rate of local training and, as in equation 4, of fine-tuning
      (alpha); both have the batch size and the momentum, too.
  """

  dataset: str = 'fashion_mnist'
  num_clients: int = 80
  partition: str = 'shards:3'
  cohort_size: int = 10
  model: str = 'mlp'
  model_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: _layers(6)
  )
  nums_local_steps: Sequence[int] = (1, 50)
  num_rounds: int = 2500
  learning_rate: float = 0.05
  momentum: float = 0.0
  batch_size: int = 10
  num_seeds: int = 5


@dataclasses.dataclass(frozen=True)
class NewClientSizes(Sizes):
  """Sizes and hyperparameters of experiments with new clients.

  Attributes:
    old_classes: Classes of training.
    new_classes: Classes of the new clients.
    num_new_clients: New clients for each seed.
    num_fine_tuning_epochs: Epochs of fine-tuning all weights; 10 in the paper.
  """

  old_classes: Sequence[int] = (0, 1, 2, 3, 4, 5, 6)
  new_classes: Sequence[int] = (7, 8, 9)
  num_new_clients: int = 5
  num_fine_tuning_epochs: int = 10


@dataclasses.dataclass(frozen=True)
class NewClassesSizes(NewClientSizes):
  """Sizes and hyperparameters of `fedavg_new_classes`.

  Attributes:
    nums_examples: Examples that a new client is fine-tuned on, of new classes.
    new_dataset: Another data set with images of the same shape, if any, for
      clients of all its classes, to models of all classes.
    nums_examples_elsewhere: Examples of that data set.
  """

  model_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: _layers(5)
  )
  learning_rate: float = 0.1
  nums_examples: Sequence[int] = (20, 50, 100, 200, 500)
  new_dataset: Optional[str] = 'mnist'
  nums_examples_elsewhere: Sequence[int] = (50, 100, 200, 500, 1000)


@dataclasses.dataclass(frozen=True)
class CkaSizes(NewClientSizes):
  """Sizes and hyperparameters of `fedavg_cka`.

  Attributes:
    num_examples: Examples that a new client is fine-tuned on.
    new_dataset: Another data set with images of the same shape, if any, for
      clients of all its classes instead, to models of all classes.
  """

  num_examples: int = 2000
  new_dataset: Optional[str] = None


# The digits are few and small: there are fewer clients and fewer updates.
_FAST = dict(
  dataset='digits',
  num_clients=20,
  cohort_size=5,
  num_rounds=400,
  learning_rate=0.1,
  num_seeds=1,
)
_COSINE = dict(
  num_clients=100,
  partition='dirichlet:0.6',
  model_arguments=_layers(4),
  nums_local_steps=(1, 10, 50),
)
COSINE_FAST = Sizes(**{**_COSINE, **_FAST})
NEW_CLASSES_FAST = NewClassesSizes(
  **_FAST, num_new_clients=2, nums_examples=(20, 50, 100, 200), new_dataset=None
)
CKA_FAST = CkaSizes(
  **_FAST, model_arguments=_layers(4), num_new_clients=2, num_examples=200
)


def _method(num_local_steps: int) -> str:
  """The name of FedAvg with a number of local steps."""
  return _D_SGD if num_local_steps == 1 else f'FedAvg, τ = {num_local_steps}'


def _train(
  context: trials.Context, classes: Optional[Sequence[int]] = None
) -> Iterator[tuple[Mapping[str, Any], pfl.Run, runtime_base.Runtime]]:
  """Trains on some classes, or all, with numbers of local steps and all seeds.

  Yields:
    Of each run the columns of a table that name it, the run itself, open, and a
    runtime for what is done with it.
  """
  sizes = context.sizes
  part = 'all' if classes is None else 'old'
  conditions = {
    f'{steps}_steps_{part}_classes': trials.Condition(
      [trials.Method('FedAvg', 'fed_avg', {'num_steps': steps})],
      {'num_rounds': sizes.num_rounds // steps},
    )
    for steps in sizes.nums_local_steps
  }
  results = context.run(
    conditions,
    dataset_arguments={'classes': classes},
    client_weighting='uniform',
    num_final_evaluations=1,
  )
  for result in context.progress(results):
    columns = {
      'method': _method(result.settings['num_steps']),
      'seed': result.seed,
      'training_accuracy': result.run.evaluations[-1]['global']['accuracy'],
    }
    run = result.run.open()
    with context.create_runtime() as runtime:
      yield columns, run, runtime


def measure_cosine(context: trials.Context) -> paper.Rows:
  """The similarity of each two classes' features, and the model's accuracy."""
  arrays = context.load_arrays(context.sizes.dataset)
  images = trials.test_images(arrays)
  for columns, run, runtime in _train(context):
    features = representation.body_features(
      run.model, run.global_weights(runtime), images
    )
    similarities = representation.class_cosine_similarity(
      features, arrays.y_test, arrays.num_classes
    )
    for (a, b), similarity in np.ndenumerate(similarities):
      yield {**columns, 'class_a': a, 'class_b': b, 'cosine': similarity}


def _matrices(table: paper.Table, num_local_steps: int) -> np.ndarray:
  """Classes' similarities, `[num_seeds, num_classes, num_classes]`."""
  table = table.where(method=_method(num_local_steps))
  rows = [
    table.curve('cosine', 'class_b', class_a=a)
    for a in table.distinct('class_a')
  ]
  return np.stack(rows, axis=1)


def make_cosine_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Figure 4's matrices: light on FedAvg's diagonal and dark elsewhere."""
  figure = f'{_PAPER}, figure 4'
  within, between = {}, {}
  for steps in sizes.nums_local_steps:
    matrices = _matrices(table, steps)
    same = np.eye(matrices.shape[-1], dtype=bool)
    within[steps] = np.nanmean(matrices[:, same], axis=1)
    between[steps] = np.nanmean(matrices[:, ~same], axis=1)
  first, *others = sizes.nums_local_steps
  most = others[-1]
  yield claims.measured(
    f'Features of one class are alike with {most} local steps: mean cosine'
    ' similarity',
    figure,
    within[most],
    above=_ALIKE,
  )
  for statement, values in (
    (f'Features of two classes with {most} local steps', between[most]),
    (
      "All of D-SGD's features, those of one class too,",
      np.maximum(within[first], between[first]),
    ),
  ):
    yield claims.measured(
      f'{statement} are dissimilar: mean cosine similarity',
      figure,
      values,
      below=_DISSIMILAR,
    )
  comparisons = [(steps, first) for steps in others]
  for more, fewer in [*comparisons, *zip(others[1:], others)]:
    gaps = [within[steps] - between[steps] for steps in (more, fewer)]
    yield claims.difference(
      f'{_method(more)} tells classes apart better than {_method(fewer)}:'
      ' similarity within classes less that between them',
      figure,
      gaps[0] - gaps[1],
    )


def draw_cosine(table: paper.Table, sizes: Sizes, figure: Figure) -> None:
  """A matrix of similarities for each number of local steps."""
  nums_steps = sizes.nums_local_steps
  figure.set_size_inches(4.6 * len(nums_steps), 4.2)
  all_axes = figure.subplots(1, len(nums_steps), squeeze=False)[0]
  for axes, steps in zip(all_axes, nums_steps):
    # The one heat map with numbers of our libraries.
    metrics.ConfusionMatrixDisplay(
      np.ma.masked_invalid(_matrices(table, steps).mean(axis=0)),
      display_labels=table.distinct('class_a'),
    ).plot(
      ax=axes,
      cmap='cividis',
      values_format='.2f',
      im_kw={'vmin': 0, 'vmax': 1},
      text_kw={'fontsize': 'x-small'},
    )
    axes.set(xlabel='', ylabel='')
    axes.set_title(_method(steps), loc='left')


def _old_and_new(
  context: trials.Context, new_dataset: Optional[str]
) -> tuple[Optional[Sequence[int]], datasets.Arrays]:
  """The classes of training, None for all, and the images of new clients."""
  sizes = context.sizes
  if new_dataset is not None:
    return None, context.load_arrays(new_dataset)
  arrays = context.load_arrays(sizes.dataset)
  return sizes.old_classes, arrays.class_subset(sizes.new_classes)


def _new_clients(
  run: pfl.Run, arrays: datasets.Arrays, sizes: NewClientSizes
) -> tuple[pfl.FederatedDataset, pfl.Personalization]:
  """A run's new clients, who share all examples, and their fine-tuning."""
  return (
    arrays.to_clients(sizes.num_new_clients, 'iid', seed=run.settings.seed),
    dataclasses.replace(
      run.settings.process.personalization,
      fine_tune='all',
      num_epochs=sizes.num_fine_tuning_epochs,
    ),
  )


def measure_new_classes(context: trials.Context) -> paper.Rows:
  """Mean accuracies of new clients after fine-tuning."""
  sizes = context.sizes
  kinds = {f'new classes of {sizes.dataset}': (None, sizes.nums_examples)}
  if sizes.new_dataset is not None:
    kinds[sizes.new_dataset] = sizes.new_dataset, sizes.nums_examples_elsewhere
  for kind, (new_dataset, nums_examples) in kinds.items():
    old_classes, arrays = _old_and_new(context, new_dataset)
    runs = _train(context, old_classes)
    for columns, run, runtime in runs:
      clients, fine_tuning = _new_clients(run, arrays, sizes)
      for num_examples in nums_examples:
        scores = evaluation.score(
          run, clients, fine_tuning, runtime, num_samples=num_examples
        )
        yield {
          **columns,
          'new_clients': kind,
          'num_examples': num_examples,
          'accuracy': np.mean([row['after']['accuracy'] for row in scores]),
        }


def make_new_classes_claims(
  table: paper.Table, sizes: NewClassesSizes
) -> paper.Claims:
  """FedAvg's lead for any number of examples, in both panels."""
  fed_avg = _method(sizes.nums_local_steps[-1])
  for panel, kind in zip(('left', 'right'), table.distinct('new_clients')):
    for num in table.distinct('num_examples', new_clients=kind):
      yield claims.difference(
        f'Fine-tuned on {num} examples of {kind}, FedAvg is more accurate than'
        ' D-SGD',
        f'{_PAPER}, figure 5, {panel}',
        table.lead(
          'accuracy', fed_avg, _D_SGD, new_clients=kind, num_examples=num
        ),
      )


def measure_cka(context: trials.Context) -> paper.Rows:
  """The similarity of layers before and after fine-tuning, over new clients."""
  sizes = context.sizes
  old_classes, arrays = _old_and_new(context, sizes.new_dataset)
  images = trials.test_images(arrays)
  runs = _train(context, old_classes)
  for columns, run, runtime in runs:
    clients, fine_tuning = _new_clients(run, arrays, sizes)
    models = evaluation.personalize(
      run, clients, fine_tuning, runtime, num_samples=sizes.num_examples
    )
    before = run.global_weights(runtime)
    similarities = [
      representation.layer_cka(run.model, before, after, images)
      for after in models.values()
    ]
    for layer in run.model.layers:
      cka = np.mean([similarity[layer] for similarity in similarities])
      yield {**columns, 'layer': layer, 'cka': cka}


def make_cka_claims(table: paper.Table, sizes: CkaSizes) -> paper.Claims:
  """Figure 2: the layers before the head, and the first half of these."""
  figure = f'{_PAPER}, figure 2'
  fed_avg = _method(sizes.nums_local_steps[-1])
  # The last layer is the head.
  body = table.distinct('layer')[:-1]
  early = body[: len(body) // 2]

  def mean_cka(method, layers):
    values = [table.values('cka', method=method, layer=n) for n in layers]
    return np.mean(values, axis=0)

  yield claims.measured(
    f"Fine-tuning leaves FedAvg's first {len(early)} layers alike: mean CKA",
    figure,
    mean_cka(fed_avg, early),
    above=_ALIKE,
  )
  for name, layers in (
    ('representation', body),
    (f'first {len(early)} layers', early),
  ):
    yield claims.difference(
      f"Fine-tuning leaves more of FedAvg's {name} than of D-SGD's: mean CKA",
      figure,
      mean_cka(fed_avg, layers) - mean_cka(_D_SGD, layers),
    )


# The first is the experiments' own.
_OTHER_DATASETS = {
  'fashion_mnist': 'mnist',
  'mnist': 'fashion_mnist',
  'cifar10': None,
}
EXPERIMENTS = (
  paper.Experiment(
    name='fedavg_cosine',
    summary='local updates make features of different classes less alike',
    paper=f'{_PAPER}, figure 4',
    measure=measure_cosine,
    claims=make_cosine_claims,
    draw=draw_cosine,
    full={name: Sizes(dataset=name, **_COSINE) for name in _OTHER_DATASETS},
    fast=COSINE_FAST,
    first_seed=5,
  ),
  paper.Experiment(
    name='fedavg_new_classes',
    summary='FedAvg, fine-tuned on new classes, beats D-SGD',
    paper=f'{_PAPER}, figure 5',
    measure=measure_new_classes,
    claims=make_new_classes_claims,
    draw=panels.curves(
      'accuracy',
      over='num_examples',
      x_label='Examples of a new client',
      y_label='Accuracy after fine-tuning',
      log_x=True,
      panel='new_clients',
      title='Clients of {}'.format,
    ),
    full={
      name: NewClassesSizes(dataset=name, new_dataset=other)
      for name, other in _OTHER_DATASETS.items()
    },
    fast=NEW_CLASSES_FAST,
    first_seed=5,
  ),
  paper.Experiment(
    name='fedavg_cka',
    summary="fine-tuning leaves more of FedAvg's layers than of D-SGD's",
    paper=f'{_PAPER}, figure 2',
    measure=measure_cka,
    claims=make_cka_claims,
    draw=panels.bars(
      'cka', group='layer', y_label='CKA before and after fine-tuning'
    ),
    full={name: CkaSizes(dataset=name) for name in _OTHER_DATASETS},
    fast=CKA_FAST,
    first_seed=5,
  ),
)
