"""FedAvg with fine-tuning: the effect of local steps on representations.

On images D-SGD is FedAvg with one local step per round (tau = 1). Both have the
same clients, cohort size, batch size, learning rate, initial weights and total
number of local updates of a client that trains in every round. D-SGD therefore
has tau times as many rounds. In the linear studies (`linear.fed_avg`) both have
the same number of rounds.

* `fedavg_linear_representation`: distance of the learned representation from
  the ground truth, and norm of the global loss's gradient, by round.
* `fedavg_linear_new_client`: error of a new client after fine-tuning the linear
  model on few samples.
* `fedavg_linear_rate`: rate of convergence by the number of local steps.
* `fedavg_cosine`: similarity of features within and between classes, for
  several tau.
* `fedavg_new_classes`: accuracy on new clients after fine-tuning on a few
  examples of classes, or of a dataset, that were not in training.
* `fedavg_cka`: similarity of each layer before and after fine-tuning on a new
  client.

The results are in docs/results/fedavg_fine_tuning.md.

Deviations:

On images. The paper's network has three blocks of two convolutions and three
dense layers. Their channels and units are not legible in our copy, so the
channels and units of scale `paper` are ours. So are the learning rate, batches
of 10, ten clients per round, 2,500 local steps in total, and the numbers of
local steps. Scale `cpu` has Fashion-MNIST and dense layers, to save time. Error
bars are over the means of seeds, not over all new clients of all seeds. The
sizes were chosen with seeds 0 to 4.

`fedavg_cosine`. Scale `paper` reads cifar10.npz in `--data_dir` and divides
classes by Dirichlet 0.6 for each client, as in FedDyn's code.

`fedavg_new_classes`, `fedavg_cka`. Scale `paper` reads cifar100.npz and
cifar10.npz in `--data_dir`, and the new clients of `fedavg_cka` have CIFAR-10,
as in the paper. At scale `cpu` they have Fashion-MNIST's classes that were not
in training.

`fedavg_linear_representation`. The step size, the start and the number of
rounds are ours. Models start as Theorem 1 requires, with I - alpha B^T B = 0
and a head of zeros. For rounds with a part of the clients, the theorem requires
a number of clients that depends on the heads. Half of the clients is fewer than
that for some ground truths.

`fedavg_linear_rate`. The step sizes, 0.1 and 0.2, and the number of rounds are
ours. With two local steps of 0.1 the runs end long before a distance of 1e-6,
so that their rates are fitted to larger distances than the others.

`fedavg_linear_new_client`. The step size of training is 0.05 here, and 0.4 in
`fedavg_linear_representation`: new clients diverge from a model that was
trained with larger steps. (Steps on the head are equally large with any alpha,
as B^T B is about I / alpha.) The number of rounds that training needs grows as
1 / alpha^2. After 8,000 rounds FedAvg is at distances of 4e-3 or less. New
clients fine-tune with steps of 0.02, while the paper uses the steps of training
(equation 4): with 0.05, one of 100 new clients with 10 samples of 100
dimensions diverges from D-GD's model in 500 steps.

References:
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, section 5 and appendix C.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn import metrics

import tff_pfl as pfl
from tff_pfl import datasets
from tff_pfl.runs import evaluation
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Method, Study

from . import panels, representation
from .linear import fed_avg as linear

_study = functools.partial(Study, seeds=range(5, 10), deviations=__doc__)

_D_SGD = 'D-SGD'
# Local updates of a client that trains in every round.
_NUM_UPDATES = 2500
# The paper's "close to 1" and "close to 0" of a cosine similarity.
_ALIKE, _DISSIMILAR = 0.8, 0.2


@dataclasses.dataclass(frozen=True)
class NewClients:
  """Clients that a trained model is fine-tuned on.

  They have the classes that were not in training, or another dataset.

  Attributes:
    nums_examples: Numbers of examples of new classes to fine-tune a client on.
    nums_of_other: Numbers of examples of the other dataset.
    other_dataset: Data of the clients, if training had all of its classes.
    per_seed: New clients for each seed, which share all examples.
    num_fine_tuning_epochs: Epochs of fine-tuning all weights.
  """

  nums_examples: Sequence[int] = (20, 50, 100, 200, 500)
  nums_of_other: Sequence[int] = (50, 100, 200, 500, 1000)
  other_dataset: str = 'mnist'
  per_seed: int = 5
  num_fine_tuning_epochs: int = 10


def _runs(
  context: measures.Context,
) -> Iterator[tuple[dict[str, Any], pfl.Run, runtime_base.Runtime]]:
  """Trains with all numbers of local steps and all seeds.

  Yields:
    For each run the columns that name it, the open run, and a runtime.
  """
  for result in context.progress(context.run()):
    accuracy = result.run.evaluations[-1]['global']['accuracy']
    columns = {**result.columns(), 'training_accuracy': accuracy}
    with context.create_runtime() as runtime:
      yield columns, result.open(), runtime


def measure_cosine(context: measures.Context) -> measures.Rows:
  """The similarity of features of each pair of classes, and the accuracy."""
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
  """Similarities of classes, `[num_seeds, num_classes, num_classes]`."""
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
  most = list(study.methods)[-1]
  if most in within:
    steps = study.methods[most].settings['num_steps']
    yield claims.measured(
      f'Features of one class are alike with {steps} local steps: mean cosine'
      ' similarity',
      within[most],
      above=_ALIKE,
    )
    yield claims.measured(
      f'Features of two classes with {steps} local steps are dissimilar: mean'
      ' cosine similarity',
      between[most],
      below=_DISSIMILAR,
    )
  # Pairs of methods, of which the second has fewer local steps.
  others = [method for method in within if method != _D_SGD]
  pairs = list(zip(others[1:], others))
  if _D_SGD in within:
    pairs = [(method, _D_SGD) for method in others] + pairs
    yield claims.measured(
      "All of D-SGD's features, those of one class too, are dissimilar: mean"
      ' cosine similarity',
      np.maximum(within[_D_SGD], between[_D_SGD]),
      below=_DISSIMILAR,
    )
  gaps = {method: within[method] - between[method] for method in within}
  for more, fewer in pairs:
    yield claims.difference(
      f'{more} tells classes apart better than {fewer}: similarity within'
      ' classes less that between them',
      gaps[more] - gaps[fewer],
    )


def draw_cosine(numbers: Numbers, study: Study, figure: Figure) -> None:
  """A matrix of similarities for each number of local steps."""
  methods = numbers.distinct('method')
  figure.set_size_inches(4.6 * len(methods), 4.2)
  all_axes = figure.subplots(1, len(methods), squeeze=False)[0]
  for axes, method in zip(all_axes, methods):
    # The matrix of similarities is drawn in the same way.
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


def _new_examples(context, data):
  """The new clients' examples, and the numbers of them to fine-tune on."""
  sizes = context.parameters
  if 'classes' not in data.arguments:
    return context.load_arrays(sizes.other_dataset), sizes.nums_of_other
  arrays = context.load_arrays(data.name)
  new = sorted({*range(arrays.num_classes)} - {*data.arguments['classes']})
  return arrays.class_subset(new), sizes.nums_examples


