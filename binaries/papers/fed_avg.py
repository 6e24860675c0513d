"""FedAvg with fine-tuning: the effect of local steps on representations.

On images D-SGD is FedAvg with one local step in a round (tau = 1). Both have
the same clients, cohort size, batch size, learning rate, initial weights and
total number of local updates of a client that always takes part, so that D-SGD
has tau times as many rounds. In the linear studies (`linear.fed_avg`) both have
the same number of rounds.

* `fedavg_linear_representation`: distance of the learned representation from
  the ground truth, and norm of the global loss's gradient, by round.
* `fedavg_linear_new_client`: error of a new client after fine-tuning the linear
  model on few samples.
* `fedavg_cosine`: similarity of features within and between classes, for
  several tau.
* `fedavg_new_classes`: accuracy on new clients after fine-tuning on a few
  examples of classes, or of a data set, that were not in training.
* `fedavg_cka`: similarity of each layer before and after fine-tuning on a new
  client.

What comes out is in docs/results/fedavg_fine_tuning.md.

References:
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, section 5 and appendix C.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from matplotlib.figure import Figure
from sklearn import metrics

import tff_pfl as pfl
from tff_pfl import datasets
from tff_pfl.runs import evaluation
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import claims, measures, panels
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Method, Study

from . import representation
from .linear import fed_avg as linear

_D_SGD = 'D-SGD'
# Local updates of a client that is in every round.
_NUM_UPDATES = 2500
# The paper's "close to 1" and "close to 0" of a cosine similarity.
_ALIKE, _DISSIMILAR = 0.8, 0.2


@dataclasses.dataclass(frozen=True)
class NewClients:
  """Clients that a trained model is fine-tuned on.

  Attributes:
    dataset: Data of the clients, who share all its examples.
    nums_examples: Numbers of examples that a client is fine-tuned on.
    classes: Classes of the clients; None for all.
  """

  dataset: str
  nums_examples: Sequence[int]
  classes: Optional[Sequence[int]] = None


@dataclasses.dataclass(frozen=True)
class Parameters:
  """Sizes of studies with new clients.

  Attributes:
    new_clients: The new clients by condition.
    new_clients_per_seed: New clients for each seed.
    num_fine_tuning_epochs: Epochs of fine-tuning all weights.
  """

  new_clients: Mapping[str, NewClients]
  new_clients_per_seed: int = 5
  num_fine_tuning_epochs: int = 10


def _runs(
  context: measures.Context,
) -> Iterator[tuple[dict[str, Any], pfl.Run, runtime_base.Runtime]]:
  """Trains, with numbers of local steps and all seeds.

  Yields:
    Of each run the columns of the numbers that name it, the run itself, open,
    and a runtime for what is done with it.
  """
  for result in context.progress(context.run()):
    accuracy = result.run.evaluations[-1]['global']['accuracy']
    columns = {**result.columns(), 'training_accuracy': accuracy}
    with context.create_runtime() as runtime:
      yield columns, result.open(), runtime


def measure_cosine(context: measures.Context) -> measures.Rows:
  """The similarity of each two classes' features, and the model's accuracy."""
  for columns, run, runtime in _runs(context):
    arrays = context.load_arrays(run.settings.data.name)
    similarities = representation.class_cosine_similarity(
      representation.body_features(
        run.model, run.global_weights(runtime), measures.test_images(arrays)
      ),
      arrays.y_test,
      arrays.num_classes,
    )
    for (a, b), similarity in np.ndenumerate(similarities):
      yield {**columns, 'class_a': a, 'class_b': b, 'cosine': similarity}


def _matrices(numbers: Numbers, method: str) -> np.ndarray:
  """Classes' similarities, `[num_seeds, num_classes, num_classes]`."""
  numbers = numbers.where(method=method)
  rows = [
    numbers.curve('cosine', 'class_b', class_a=a)
    for a in numbers.distinct('class_a')
  ]
  return np.stack(rows, axis=1)


