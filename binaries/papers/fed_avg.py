"""FedAvg against D-SGD on images: what local updates do to a representation.

D-SGD is FedAvg with one local step in a round (tau = 1). Both have the same
clients, cohort size, batch size, learning rate, initial weights and total
number of local updates of a client that always takes part, so that D-SGD has
tau times as many rounds.

* `fedavg_cosine`: whether features of one class are alike and those of
  different classes are not, for several tau.
* `fedavg_new_classes`: accuracy on new clients after fine-tuning on a few
  examples of classes, or of a data set, that training had none of.
* `fedavg_cka`: how much of each layer fine-tuning on a new client leaves.

Deviations from the paper: its data sets are CIFAR-10 and CIFAR-100 and its
network has nine layers with weights, of which six are convolutions; here the
data are Fashion-MNIST, with MNIST as the other data set, and the network is of
dense layers, for the sake of the time on a CPU. The text names no learning
rate. There are three trials and not five.

What comes out, and in which settings it does not:

* In these sizes both methods are trained, and D-SGD is the more accurate on the
  training clients' images. FedAvg's features tell classes apart better all the
  same, by a few hundredths, with 10 local steps as with 50. Networks of six and
  more hidden layers start on a plateau of the loss where all features are
  alike; which method leaves it first depends on the seed. That all of D-SGD's
  features are dissimilar, also those of one class, as in the paper's figure,
  does not come out.
* Fine-tuned on new classes FedAvg is ahead, most with 50 and 100 examples and
  not with 500. On the other data set the two are alike: that panel is without a
  claim.
* Fine-tuning leaves somewhat more of FedAvg's body and less of its head, far
  from the difference in the paper's figure, and with a spread over clients that
  is larger than it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from binaries.papers import repeats, training
from tff_pfl import datasets
from tff_pfl.algorithms import registry
from tff_pfl.client import client_examples
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.evaluation import representation
from tff_pfl.experiments import panels as figures
from tff_pfl.experiments import paper as experiment
from tff_pfl.experiments import trial
from tff_pfl.models import keras_bridge, split_model
from tff_pfl.templates import personalization, personalized_process

keras = tf.keras

_PAPER = 'FedAvg with fine-tuning'
_D_SGD = 'D-SGD'


@dataclasses.dataclass(frozen=True)
class TrainingSizes:
  """Sizes and hyperparameters of training, for all three experiments.

  Attributes:
    dataset: The data set, unless the settings name another.
    partition: How the data are divided among the clients.
    num_local_updates: Local steps in a round times rounds; a multiple of each
      number of local steps.
    learning_rate: Rate of local training and of fine-tuning, which also share
      the batch size.
    num_seeds: Seeds, from that of the settings on. Each has its own clients,
      initial weights and new clients.
  """

  dataset: str = 'fashion_mnist'
  num_clients: int = 80
  partition: str = 'shards:3'
  cohort_size: int = 10
  widths: Sequence[int] = (64,) * 6
  num_local_updates: int = 2500
  learning_rate: float = 0.05
  batch_size: int = 10
  num_seeds: int = 3


@dataclasses.dataclass(frozen=True)
class CosineSizes(TrainingSizes):
  """Sizes and hyperparameters of `fedavg_cosine`.

  Attributes:
    nums_local_steps: Local steps in a round (tau), increasing, the first 1.
    num_images: Test images whose features are compared.
  """

  num_clients: int = 100
  partition: str = 'dirichlet:0.6'
  widths: Sequence[int] = (64,) * 4
  nums_local_steps: Sequence[int] = (1, 10, 50)
  num_images: int = 2000


@dataclasses.dataclass(frozen=True)
class NewClientSizes(TrainingSizes):
  """Sizes and hyperparameters of experiments with new clients.

  Attributes:
    num_local_steps: FedAvg's local steps in a round (tau).
    num_new_clients: New clients for each seed and number of examples.
    num_epochs: Epochs of fine-tuning of all weights.
  """

  num_local_steps: int = 50
  new_classes: Sequence[int] = (7, 8, 9)
  num_new_clients: int = 5
  num_epochs: int = 10


@dataclasses.dataclass(frozen=True)
class NewClassesSizes(NewClientSizes):
  """Sizes and hyperparameters of `fedavg_new_classes`.

  Attributes:
    nums_examples: Examples that a new client is fine-tuned on, for classes that
      are new.
    nums_examples_elsewhere: The same, for another data set.
  """

  widths: Sequence[int] = (64,) * 5
  learning_rate: float = 0.1
  nums_examples: Sequence[int] = (20, 50, 100, 200, 500)
  nums_examples_elsewhere: Sequence[int] = (50, 100, 200, 500, 1000)


@dataclasses.dataclass(frozen=True)
class CkaSizes(NewClientSizes):
  """Sizes and hyperparameters of `fedavg_cka`.

  Attributes:
    num_images: Test images of the new classes on which layers are compared.
  """

  num_examples: int = 2000
  num_images: int = 1000


COSINE_FULL = CosineSizes()
NEW_CLASSES_FULL = NewClassesSizes()
CKA_FULL = CkaSizes()
# The digits are few and small: there are fewer clients and fewer updates.
_FAST = dict(
  dataset='digits',
  num_clients=20,
  cohort_size=5,
  num_local_updates=400,
  learning_rate=0.1,
  num_seeds=1,
)
COSINE_FAST = CosineSizes(**_FAST)
NEW_CLASSES_FAST = NewClassesSizes(
  **_FAST, num_new_clients=2, nums_examples=(20, 50, 100, 200)
)
# With so little data it is chance how much of a layer fine-tuning leaves: the
# claims of this one need the full size.
CKA_FAST = CkaSizes(
  **_FAST, widths=(64,) * 4, num_new_clients=2, num_examples=200
)


class _Pretrained(NamedTuple):
  """A finished run of FedAvg.

  Attributes:
    process: What was trained; it personalizes by fine-tuning.
    num_clients: Clients it was trained on.
    accuracy: The global model's on their test images, mean over clients.
  """

  process: personalized_process.PersonalizedProcess
  state: personalized_process.ServerState
  num_clients: int
  accuracy: float


def _make_model(
  data: datasets.FederatedDataset, widths: Sequence[int], seed: int
) -> split_model.SplitModel:
  """A deep network of dense layers with PyTorch's default initial weights.

  Weights and biases are uniform on plus or minus the inverse root of the number
  of inputs.
  """
  seeds = iter(range(seed * 1000, (seed + 1) * 1000))
  shape = data.element_spec['x'].shape
  num_inputs = shape.num_elements()

  def dense(units, activation, name):
    limit = num_inputs**-0.5
    return keras.layers.Dense(
      units,
      activation,
      kernel_initializer=keras.initializers.RandomUniform(
        -limit, limit, seed=next(seeds)
      ),
      bias_initializer=keras.initializers.RandomUniform(
        -limit, limit, seed=next(seeds)
      ),
      name=name,
    )

  layers = [keras.layers.Input(shape), keras.layers.Flatten()]
  for i, width in enumerate(widths):
    layers.append(dense(width, 'relu', f'dense_{i + 1}'))
    num_inputs = width
  layers.append(dense(data.num_classes, None, 'head'))
  return keras_bridge.from_keras(
    keras.Sequential(layers, name='deep_mlp'),
    head_layers=['head'],
    loss='sparse_categorical_crossentropy',
    label_spec=data.element_spec['y'],
  )


def _train(
  name: str,
  arrays: arrays_lib.Arrays,
  num_local_steps: int,
  sizes: TrainingSizes,
  settings: experiment.Settings,
  seed: int,
  num_epochs: int = 0,
) -> _Pretrained:
  """Trains by FedAvg with some number of local steps.

  Args:
    name: The run's name, but for the number of steps and the seed.
    seed: The seed of partition, initial weights and training.
    num_epochs: Epochs of fine-tuning, by which the process personalizes.
  """
  data = arrays.to_clients(sizes.num_clients, sizes.partition, seed=seed)
  sgd = dict(
    learning_rate=sizes.learning_rate, momentum=0.0, batch_size=sizes.batch_size
  )
  build = dict(
    model=_make_model(data, sizes.widths, seed),
    hparams=registry.get_algorithm('fed_avg').hparams(
      num_steps=num_local_steps, **sgd
    ),
    client_weighting='uniform',
    seed=seed,
  )
  num_rounds = sizes.num_local_updates // num_local_steps
  trained = training.train(
    f'{name}_{num_local_steps}_steps_seed_{seed}',
    registry.build('fed_avg', **build),
    data,
    settings,
    num_rounds=num_rounds,
    cohort_size=sizes.cohort_size,
    rounds_per_evaluation=num_rounds,
  )
  fine_tuned = registry.build(
    'fed_avg',
    personalization=personalization.Personalization(
      fine_tune='all', num_epochs=num_epochs, **sgd
    ),
    **build,
  )
  return _Pretrained(
    fine_tuned,
    trained.state,
    data.num_clients,
    trained.evaluations[-1]['global']['accuracy'],
  )


def _label(num_local_steps: int) -> str:
  """What a number of local steps is called in figures."""
  return _D_SGD if num_local_steps == 1 else f'FedAvg, τ = {num_local_steps}'


def _of_steps(
  find: Callable[[int, int], Any],
  nums_local_steps: Iterable[int],
  sizes: TrainingSizes,
  settings: experiment.Settings,
) -> Mapping[int, list]:
  """What `find` finds by numbers of local steps; a list over the seeds."""
  seeds = repeats.seeds(settings, sizes.num_seeds)
  return {
    steps: [find(steps, seed) for seed in seeds] for steps in nums_local_steps
  }


def _over_clients(name: str, values: np.ndarray) -> Mapping[str, Any]:
  """Columns that sum up `[num_seeds, num_new_clients]`."""
  return {
    f'mean_{name}': float(values.mean()),
    'std_over_clients_and_seeds': experiment.spread(values.ravel()),
    'of_seeds': values.mean(axis=1).tolist(),
    'num_new_clients': values.shape[1],
  }


def _setup(
  sizes: TrainingSizes, arrays: arrays_lib.Arrays
) -> Mapping[str, Any]:
  return {**dataclasses.asdict(sizes), 'dataset': arrays.name}


# Cosine similarity of features, figure 4.


class _Cosine(NamedTuple):
  """Mean cosine similarities of features.

  Attributes:
    matrix: Similarities between classes, `[num_classes, num_classes]`.
    accuracy: The global model's on the clients' test images.
  """

  matrix: np.ndarray
  accuracy: float

  @property
  def within(self) -> float:
    """Mean over classes, of pairs of one class."""
    return float(np.nanmean(np.diag(self.matrix)))

  @property
  def between(self) -> float:
    """Mean over pairs of different classes."""
    return float(np.nanmean(self.matrix[~np.eye(len(self.matrix), dtype=bool)]))

  @property
  def gap(self) -> float:
    """How much more alike images of one class are."""
    return self.within - self.between


def _cosines(
  sizes: CosineSizes, settings: experiment.Settings, arrays: arrays_lib.Arrays
) -> Mapping[int, Sequence[_Cosine]]:
  """By number of local steps, one for each seed."""
  images, labels = _test_images(arrays, sizes.num_images, settings.seed)

  def cosine(num_local_steps, seed):
    trained = _train('fed_avg', arrays, num_local_steps, sizes, settings, seed)
    features = representation.body_features(
      trained.process.model, trained.state.global_weights, images
    )
    return _Cosine(
      representation.class_cosine_similarity(
        features, labels, arrays.num_classes
      ),
      trained.accuracy,
    )

  return _of_steps(cosine, sizes.nums_local_steps, sizes, settings)


def _test_images(
  arrays: arrays_lib.Arrays, num_images: int, seed: int
) -> tuple:
  """Up to a number of random test images, `(x, y)`, transformed."""
  order = np.random.default_rng(seed).permutation(len(arrays.y_test))
  chosen = np.sort(order[:num_images])
  images = arrays.x_test[chosen]
  if arrays.transform is not None:
    images = arrays.transform(images)
  return images, arrays.y_test[chosen]


def _cosine_claims(
  cosines: Mapping[int, Sequence[_Cosine]],
) -> Sequence[experiment.Claim]:
  figure = f'{_PAPER}, figure 4'
  gap = {
    steps: np.array([cosine.gap for cosine in of_steps])
    for steps, of_steps in cosines.items()
  }
  first, *between, most = cosines
  lead = gap[most] - gap[first]
  tells_apart = (
    f'FedAvg with {most} local steps tells classes apart better than D-SGD:'
    " similarity within classes less that between them, less D-SGD's"
  )
  return [
    experiment.above(
      f"Features of one class are alike with {most} local steps: any seed's"
      ' mean cosine similarity',
      figure,
      np.min([cosine.within for cosine in cosines[most]]),
      0.8,
    ),
    experiment.above(
      f'{tells_apart}, mean over seeds', figure, lead.mean(), 0.02
    ),
    experiment.above(f"{tells_apart}, any seed's", figure, lead.min(), 0),
    *[
      experiment.above(
        f'So does FedAvg with {steps} local steps: mean over seeds',
        figure,
        (gap[steps] - gap[first]).mean(),
        0,
      )
      for steps in between
    ],
  ]


def _draw_cosines(figure: Figure, cosines: Mapping[int, Sequence[_Cosine]]):
  figure.set_size_inches(4.6 * len(cosines), 4.2)
  panels = figure.subplots(1, len(cosines), squeeze=False)[0]
  for axes, (steps, of_steps) in zip(panels, cosines.items()):
    matrix = np.mean([cosine.matrix for cosine in of_steps], axis=0)
    figures.draw_matrix(
      axes,
      matrix,
      title=_label(steps),
      labels=range(len(matrix)),
      low=0,
      high=1,
    )


def run_cosine(settings: experiment.Settings) -> experiment.Result:
  """Runs `fedavg_cosine`."""
  sizes = COSINE_FAST if settings.fast else COSINE_FULL
  arrays = training.load_arrays(sizes.dataset, settings)
  cosines = _cosines(sizes, settings, arrays)
  return experiment.Result(
    claims=_cosine_claims(cosines),
    rows=[
      {
        'num_local_steps': steps,
        'seed': seed,
        'accuracy': cosine.accuracy,
        'class_a': a,
        'class_b': b,
        'mean_cosine_similarity': float(cosine.matrix[a, b]),
      }
      for steps, of_steps in cosines.items()
      for seed, cosine in enumerate(of_steps, settings.seed)
      for a, b in np.ndindex(*cosine.matrix.shape)
    ],
    setup=_setup(sizes, arrays),
    draw=lambda figure: _draw_cosines(figure, cosines),
  )


# New clients, figures 5 and 2.


def _new_clients(
  arrays: arrays_lib.Arrays, num_clients: int, num_examples: int, seed: int
) -> datasets.FederatedDataset:
  """Clients with some number of random examples each, and more to test on.

  The test images are divided among the clients in equal parts.
  """
  training.expect_examples(arrays, num_clients * num_examples)
  order = np.random.default_rng((seed, num_examples)).permutation(len(arrays.y))
  chosen = np.sort(order[: num_clients * num_examples])
  return dataclasses.replace(
    arrays, x=arrays.x[chosen], y=arrays.y[chosen]
  ).to_clients(num_clients, 'iid', seed=seed)


def _split(arrays: arrays_lib.Arrays, sizes: NewClientSizes) -> tuple:
  """The examples of the training clients' classes, and those of new ones."""
  old = sorted(set(range(arrays.num_classes)) - set(sizes.new_classes))
  return arrays.of_classes(old), arrays.of_classes(sizes.new_classes)


