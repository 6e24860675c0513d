"""Shared and personal neurons: FedSplit's figures 1 and 2, FedFac's figure 10.

* `fedsplit_neurons` (figures 1 and 2): 100 clients train a network with 200
  hidden neurons on MNIST, each alone, where they are alike and where each has
  one digit. A neuron's output is the mean over a client's training images,
  large if it is more than the mean over neurons and clients; its entropy is
  over the clients, by the k nearest neighbors. The same is done with the
  initial network, which is the clients' common one: what differs between
  clients there comes from their images alone.
* `fedfac_features` (figure 10): of FedFac with half of the channels of a
  convolution personal, how much its channels are like FedAvg's, from the same
  initial weights, and how much they tell classes apart.
* `fedfac_ablation` (table 8): shared or personal elements of FedFac's trained
  models replaced by random values, and random splits.

What the paper does not say of figures 1 and 2 is as in the authors' code: five
epochs of Adam from a common start, in batches of 16; but outputs are those of
the trained network (in the code of the last epoch, in which it is trained), the
loss is of logits (there of probabilities), and the entropy's k is ours. Figure
10 shows one image, of which it calls the personal filters' maps clear and
specific, FedAvg's noisy, and the shared ones' like FedAvg's. In numbers: a
map's likeness is its correlation with FedAvg's, over places and images; its
specificity is the share of the variance between images of its mean that the
classes explain. In table 8 the paper's masks are there while the clients train,
and the authors' code has normal random numbers in place of kernels, here those
of another initial network.
The random split is drawn in every round, as FedFac's partition is found in
every round, and for comparison once. From a common random start neurons are
exchangeable (see `fed_fac_simulation`), so that a random split that stays is
about as good as one by factor analysis. Other deviations are those of
`fed_fac`.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, sections 1 and 5.6.
  Kozachenko, Leonenko: Sample Estimate of the Entropy of a Random Vector,
  Problems of Information Transmission 23, 1987.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import seaborn as sns
import tensorflow as tf
from matplotlib.figure import Figure
from scipy import special

import tff_pfl as pfl
from tff_pfl import errors
from tff_pfl.core import objectives, scoring
from tff_pfl.runtime import base as runtime_base

from . import fed_fac, representation
from .engine import claims, panels, paper, tables, trials

_FIGURE_1, _FIGURE_2 = 'FedSplit, figure 1', 'FedSplit, figure 2'
_FIGURE_10 = 'FedFac, figure 10'
_TABLE_8 = 'FedFac, table 8'
_ALIKE, _ONE_DIGIT = 'IID', 'one digit each'
_TRAINED, _INITIAL = 'trained', 'initial'
# Begins the columns of clients' outputs.
_CLIENT = 'client/'
# The two peaks in the figure are near 0 and near 2: halfway between them.
_BETWEEN_PEAKS = 1.0
# How many of the neurons make a peak, or are not most of them.
_PEAK = 0.1
# The share of the neurons that are at the top of figure 1, and that of the
# clients that are most.
_TOP, _MOST = 0.1, 0.5
# The share of the variance of outputs that is next to nothing.
_HARDLY_ANY = 0.1
# Outputs that differ less between clients count as so far apart.
_LEAST_DISTANCE = 1e-3
_SHARED, _PERSONAL = 'shared', 'personal'
_FED_FAC, _FED_AVG = 'FedFac', 'FedAvg'
_FACTOR_ANALYSIS = 'factor analysis'
_SHARED_MASKED, _PERSONAL_MASKED = 'shared masked', 'personal masked'
_LIKENESS, _SPECIFICITY, _FED_AVG_SPECIFICITY = (
  'likeness to FedAvg',
  'specificity',
  "FedAvg's specificity",
)


@dataclasses.dataclass(frozen=True)
class NeuronsSizes:
  """Sizes and hyperparameters of `fedsplit_neurons`.

  Attributes:
    partitions: Partitions of the data by name.
    num_epochs: Each client's, in one round.
    num_neighbors: k.
  """

  dataset: str = 'mnist'
  partitions: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {_ALIKE: 'iid', _ONE_DIGIT: 'shards:1'}
  )
  num_clients: int = 100
  widths: Sequence[int] = (200,)
  num_epochs: int = 5
  learning_rate: float = 0.001
  optimizer: str = 'adam'
  batch_size: int = 16
  num_neighbors: int = 3
  num_seeds: int = 5


NEURONS_FAST = NeuronsSizes(
  dataset='digits', num_clients=20, widths=(20,), num_epochs=1, num_seeds=1
)


@dataclasses.dataclass(frozen=True)
class FeaturesSizes(fed_fac.Sizes):
  """Sizes and hyperparameters of `fedfac_features`.

  Attributes:
    layer: The divided convolution.
    num_shown_clients: Clients whose channels are looked at.
  """

  thresholds: Mapping[str, float] = dataclasses.field(
    default_factory=lambda: {'dirichlet:0.5': 0.5}
  )
  layer: str = 'conv_2'
  num_shown_clients: int = 20

  def __post_init__(self):
    super().__post_init__()
    errors.expect(
      set(self.dataset_arguments) <= {'normalize'},
      'dataset_arguments',
      "of 'normalize' alone, so that the data set's test images are nobody's",
      dict(self.dataset_arguments),
    )


FEATURES_FAST = FeaturesSizes(**fed_fac.SMALL, num_shown_clients=2)


def entropy(values: np.ndarray, num_neighbors: int) -> np.ndarray:
  """The differential entropy of columns, `[n, m]` -> `[m]`, in nats.

  By the distances to the k-th nearest neighbor (Kozachenko, Leonenko).
  """
  distances = np.abs(values[:, np.newaxis] - values[np.newaxis])
  # The nearest is the value itself.
  neighbor_distances = np.sort(distances, axis=1)[:, num_neighbors]
  logs = np.log(2 * np.maximum(neighbor_distances, _LEAST_DISTANCE))
  return (
    special.digamma(len(values)) - special.digamma(num_neighbors) + logs.mean(0)
  )


def share_between_clients(outputs: np.ndarray) -> float:
  """The share of variance within neurons, of outputs `[neurons, clients]`."""
  return outputs.var(axis=1).mean() / outputs.var()


def shares_of_clients(outputs: np.ndarray) -> np.ndarray:
  """The share of clients with a large output, `[neurons, clients]`, by mean.

  Returns:
    `[neurons]`, the neuron with the largest mean first.
  """
  is_large = outputs > outputs.mean()
  return is_large.mean(axis=1)[np.argsort(-outputs.mean(axis=1))]


def measure_neurons(context: trials.Context) -> paper.Rows:
  """Each neuron's entropy and outputs, after training and before."""
  sizes = context.sizes
  alone = [trials.Method('Local', 'local_only')]
  conditions = {
    name: trials.Condition(alone, {'partition': partition})
    for name, partition in sizes.partitions.items()
  }
  results = context.run(
    conditions,
    cohort_size=sizes.num_clients,
    model='mlp',
    model_arguments={'widths': sizes.widths},
    num_rounds=1,
  )
  for result in context.progress(results):
    outputs = {_TRAINED: [], _INITIAL: []}
    run = result.run.open()
    with context.create_runtime() as runtime:
      examples = {i: run.data.train(i) for i in run.data.client_ids}
      for client_id in sorted(examples, key=lambda i: np.mean(examples[i].y)):
        x = examples[client_id].x
        for network, weights in (
          (_TRAINED, run.personal_weights(client_id, runtime)),
          (_INITIAL, run.model.initial_weights),
        ):
          inputs = x.reshape(len(x), -1) @ weights['dense_1/kernel']
          on = np.maximum(inputs + weights['dense_1/bias'], 0)
          outputs[network].append(on.mean(axis=0))
    for network, of_clients in outputs.items():
      of_clients = np.array(of_clients)
      entropies = entropy(of_clients, sizes.num_neighbors)
      for neuron, own in enumerate(of_clients.T):
        yield {
          'partition': result.condition,
          'network': network,
          'seed': result.seed,
          'neuron': neuron,
          'entropy': entropies[neuron],
          **{f'{_CLIENT}{i}': value for i, value in enumerate(own)},
        }