def cosine_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Figure 4's matrices: light on FedAvg's diagonal and dark elsewhere."""
  within, between = {}, {}
  for method in numbers.distinct('method'):
    matrices = _matrices(numbers, method)
    same = np.eye(matrices.shape[-1], dtype=bool)
    within[method] = np.nanmean(matrices[:, same], axis=1)
    between[method] = np.nanmean(matrices[:, ~same], axis=1)
  others = [method for method in within if method != _D_SGD]
  for most in others[-1:]:
    steps = study.methods[most].settings['num_steps']
    yield claims.measured(
      f'Features of one class are alike with {steps} local steps: mean cosine'
      ' similarity',
      study.source,
      within[most],
      above=_ALIKE,
    )
    yield claims.measured(
      f'Features of two classes with {steps} local steps are dissimilar: mean'
      ' cosine similarity',
      study.source,
      between[most],
      below=_DISSIMILAR,
    )
  comparisons = list(zip(others[1:], others))
  if _D_SGD in within:
    yield claims.measured(
      "All of D-SGD's features, those of one class too, are dissimilar: mean"
      ' cosine similarity',
      study.source,
      np.maximum(within[_D_SGD], between[_D_SGD]),
      below=_DISSIMILAR,
    )
    comparisons = [*((method, _D_SGD) for method in others), *comparisons]
  for more, fewer in comparisons:
    gaps = [within[method] - between[method] for method in (more, fewer)]
    yield claims.difference(
      f'{more} tells classes apart better than {fewer}: similarity within'
      ' classes less that between them',
      study.source,
      gaps[0] - gaps[1],
    )


def draw_cosine(numbers: Numbers, study: Study, figure: Figure) -> None:
  """A matrix of similarities for each number of local steps."""
  methods = numbers.distinct('method')
  figure.set_size_inches(4.6 * len(methods), 4.2)
  all_axes = figure.subplots(1, len(methods), squeeze=False)[0]
  for axes, method in zip(all_axes, methods):
    # The one heat map with numbers of our libraries.
    metrics.ConfusionMatrixDisplay(
      np.ma.masked_invalid(_matrices(numbers, method).mean(axis=0)),
      display_labels=numbers.distinct('class_a'),
    ).plot(
      ax=axes,
      cmap='cividis',
      values_format='.2f',
      im_kw={'vmin': 0, 'vmax': 1},
      text_kw={'fontsize': 'x-small'},
    )
    axes.set(xlabel='', ylabel='')
    axes.set_title(method, loc='left')


def _fits(
  context: measures.Context,
) -> Iterator[tuple[dict[str, Any], datasets.Arrays, dict[str, Any]]]:
  """Trains; fits new clients' models, with each number of examples.

  Yields:
    Of each fit the columns that name it, all examples of the new clients, who
    share them, and arguments for `evaluation.score` and `personalize`.
  """
  parameters = context.parameters
  load = functools.cache(context.load_arrays)
  for columns, run, runtime in _runs(context):
    new = parameters.new_clients[columns['condition']]
    arrays = load(new.dataset)
    if new.classes is not None:
      arrays = arrays.class_subset(new.classes)
    fit = {
      'run': run,
      'clients': arrays.to_clients(
        parameters.new_clients_per_seed, 'iid', seed=run.settings.seed
      ),
      'personalization': dataclasses.replace(
        run.settings.process.personalization,
        fine_tune='all',
        num_epochs=parameters.num_fine_tuning_epochs,
      ),
      'runtime': runtime,
    }
    for num in new.nums_examples:
      yield (
        {**columns, 'num_examples': num},
        arrays,
        {**fit, 'num_samples': num},
      )


def measure_new_classes(context: measures.Context) -> measures.Rows:
  """Mean accuracies of new clients after fine-tuning."""
  for columns, _, fit in _fits(context):
    after = [row['after']['accuracy'] for row in evaluation.score(**fit)]
    yield {**columns, 'accuracy': np.mean(after)}


def new_classes_claims(
  numbers: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """FedAvg's lead for any number of examples, in both panels."""
  most = list(study.methods)[-1]
  if {_D_SGD, most} - {*numbers.distinct('method')}:
    return
  for condition in numbers.distinct('condition'):
    new = study.parameters.new_clients[condition]
    panel = 'right' if new.classes is None else 'left'
    for num in numbers.distinct('num_examples', condition=condition):
      where = {'condition': condition, 'num_examples': num}
      yield claims.difference(
        f'Fine-tuned on {num} examples of {condition}, FedAvg is more accurate'
        ' than D-SGD',
        f'{study.source}, {panel}',
        numbers.lead('accuracy', most, _D_SGD, **where),
      )


def measure_cka(context: measures.Context) -> measures.Rows:
  """The similarity of layers before and after fine-tuning, over new clients."""
  for columns, arrays, fit in _fits(context):
    run, images = fit['run'], measures.test_images(arrays)
    before = run.global_weights(fit['runtime'])
    similarities = [
      representation.layer_cka(run.model, before, after, images)
      for after in evaluation.personalize(**fit).values()
    ]
    for layer in run.model.layers:
      cka = np.mean([similarity[layer] for similarity in similarities])
      yield {**columns, 'layer': layer, 'cka': cka}