class _Transfer(NamedTuple):
  """Where models are trained, and what new clients have.

  Attributes:
    title: What it is called in the figure.
    old: The training clients' examples.
    new: The new clients' examples.
  """

  title: str
  old: arrays_lib.Arrays
  new: arrays_lib.Arrays
  nums_examples: Sequence[int]


def _transfers(
  sizes: NewClassesSizes, settings: experiment.Settings
) -> Mapping[str, _Transfer]:
  """The figure's panels; one for a data set that no other one resembles."""
  arrays = training.load_arrays(sizes.dataset, settings)
  old, new = _split(arrays, sizes)
  transfers = {
    'new_classes': _Transfer(
      f'New classes of {arrays.name}', old, new, sizes.nums_examples
    )
  }
  other = training.other_arrays(arrays, settings)
  if other is not None:
    transfers['new_dataset'] = _Transfer(
      f'From {arrays.name} to {other.name}',
      arrays,
      other,
      sizes.nums_examples_elsewhere,
    )
  return transfers


# By number of local steps and of examples: `[num_seeds, num_new_clients]`.
_Accuracies = Mapping[int, Mapping[int, np.ndarray]]


def _accuracies(
  name: str,
  transfer: _Transfer,
  sizes: NewClassesSizes,
  settings: experiment.Settings,
) -> _Accuracies:
  """Accuracies of new clients after fine-tuning."""

  def of_seed(num_local_steps, seed, runtime):
    trained = _train(
      name,
      transfer.old,
      num_local_steps,
      sizes,
      settings,
      seed,
      sizes.num_epochs,
    )
    return [
      [
        row['after']['accuracy']
        for row in trial.score_new_clients(
          trained.process,
          runtime,
          trained.state,
          _new_clients(transfer.new, sizes.num_new_clients, n, seed),
          first_index=trained.num_clients,
        )
      ]
      for n in transfer.nums_examples
    ]

  accuracies = {}
  for num_local_steps in (1, sizes.num_local_steps):
    with settings.create_runtime() as runtime:
      values = [
        of_seed(num_local_steps, seed, runtime)
        for seed in repeats.seeds(settings, sizes.num_seeds)
      ]
    accuracies[num_local_steps] = dict(
      zip(transfer.nums_examples, np.moveaxis(values, 1, 0))
    )
  return accuracies