def neurons_claims(table: paper.Table, sizes: NeuronsSizes) -> paper.Claims:
  """Claims on both figures: neurons of one kind, and of two."""

  def each(function, partition):
    """A function of the outputs `[neurons, clients]`, by seed."""
    rows = table.where(partition=partition, network=_TRAINED)
    return np.array(
      [
        function(
          rows.where(seed=seed).frame.filter(like=_CLIENT).to_numpy(float)
        )
        for seed in sorted(rows.distinct(tables.SEED))
      ]
    )

  between = {
    partition: each(share_between_clients, partition)
    for partition in (_ALIKE, _ONE_DIGIT)
  }
  yield claims.difference(
    'Where clients are alike nearly all neurons act alike for them: the share '
    'of the variance of outputs that is between clients',
    _FIGURE_1,
    between[_ALIKE],
    below=_HARDLY_ANY,
  )
  yield claims.difference(
    'With one digit each neurons vary: by how much that share is more',
    _FIGURE_1,
    between[_ONE_DIGIT] - between[_ALIKE],
  )
  shares = each(shares_of_clients, _ONE_DIGIT)
  num_top = round(_TOP * shares.shape[1])
  for statement, part, side in (
    (
      f'The top {_TOP:.0%} of the neurons have large outputs for most clients: '
      'the share of clients',
      shares[:, :num_top],
      'above',
    ),
    (
      'The others have large outputs for some clients only: the share of them',
      shares[:, num_top:],
      'below',
    ),
  ):
    yield claims.difference(
      statement, _FIGURE_1, part.mean(axis=1), **{side: _MOST}
    )

  def entropies(partition, network=_TRAINED):
    """The entropies by seed and neuron."""
    return table.curve(
      'entropy', 'neuron', partition=partition, network=network
    )

  def dispersed(partition):
    return np.mean(entropies(partition) > _BETWEEN_PEAKS, axis=1)

  means = {
    (partition, network): entropies(partition, network).mean(axis=1)
    for partition in (_ALIKE, _ONE_DIGIT)
    for network in (_TRAINED, _INITIAL)
  }
  yield claims.difference(
    'Where clients are alike the entropy is near zero or below: the share of '
    f'neurons above {_BETWEEN_PEAKS:g}',
    _FIGURE_2,
    dispersed(_ALIKE),
    below=_PEAK,
  )
  for words, share in (
    ('above', dispersed(_ONE_DIGIT)),
    ('below', 1 - dispersed(_ONE_DIGIT)),
  ):
    yield claims.difference(
      'With one digit each there are two kinds of neurons, with entropies near '
      f'0 and near 2: the share {words} {_BETWEEN_PEAKS:g}',
      _FIGURE_2,
      share,
      above=_PEAK,
    )
  yield claims.difference(
    'Neurons are more dispersed with one digit each than where clients are '
    'alike: the difference of the mean entropies',
    _FIGURE_2,
    means[_ONE_DIGIT, _TRAINED] - means[_ALIKE, _TRAINED],
  )
  yield claims.difference(
    'That is learned, and not only of the images: by how much more that '
    'difference is than with the initial network',
    _FIGURE_2,
    means[_ONE_DIGIT, _TRAINED]
    - means[_ALIKE, _TRAINED]
    - means[_ONE_DIGIT, _INITIAL]
    + means[_ALIKE, _INITIAL],
  )