def cka_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Figure 2: the layers before the head, and the first half of these."""
  most = list(study.methods)[-1]
  known = numbers.distinct('method')
  # The last layer is the head.
  body = numbers.distinct('layer')[:-1]
  early = body[: len(body) // 2]

  def mean_cka(method, layers):
    values = [numbers.values('cka', method=method, layer=n) for n in layers]
    return np.mean(values, axis=0)

  if most in known:
    yield claims.measured(
      f"Fine-tuning leaves FedAvg's first {len(early)} layers alike: mean CKA",
      study.source,
      mean_cka(most, early),
      above=_ALIKE,
    )
  if {_D_SGD, most} <= {*known}:
    for name, layers in (
      ('representation', body),
      (f'first {len(early)} layers', early),
    ):
      yield claims.difference(
        f"Fine-tuning leaves more of FedAvg's {name} than of D-SGD's: mean CKA",
        study.source,
        mean_cka(most, layers) - mean_cka(_D_SGD, layers),
      )


def _methods(*nums_local_steps):
  """FedAvg by number of local steps, with the same number of updates."""
  return {
    _D_SGD if steps == 1 else f'FedAvg, τ = {steps}': Method(
      'fed_avg', num_steps=steps, num_rounds=_NUM_UPDATES // steps
    )
    for steps in nums_local_steps
  }


def _layers(number):
  """A network of dense layers."""
  arguments = {'widths': (64,) * number, 'initialization': 'fan_in'}
  return {'model': 'mlp', 'model_arguments': arguments}


# Fine-tuning has the options of training, as in the paper's equation 4.
_TRAINING = dict(
  dataset='fashion_mnist',
  num_clients=80,
  partition='shards:3',
  cohort_size=10,
  learning_rate=0.05,
  fine_tune_learning_rate=0.05,
  momentum=0.0,
  fine_tune_momentum=0.0,
  batch_size=10,
  fine_tune_batch_size=10,
  client_weighting='uniform',
  # The first and the last rounds alone.
  rounds_per_evaluation=10**6,
  num_final_evaluations=1,
)
_PAPERS_NETWORK = dict(
  model='cnn',
  model_arguments=dict(
    filters=(32, 64, 128, 128, 256, 256),
    convolutions_per_pooling=2,
    kernel_size=3,
    padding='same',
    widths=(1024, 512),
  ),
)
_CIFAR100 = dict(_PAPERS_NETWORK, dataset='cifar100', partition='shards:5')
_SMALL_LINEAR = dict(num_clients=20, dimension=20, rank=2, seeds=[0])
_SMALL = dict(
  dataset='digits',
  num_clients=8,
  cohort_size=2,
  num_rounds=2,
  seeds=[0],
  **_layers(2),
)
_DEVIATIONS = """The paper's network has three blocks of two convolutions and
three dense layers. Their channels and units are not legible in our copy, so
those of the scale `paper` are ours. So are the learning rate, batches of 10,
ten clients a round, 2,500 local steps in all, and the numbers of local steps.
The scale `cpu` has Fashion-MNIST and dense layers, to spare time. Error bars
are over the means of seeds, not over all new clients of all seeds. The sizes
were chosen with seeds 0 to 4. """
_FILES = 'The scale `paper` reads {} in `--data_dir`.'


def _trained_on(num_classes):
  return {'dataset_arguments': {'classes': tuple(range(num_classes))}}


# Figure 5: numbers of examples of new classes, and of another data set.
_FEW, _MORE = (20, 50, 100, 200, 500), (50, 100, 200, 500, 1000)
_NEW_CLASSES = {
  'new classes of fashion_mnist': NewClients(
    'fashion_mnist', _FEW, range(7, 10)
  ),
  'mnist': NewClients('mnist', _MORE),
}
_NEW_CLASSES_PAPER = {
  f'{name}{classes}': new
  for classes in ('', ' (20 classes a client)')
  for name, new in (
    ('new classes of cifar100', NewClients('cifar100', _FEW, range(80, 100))),
    ('cifar10', NewClients('cifar10', _MORE)),
  )
}
_NEW_CLASSES_SMALL = {
  name: NewClients('digits', (20,), new.classes and range(7, 10))
  for name, new in {**_NEW_CLASSES, **_NEW_CLASSES_PAPER}.items()
}


def _conditions(new_clients, num_old_classes):
  """Training on the other classes, if new clients have some."""
  return {
    name: {
      **(_trained_on(num_old_classes) if new.classes else {}),
      **({'partition': 'shards:20'} if '20 classes' in name else {}),
    }
    for name, new in new_clients.items()
  }


STUDIES = (
  Study(
    name='fedavg_linear_representation',
    summary='FedAvg learns the representation; D-GD does not, but minimizes '
    'the loss',
    source=f'{linear.PAPER}, figures 1 and 3 left, Theorem 1',
    seeds=range(10),
    measure=linear.measure_representation,
    parameters=linear.Parameters(),
    claims=[linear.representation_claims],
    draw=linear.draw_representation,
    scales={'small': _SMALL_LINEAR},
    deviations="""The step size, the start and the number of rounds are ours.