def _new_classes_claims(
  title: str, accuracies: _Accuracies
) -> Sequence[experiment.Claim]:
  d_sgd, fed_avg = (
    np.array(list(of_steps.values())) for of_steps in accuracies.values()
  )
  of_seeds = (fed_avg - d_sgd).mean(axis=(0, 2))
  lead = (
    f"{title}: FedAvg's accuracy after fine-tuning, less D-SGD's, mean over"
    ' numbers of examples and new clients'
  )
  figure = f'{_PAPER}, figure 5'
  return [
    experiment.above(f'{lead} and seeds', figure, of_seeds.mean(), 0.05),
    experiment.above(f"{lead}, any seed's", figure, of_seeds.min(), 0),
  ]


def _draw_new_classes(
  figure: Figure,
  transfers: Mapping[str, _Transfer],
  accuracies: Mapping[str, _Accuracies],
):
  of_steps = next(iter(accuracies.values()))[1]
  figures.prepare(
    figure, 5.5 * len(transfers), 4.4, *next(iter(of_steps.values())).shape
  )
  panels = figure.subplots(1, len(transfers), squeeze=False)[0]
  for axes, (name, transfer) in zip(panels, transfers.items()):
    figures.draw_lines(
      axes,
      {
        _label(steps): (
          list(of_steps),
          [values.mean() for values in of_steps.values()],
          [experiment.spread(values.ravel()) for values in of_steps.values()],
        )
        for steps, of_steps in accuracies[name].items()
      },
      x_label='Examples of a new client',
      y_label='Accuracy after fine-tuning',
      log_x=True,
      title=transfer.title,
    )