def _fits(
  context: measures.Context,
) -> Iterator[tuple[dict[str, Any], datasets.Arrays, dict[str, Any]]]:
  """Trains, and prepares fits of new clients for each number of examples.

  Yields:
    For each fit the columns that name it, all examples of the new clients,
    which share them, and arguments for `evaluation.score` and `personalize`.
  """
  sizes = context.parameters
  for columns, run, runtime in _runs(context):
    arrays, nums_examples = _new_examples(context, run.settings.data)
    clients = arrays.to_clients(sizes.per_seed, 'iid', seed=run.settings.seed)
    personalization = dataclasses.replace(
      run.settings.process.personalization,
      fine_tune='all',
      num_epochs=sizes.num_fine_tuning_epochs,
    )
    for num in nums_examples:
      fit = dict(
        run=run,
        clients=clients,
        personalization=personalization,
        runtime=runtime,
        num_samples=num,
      )
      yield {**columns, 'num_examples': num}, arrays, fit


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
    panel = 'left' if condition.startswith('new classes') else 'right'
    for num in numbers.distinct('num_examples', condition=condition):
      where = {'condition': condition, 'num_examples': num}
      yield claims.difference(
        f'Fine-tuned on {num} examples of {condition}, FedAvg is more accurate'
        ' than D-SGD',
        numbers.lead('accuracy', most, _D_SGD, **where),
        source=f'{study.source}, {panel}',
      )