Models start as Theorem 1 asks, with I - alpha B^T B = 0 and a head of zeros.
With a part of the clients in each round, the theorem asks for a number that
depends on the heads; half of the clients is less for some ground truths.""",
  ),
  Study(
    name='fedavg_linear_new_client',
    summary="Fine-tuned on few samples, FedAvg's model beats D-GD's",
    source=linear.FIGURE_3_RIGHT,
    seeds=range(10),
    measure=linear.measure_new_client,
    parameters=linear.Parameters(learning_rate=0.05, num_rounds=8000),
    claims=[linear.new_client_claims],
    draw=panels.curves(
      'error',
      over='num_samples',
      x_label='Samples of the new client',
      y_label='Error after fine-tuning',
      log_y=True,
    ),
    scales={
      'small': dict(
        _SMALL_LINEAR,
        learning_rate=0.1,
        num_rounds=2000,
        sample_counts=(5, 10, 30),
      )
    },
    deviations="""The step size of training is 0.05 here, and 0.4 in
fedavg_linear_representation: new clients diverge from a model of larger steps.
(Steps on the head are as large with any alpha, as B^T B is about I / alpha.)
The rounds that training needs grow as 1 / alpha^2; after 8,000 FedAvg is at
distances of 4e-3 or less. New clients fine-tune with steps of 0.02, where the
paper has the steps of training (equation 4): with 0.05 one of 100 with 10
samples of 100 dimensions diverges from D-GD's model in 500 steps.""",
  ),
  Study(
    name='fedavg_cosine',
    summary='local updates make features of different classes less alike',
    source=f'{linear.PAPER}, figure 4',
    settings=dict(
      {**_TRAINING, **_layers(4)}, num_clients=100, partition='dirichlet:0.6'
    ),
    methods=_methods(1, 10, 50),
    seeds=range(5, 10),
    metric='cosine',
    measure=measure_cosine,
    claims=[cosine_claims],
    draw=draw_cosine,
    scales={
      'paper': dict(
        settings=dict(
          _PAPERS_NETWORK, dataset='cifar10', partition='client_dirichlet:6'
        )
      ),
      'small': _SMALL,
    },
    deviations=_DEVIATIONS
    + _FILES.format('cifar10.npz')
    + """ There the classes are divided by Dirichlet 0.6 for each client, as in
FedDyn's code.""",
  ),
  Study(
    name='fedavg_new_classes',
    summary='FedAvg, fine-tuned on new classes, beats D-SGD',
    source=f'{linear.PAPER}, figure 5',
    settings=dict(
      {**_TRAINING, **_layers(5)},
      learning_rate=0.1,
      fine_tune_learning_rate=0.1,
    ),
    methods=_methods(1, 50),
    conditions=_conditions(_NEW_CLASSES, 7),
    seeds=range(5, 10),
    metric='accuracy',
    measure=measure_new_classes,
    parameters=Parameters(_NEW_CLASSES),
    claims=[new_classes_claims],
    draw=panels.curves(
      'accuracy',
      over='num_examples',
      x_label='Examples of a new client',
      y_label='Accuracy after fine-tuning',
      log_x=True,
      panel='condition',
      title='Clients of {}'.format,
    ),
    scales={
      'paper': dict(
        settings=_CIFAR100,
        conditions=_conditions(_NEW_CLASSES_PAPER, 80),
        new_clients=_NEW_CLASSES_PAPER,
      ),
      'small': dict(
        _SMALL,
        conditions=_conditions(_NEW_CLASSES_SMALL, 7),
        partition='shards:3',
        new_clients=_NEW_CLASSES_SMALL,
        new_clients_per_seed=2,
      ),
    },
    deviations=_DEVIATIONS + _FILES.format('cifar100.npz and cifar10.npz'),
  ),
  Study(
    name='fedavg_cka',
    summary="fine-tuning leaves more of FedAvg's layers than of D-SGD's",
    source=f'{linear.PAPER}, figure 2',
    settings={**_TRAINING, **_layers(6), **_trained_on(7)},
    methods=_methods(1, 50),
    seeds=range(5, 10),
    metric='cka',
    measure=measure_cka,
    parameters=Parameters(
      {'': NewClients('fashion_mnist', (2000,), range(7, 10))}
    ),
    claims=[cka_claims],
    draw=panels.bars(
      'cka', group='layer', y_label='CKA before and after fine-tuning'
    ),
    scales={
      'paper': dict(
        settings=dict(_CIFAR100, dataset_arguments={}),
        new_clients={'': NewClients('cifar10', (2000,))},
      ),
      'small': dict(
        _SMALL,
        new_clients={'': NewClients('digits', (200,), range(7, 10))},
        new_clients_per_seed=2,
      ),
    },
    deviations=_DEVIATIONS
    + _FILES.format('cifar100.npz and cifar10.npz')
    + """ There new clients have CIFAR-10, as in the paper. With Fashion-MNIST
they have classes that the training did not have.""",
  ),
)