def run_new_classes(settings: experiment.Settings) -> experiment.Result:
  """Runs `fedavg_new_classes`."""
  sizes = NEW_CLASSES_FAST if settings.fast else NEW_CLASSES_FULL
  transfers = _transfers(sizes, settings)
  accuracies = {
    name: _accuracies(name, transfer, sizes, settings)
    for name, transfer in transfers.items()
  }
  return experiment.Result(
    claims=_new_classes_claims(
      transfers['new_classes'].title, accuracies['new_classes']
    ),
    rows=[
      {
        'new_clients': name,
        'num_local_steps': steps,
        'num_examples': num_examples,
        **_over_clients('accuracy', values),
      }
      for name, of_transfer in accuracies.items()
      for steps, of_steps in of_transfer.items()
      for num_examples, values in of_steps.items()
    ],
    setup=_setup(sizes, transfers['new_classes'].old),
    draw=lambda figure: _draw_new_classes(figure, transfers, accuracies),
  )


# Layers before and after fine-tuning, figure 2. By number of local steps and
# layer: `[num_seeds, num_new_clients]`.
_Similarities = Mapping[int, Mapping[str, np.ndarray]]


def _similarities(
  sizes: CkaSizes, settings: experiment.Settings, arrays: arrays_lib.Arrays
) -> _Similarities:
  """Layers' similarities to themselves before fine-tuning."""
  old, new = _split(arrays, sizes)
  images, _ = _test_images(new, sizes.num_images, settings.seed)

  def of_seed(num_local_steps, seed):
    trained = _train(
      'new_classes',
      old,
      num_local_steps,
      sizes,
      settings,
      seed,
      sizes.num_epochs,
    )
    clients = _new_clients(new, sizes.num_new_clients, sizes.num_examples, seed)
    return [
      representation.layer_cka(
        trained.process.model, trained.state.global_weights, weights, images
      )
      for weights in _fine_tuned(trained, clients, settings)
    ]

  found = _of_steps(of_seed, (1, sizes.num_local_steps), sizes, settings)
  return {
    steps: {
      layer: np.array([[client[layer] for client in row] for row in values])
      for layer in values[0][0]
    }
    for steps, values in found.items()
  }