def draw_neurons(
  table: paper.Table, sizes: NeuronsSizes, figure: Figure
) -> None:
  """Figure 1 of the first seed, and of all seeds figure 2 of both networks."""
  figure.set_size_inches(10, 9)
  grid = figure.add_gridspec(2, 2, height_ratios=(5, 4))
  trained = table.where(network=_TRAINED, seed=table.distinct('seed')[0])
  for column, partition in enumerate(sizes.partitions):
    outputs = trained.where(partition=partition).frame.filter(like=_CLIENT)
    means = outputs.mean(axis=1)
    axes = figure.add_subplot(grid[0, column])
    sns.heatmap(
      outputs.loc[means.sort_values(ascending=False).index],
      ax=axes,
      vmin=0,
      vmax=np.quantile(outputs, 0.99),
      xticklabels=False,
      yticklabels=False,
    )
    axes.set(
      title=f'Outputs, {partition}',
      xlabel='Clients by digit',
      ylabel='Neurons by mean',
    )
  first = None
  for column, network in enumerate((_TRAINED, _INITIAL)):
    axes = figure.add_subplot(grid[1, column], sharex=first, sharey=first)
    first = first or axes
    axes.hist(
      [
        table.where(partition=partition, network=network).frame['entropy']
        for partition in sizes.partitions
      ],
      bins=40,
      label=list(sizes.partitions),
    )
    axes.set(
      title=f'{network} networks', xlabel='Entropy of a neuron over clients'
    )
    axes.legend(frameon=False)