def measure_cka(context: measures.Context) -> measures.Rows:
  """The mean similarity of layers before and after fine-tuning new clients."""
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
  """Claims of figure 2 about the layers before the head, and the first half."""
  most = list(study.methods)[-1]
  known = numbers.distinct('method')
  *body, _head = numbers.distinct('layer')
  early = body[: len(body) // 2]

  def mean_cka(method, layers):
    values = [numbers.values('cka', method=method, layer=n) for n in layers]
    return np.mean(values, axis=0)

  if most in known:
    yield claims.measured(
      f"Fine-tuning leaves FedAvg's first {len(early)} layers alike: mean CKA",
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
        mean_cka(most, layers) - mean_cka(_D_SGD, layers),
      )


def _methods(*nums_local_steps):
  """FedAvg by number of local steps, with the same number of updates each."""
  return {
    _D_SGD if steps == 1 else f'FedAvg, τ = {steps}': Method(
      'fed_avg', num_steps=steps, num_rounds=_NUM_UPDATES // steps
    )
    for steps in nums_local_steps
  }


def _training(num_layers, learning_rate=0.05, **settings):
  """Settings of a network of dense layers.

  Fine-tuning has the options of training, as in the paper's equation 4.
  """
  options = dict(learning_rate=learning_rate, momentum=0.0, batch_size=10)
  return dict(
    options,
    **{f'fine_tune_{name}': value for name, value in options.items()},
    client_weighting='uniform',
    # Only the first and the last rounds are evaluated.
    rounds_per_evaluation=10**6,
    num_final_evaluations=1,
    cohort_size=10,
    dataset='fashion_mnist',
    model='mlp',
    model_arguments=dict(widths=(64,) * num_layers, initialization='fan_in'),
    **settings,
  )


def _trained_on(num_classes):
  return {'dataset_arguments': {'classes': tuple(range(num_classes))}}


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
# Figure 5: training on the other classes, or on another dataset.
_CONDITIONS = {'new classes of fashion_mnist': _trained_on(7), 'mnist': {}}
_TWENTY = {'partition': 'shards:20'}
_CONDITIONS_PAPER = {
  'new classes of cifar100': _trained_on(80),
  'cifar10': {},
  'new classes of cifar100 (20 classes a client)': {
    **_trained_on(80),
    **_TWENTY,
  },
  'cifar10 (20 classes a client)': _TWENTY,
}
_SMALL_LINEAR = dict(num_clients=20, dimension=20, rank=2)
STUDIES = (
  _study(
    name='fedavg_linear_representation',
    summary='FedAvg learns the representation; D-GD only minimizes the loss',
    source=f'{linear.PAPER}, figures 1 and 3 left, Theorem 1',
    seeds=range(10),
    measure=linear.measure_representation,
    parameters=linear.Parameters(),
    claims=[linear.representation_claims],
    draw=linear.draw_representation,
    scales={'small': _SMALL_LINEAR},
  ),
  _study(
    name='fedavg_linear_new_client',
    summary="Fine-tuned on few samples, FedAvg's model beats D-GD's",
    source=f'{linear.PAPER}, figure 3 right',
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
  ),
  _study(
    name='fedavg_linear_rate',
    summary='More local steps make FedAvg converge in fewer rounds',
    source=f'{linear.PAPER}, Theorem 1',
    seeds=range(5),
    measure=linear.measure_rate,
    parameters=linear.Parameters(learning_rate=0.1, num_rounds=1500),
    claims=[linear.rate_claims],
    draw=panels.curves(
      'rate',
      over='num_local_steps',
      x_label='Local steps (τ)',
      y_label="Rate at which the distance's logarithm falls",
      log_x=True,
      log_y=True,
    ),
    scales={'small': dict(_SMALL_LINEAR, num_rounds=300)},
  ),
  _study(
    name='fedavg_cosine',
    summary='local updates make features of different classes less alike',
    source=f'{linear.PAPER}, figure 4',
    settings=_training(4, num_clients=100, partition='dirichlet:0.6'),
    methods=_methods(1, 10, 50),
    metric='cosine',
    measure=measure_cosine,
    claims=[cosine_claims],
    draw=draw_cosine,
    scales={
      'paper': dict(
        _PAPERS_NETWORK, dataset='cifar10', partition='client_dirichlet:6'
      ),
    },
  ),
  _study(
    name='fedavg_new_classes',
    summary='FedAvg, fine-tuned on new classes, beats D-SGD',
    source=f'{linear.PAPER}, figure 5',
    settings=_training(5, 0.1, num_clients=80, partition='shards:3'),
    methods=_methods(1, 50),
    conditions=_CONDITIONS,
    metric='accuracy',
    measure=measure_new_classes,
    parameters=NewClients(),
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
        conditions=_CONDITIONS_PAPER,
        other_dataset='cifar10',
      ),
      'small': dict(
        conditions={**_CONDITIONS, **_CONDITIONS_PAPER},
        partition='shards:3',
        other_dataset='digits',
        nums_of_other=(20,),
        per_seed=2,
      ),
    },
  ),
  _study(
    name='fedavg_cka',
    summary="fine-tuning leaves more of FedAvg's layers than of D-SGD's",
    source=f'{linear.PAPER}, figure 2',
    settings=_training(
      6, num_clients=80, partition='shards:3', **_trained_on(7)
    ),
    methods=_methods(1, 50),
    metric='cka',
    measure=measure_cka,
    parameters=NewClients((2000,), (2000,)),
    claims=[cka_claims],
    draw=panels.bars(
      'cka', group='layer', y_label='CKA before and after fine-tuning'
    ),
    scales={
      'paper': dict(_CIFAR100, dataset_arguments={}, other_dataset='cifar10'),
      'small': dict(
        _trained_on(7),
        model_arguments={'widths': (4, 4)},
        nums_examples=(200,),
        per_seed=2,
      ),
    },
  ),
)