def _fine_tuned(
  trained: _Pretrained,
  clients: datasets.FederatedDataset,
  settings: experiment.Settings,
) -> Sequence[split_model.Weights]:
  """Each new client's weights after fine-tuning."""
  train = client_examples.ClientExamples(clients.train)
  process = trained.process
  with settings.create_runtime() as runtime:
    indices = [trained.num_clients + i for i in range(clients.num_clients)]
    return [
      runtime.run(
        process.personalize, trained.state, state, train[client_id]
      ).weights
      for client_id, state in zip(
        clients.client_ids,
        runtime.run(process.initialize_client_states, indices),
      )
    ]


def _cka_claims(similarities: _Similarities) -> Sequence[experiment.Claim]:
  figure = f'{_PAPER}, figure 2'
  # The last layer is the head.
  d_sgd, fed_avg = (
    np.array(list(of_steps.values())[:-1]) for of_steps in similarities.values()
  )
  num_early = len(fed_avg) // 2
  difference = fed_avg - d_sgd
  more = "Fine-tuning leaves more of FedAvg's {} than of D-SGD's: mean CKA less"
  return [
    experiment.above(
      f"{more.format('representation')} D-SGD's, mean over seeds",
      figure,
      difference.mean(),
      0,
    ),
    experiment.above(
      f"{more.format('representation')} D-SGD's, any seed's",
      figure,
      difference.mean(axis=(0, 2)).min(),
      0,
    ),
    experiment.above(
      f"{more.format(f'first {num_early} layers')} D-SGD's, mean over seeds",
      figure,
      difference[:num_early].mean(),
      0,
    ),
  ]