def specificity(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """The share of variance that classes explain, `[n, m]` -> `[m]`.

  NaN for what is the same for all examples.
  """
  between = sum(
    np.mean(labels == label)
    * np.square(outputs[labels == label].mean(0) - outputs.mean(0))
    for label in np.unique(labels)
  )
  with np.errstate(invalid='ignore'):
    return between / outputs.var(axis=0)


def likeness(maps: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Correlations of channels over examples and places, `[n, p, m]` -> `[m]`."""
  a, b = (part - part.mean(axis=(0, 1)) for part in (maps, others))
  norms = np.sqrt(np.square(a).sum((0, 1)) * np.square(b).sum((0, 1)))
  with np.errstate(invalid='ignore'):
    return (a * b).sum((0, 1)) / norms


def measure_features(context: trials.Context) -> paper.Rows:
  """Scores of shared and personal channels, means over clients."""
  sizes = context.sizes
  compared = (
    trials.Method(_FED_FAC, 'fed_fac', {'layers': sizes.layer}),
    trials.Method(_FED_AVG, 'fed_avg'),
  )
  runs = {
    (result.method, result.seed): result.run
    for result in fed_fac.run(context, compared)
  }
  arrays = context.load_arrays(sizes.dataset, **sizes.dataset_arguments)
  images = trials.test_images(arrays)

  def maps(model, weights):
    """`[images, places, channels]`."""
    (found,) = representation.layer_features(
      model, weights, images, [sizes.layer]
    ).values()
    num_channels = weights[f'{sizes.layer}/kernel'].shape[-1]
    return found.reshape(len(images), -1, num_channels)

  for seed in context.progress(context.seeds):
    fed_fac_run, fed_avg_run = (
      runs[method, seed].open() for method in (_FED_FAC, _FED_AVG)
    )
    scores = collections.defaultdict(list)
    with context.create_runtime() as runtime:
      state = fed_fac_run.server_state(fed_fac_run.build_process(), runtime)
      is_shared = np.asarray(state.algorithm['is_shared'][sizes.layer])
      client_ids = fed_fac_run.data.client_ids[: sizes.num_shown_clients]
      for client_id in client_ids:
        own = maps(
          fed_fac_run.model, fed_fac_run.personal_weights(client_id, runtime)
        )
        # Those of FedAvg differ between clients by local statistics alone.
        if sizes.statistics == 'local' or client_id == client_ids[0]:
          fed_avg_maps = maps(
            fed_avg_run.model, fed_avg_run.personal_weights(client_id, runtime)
          )
        scores[_LIKENESS].append(likeness(own, fed_avg_maps))
        for score, found in (
          (_SPECIFICITY, own),
          (_FED_AVG_SPECIFICITY, fed_avg_maps),
        ):
          of_channels = specificity(found.mean(axis=1), arrays.y_test)
          scores[score].append(of_channels)
    for channels, chosen in ((_SHARED, is_shared), (_PERSONAL, ~is_shared)):
      for score, values in scores.items():
        yield {
          'channels': channels,
          'score': score,
          'seed': seed,
          # Channels that are the same for all images show nothing.
          'value': np.nanmean(np.array(values)[:, chosen]),
        }


def features_claims(table: paper.Table, sizes: FeaturesSizes) -> paper.Claims:
  """Claims of section 5.6 on the two kinds of filters."""
  del sizes
  for statement, lead in (
    (
      "Shared channels are more like FedAvg's than personal ones are: the "
      'difference of correlations',
      table.lead('value', _SHARED, _PERSONAL, by='channels', score=_LIKENESS),
    ),
    (
      'Personal channels tell classes apart better than shared ones: the '
      'difference of the shares of variance that classes explain',
      table.lead(
        'value', _PERSONAL, _SHARED, by='channels', score=_SPECIFICITY
      ),
    ),
    (
      "They do so better than FedAvg's corresponding ones: the difference",
      table.lead(
        'value',
        _SPECIFICITY,
        _FED_AVG_SPECIFICITY,
        by='score',
        channels=_PERSONAL,
      ),
    ),
  ):
    yield claims.difference(statement, _FIGURE_10, lead)


def measure_ablation(context: trials.Context) -> paper.Rows:
  """Accuracy with random splits, and with elements masked."""
  sizes = context.sizes
  analysis = trials.Method(_FACTOR_ANALYSIS, 'fed_fac')
  to_mask = trials.Method('tau=50%', 'fed_fac', {'threshold': 0.5})
  masked = {
    name: analysis if threshold == 0.5 else to_mask
    for name, threshold in sizes.thresholds.items()
  }
  splits = [analysis, *fed_fac.RANDOM_SPLITS]
  compared = {
    name: splits if method is analysis else [*splits, method]
    for name, method in masked.items()
  }
  # All are trained before the runtime is there.
  results = list(fed_fac.run(context, compared))
  with context.create_runtime() as runtime:
    for result in results:
      accuracies = {}
      if result.method != to_mask.name:
        accuracies[result.method] = result.accuracy()
      if result.method == masked[result.condition].name:
        finished = result.run.open()
        accuracies |= masked_accuracies(finished, sizes.layers[-1], runtime)
      for name, accuracy in accuracies.items():
        yield {**result.columns(), 'method': name, 'accuracy': accuracy}


def masked_accuracies(
  run: pfl.Run, layer: str, runtime: runtime_base.Runtime
) -> Mapping[str, float]:
  """The accuracy with nothing, shared elements and personal elements masked.

  Masked elements have the weights of a network that was initialized with
  another seed.
  """
  state = run.server_state(run.build_process(), runtime)
  is_shared = np.asarray(state.algorithm['is_shared'][layer])
  masks = {
    'nothing masked': np.zeros_like(is_shared),
    _SHARED_MASKED: is_shared,
    _PERSONAL_MASKED: ~is_shared,
  }
  units = run.model.units[layer]
  # Of all weights of a unit, or of those that FedFac divides.
  gates = {
    name: times
    for name, times in units.gates.items()
    if run.settings.method.divided == 'all' or name in units.kernels
  }
  other = dataclasses.replace(run.settings, seed=run.settings.seed + 1000)
  random = other.build_model(run.data).initial_weights
  model = run.model

  @tf.function(reduce_retracing=True)
  def score(weights, test):
    return objectives.means(scoring.score(model, weights, test).sums)

  accuracies = collections.defaultdict(list)
  for client_id in run.data.client_ids:
    if not run.data.num_test_examples(client_id):
      continue
    personal = run.personal_weights(client_id, runtime)
    test = pfl.padded(run.data.test(client_id))
    for name, mask in masks.items():
      weights = collections.OrderedDict(personal)
      for variable, times in gates.items():
        weights[variable] = np.where(
          np.tile(mask, times), random[variable], personal[variable]
        )
      accuracies[name].append(float(score(weights, test)['accuracy']))
  return {name: float(np.mean(values)) for name, values in accuracies.items()}


def ablation_claims(table: paper.Table, sizes: fed_fac.Sizes) -> paper.Claims:
  """Claims on both panels of table 8."""
  pairs = [
    (_SHARED_MASKED, _PERSONAL_MASKED),
    *((_FACTOR_ANALYSIS, other.name) for other in fed_fac.RANDOM_SPLITS),
  ]
  yield from claims.more_accurate(
    table, _TABLE_8, pairs, partition=sizes.partitions
  )


EXPERIMENTS = (
  paper.Experiment(
    name='fedsplit_neurons',
    summary='Neurons of clients that trained alone: some are alike, others '
    'differ where the data do',
    paper='FedSplit, figures 1 and 2',
    measure=measure_neurons,
    claims=neurons_claims,
    draw=draw_neurons,
    full={'mnist': NeuronsSizes()},
    fast=NEURONS_FAST,
    first_seed=5,
  ),
  paper.Experiment(
    name='fedfac_features',
    summary="What FedFac's shared and personal channels show, and FedAvg's",
    paper=_FIGURE_10,
    measure=measure_features,
    claims=features_claims,
    draw=panels.bars(
      'value',
      group='score',
      by='channels',
      y_label='Mean over channels and clients',
    ),
    full={'cifar10': FeaturesSizes()},
    fast=FEATURES_FAST,
  ),
  paper.Experiment(
    name='fedfac_ablation',
    summary="FedFac's shared and personal elements, and random splits",
    paper=_TABLE_8,
    measure=measure_ablation,
    claims=ablation_claims,
    draw=panels.accuracy_bars(by='partition', width=12),
    full=fed_fac.FULL,
    fast=fed_fac.FAST,
  ),
)