def _draw_cka(figure: Figure, similarities: _Similarities):
  figures.prepare(figure, 6.5, 4.4, *next(iter(similarities[1].values())).shape)
  figures.draw_bars(
    figure.subplots(),
    {
      layer: {
        _label(steps): (
          of_steps[layer].mean(),
          experiment.spread(of_steps[layer].ravel()),
        )
        for steps, of_steps in similarities.items()
      }
      for layer in next(iter(similarities.values()))
    },
    y_label='CKA before and after fine-tuning',
  )


def run_cka(settings: experiment.Settings) -> experiment.Result:
  """Runs `fedavg_cka`."""
  sizes = CKA_FAST if settings.fast else CKA_FULL
  arrays = training.load_arrays(sizes.dataset, settings)
  similarities = _similarities(sizes, settings, arrays)
  return experiment.Result(
    claims=_cka_claims(similarities),
    rows=[
      {'num_local_steps': steps, 'layer': layer, **_over_clients('cka', values)}
      for steps, of_steps in similarities.items()
      for layer, values in of_steps.items()
    ],
    setup=_setup(sizes, arrays),
    draw=lambda figure: _draw_cka(figure, similarities),
  )


EXPERIMENTS = (
  experiment.Experiment(
    name='fedavg_cosine',
    summary='local updates make features of different classes less alike',
    paper=f'{_PAPER}, figure 4',
    uses_images=True,
    run=run_cosine,
  ),
  experiment.Experiment(
    name='fedavg_new_classes',
    summary='FedAvg, fine-tuned on new classes, beats D-SGD',
    paper=f'{_PAPER}, figure 5',
    uses_images=True,
    run=run_new_classes,
  ),
  experiment.Experiment(
    name='fedavg_cka',
    summary="fine-tuning leaves more of FedAvg's layers than of D-SGD's",
    paper=f'{_PAPER}, figure 2',
    uses_images=True,
    run=run_cka,
    claims_hold_fast=False,
  ),
)
