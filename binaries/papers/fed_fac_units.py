"""Shared and personal units of FedSplit and FedFac: measures and claims.

* `neurons` (FedSplit's figures 1 and 2): the outputs of hidden neurons of
  clients that trained alone. A neuron's output is the mean over a client's
  training images. It is large if it exceeds the mean over neurons and clients.
  The entropy of a neuron is over the clients, by the k nearest neighbors. The
  initial network is measured in the same way. All clients have it in common, so
  that its differences between clients come from their images alone.
* `features` (FedFac's figure 10): how similar channels are to FedAvg's, and how
  well they separate classes. A map's likeness is its correlation with FedAvg's
  map, over places and images. Its specificity is the share of the variance of
  its mean between images that the classes explain.
* `ablation` (FedFac's table 8): accuracy with shared or personal units replaced
  by random values, and with random splits.

The studies are in `fed_fac`.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, sections 1 and 5.6.
  Kozachenko, Leonenko: Sample Estimate of the Entropy of a Random Vector,
  Problems of Information Transmission 23, 1987.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import seaborn as sns
import tensorflow as tf
from matplotlib.figure import Figure
from scipy import special

import tff_pfl as pfl
from tff_pfl import errors
from tff_pfl.core import objectives, scoring
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import SEED, Numbers
from tff_pfl.studies.study import Method, Study

from . import representation

_FIGURE_1, _FIGURE_2 = 'FedSplit, figure 1', 'FedSplit, figure 2'
ALIKE, ONE_DIGIT = 'IID', 'one digit each'
_TRAINED, _INITIAL = 'trained', 'initial'
# Prefix of the columns of clients' outputs.
_CLIENT = 'client/'
# Halfway between the figure's two peaks near 0 and near 2.
_BETWEEN_PEAKS = 1.0
# The share of the neurons that makes a peak.
_PEAK = 0.1
# The share of the neurons at the top of figure 1, and the share of the clients
# that counts as most of them.
_TOP, _MOST = 0.1, 0.5
# The k of the nearest neighbors.
_NUM_NEIGHBORS = 3
# Clients of `fedfac_features` whose channels are measured.
_NUM_SHOWN_CLIENTS = 20
# Smaller distances between outputs of clients are replaced by this one.
_LEAST_DISTANCE = 1e-3
_SHARED, _PERSONAL = 'shared', 'personal'
FACTOR_ANALYSIS = 'factor analysis'
SHARED_MASKED, PERSONAL_MASKED = 'shared masked', 'personal masked'
_LIKENESS, _SPECIFICITY = 'likeness to FedAvg', 'specificity'
_FED_AVG_SPECIFICITY = "FedAvg's specificity"


def entropy(values: np.ndarray, num_neighbors: int) -> np.ndarray:
  """The differential entropy of columns, `[n, m]` -> `[m]`, in nats.

  It comes from the distances to the k-th nearest neighbor (Kozachenko,
  Leonenko).
  """
  distances = np.abs(values[:, np.newaxis] - values[np.newaxis])
  # The nearest value is the value itself.
  neighbor_distances = np.sort(distances, axis=1)[:, num_neighbors]
  logs = np.log(2 * np.maximum(neighbor_distances, _LEAST_DISTANCE))
  return (
    special.digamma(len(values)) - special.digamma(num_neighbors) + logs.mean(0)
  )


def share_between_clients(outputs: np.ndarray) -> float:
  """The share of variance within neurons, for outputs `[neurons, clients]`."""
  return outputs.var(axis=1).mean() / outputs.var()


def shares_of_clients(outputs: np.ndarray) -> np.ndarray:
  """The share of clients with a large output, for each neuron.

  Args:
    outputs: `[neurons, clients]`.

  Returns:
    `[neurons]`, the neuron with the largest mean output first.
  """
  is_large = outputs > outputs.mean()
  return is_large.mean(axis=1)[np.argsort(-outputs.mean(axis=1))]


def measure_neurons(context: measures.Context) -> measures.Rows:
  """Each neuron's entropy and outputs, before and after training."""
  for result in context.progress(context.run()):
    outputs = {_TRAINED: [], _INITIAL: []}
    run = result.open()
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
      entropies = entropy(of_clients, _NUM_NEIGHBORS)
      for neuron, own in enumerate(of_clients.T):
        yield {
          **result.columns(),
          'network': network,
          'neuron': neuron,
          'entropy': entropies[neuron],
          **{f'{_CLIENT}{i}': value for i, value in enumerate(own)},
        }


def neurons_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims of both figures: one kind of neurons, or two kinds."""
  del study
  if {ALIKE, ONE_DIGIT} - {*numbers.distinct('condition')}:
    return

  def each(function, condition):
    """The value of a function of the outputs `[neurons, clients]`, by seed."""
    rows = numbers.where(condition=condition, network=_TRAINED).frame
    return np.array(
      [
        function(of_seed.filter(like=_CLIENT).to_numpy(float))
        for _, of_seed in rows.groupby(SEED)
      ]
    )

  between = each(share_between_clients, ALIKE)
  yield claims.difference(
    'Where clients are alike nearly all neurons act alike for them: the share '
    'of the variance of outputs that is between clients',
    between,
    source=_FIGURE_1,
    below=0.1,
  )
  yield claims.difference(
    'With one digit each neurons vary: by how much that share is more',
    each(share_between_clients, ONE_DIGIT) - between,
    source=_FIGURE_1,
  )
  shares = each(shares_of_clients, ONE_DIGIT)
  num_top = round(_TOP * shares.shape[1])
  yield claims.difference(
    f'The top {_TOP:.0%} of the neurons have large outputs for most clients: '
    'the share of clients',
    shares[:, :num_top].mean(axis=1),
    source=_FIGURE_1,
    above=_MOST,
  )
  yield claims.difference(
    'The others have large outputs for some clients only: the share of them',
    shares[:, num_top:].mean(axis=1),
    source=_FIGURE_1,
    below=_MOST,
  )

  def entropies(condition, network=_TRAINED):
    """The entropies by seed and neuron."""
    fixed = {'condition': condition, 'network': network}
    return numbers.curve('entropy', 'neuron', **fixed)

  def share_above(condition):
    return np.mean(entropies(condition) > _BETWEEN_PEAKS, axis=1)

  def dispersion(network):
    """How much larger the mean entropy is with one digit each."""
    one_digit, alike = (entropies(c, network) for c in (ONE_DIGIT, ALIKE))
    return one_digit.mean(axis=1) - alike.mean(axis=1)

  yield claims.difference(
    'Where clients are alike the entropy is near zero or below: the share of '
    f'neurons above {_BETWEEN_PEAKS:g}',
    share_above(ALIKE),
    source=_FIGURE_2,
    below=_PEAK,
  )
  above = share_above(ONE_DIGIT)
  for words, share in (('above', above), ('below', 1 - above)):
    yield claims.difference(
      'With one digit each there are two kinds of neurons, with entropies near '
      f'0 and near 2: the share {words} {_BETWEEN_PEAKS:g}',
      share,
      source=_FIGURE_2,
      above=_PEAK,
    )
  yield claims.difference(
    'Neurons are more dispersed with one digit each than where clients are '
    'alike: the difference of the mean entropies',
    dispersion(_TRAINED),
    source=_FIGURE_2,
  )
  yield claims.difference(
    'That is learned, and not only of the images: by how much more that '
    'difference is than with the initial network',
    dispersion(_TRAINED) - dispersion(_INITIAL),
    source=_FIGURE_2,
  )


def draw_neurons(numbers: Numbers, study: Study, figure: Figure) -> None:
  """Figure 1 for the first seed, and figure 2 with all seeds, by network."""
  del study
  conditions = numbers.distinct('condition')
  figure.set_size_inches(10, 9)
  top, bottom = figure.subplots(2, 2, height_ratios=(5, 4))
  trained = numbers.where(network=_TRAINED, seed=numbers.distinct('seed')[0])
  for axes, condition in zip(top, conditions):
    outputs = trained.where(condition=condition).frame.filter(like=_CLIENT)
    order = outputs.mean(axis=1).sort_values(ascending=False).index
    largest = np.quantile(outputs, 0.99)
    sns.heatmap(outputs.loc[order], ax=axes, vmin=0, vmax=largest)
    axes.set(title=f'Outputs, {condition}', xticks=[], yticks=[])
    axes.set(xlabel='Clients by digit', ylabel='Neurons by mean')
  for axes, network in zip(bottom, (_TRAINED, _INITIAL)):
    frame = numbers.where(network=network).frame
    by_condition = frame.groupby('condition', sort=False)['entropy']
    axes.hist([own for _, own in by_condition], bins=40, label=conditions)
    axes.set(title=f'{network} networks')
    axes.set(xlabel='Entropy of a neuron over clients')
    axes.legend(frameon=False)
  bottom[1].sharex(bottom[0])
  bottom[1].sharey(bottom[0])


def specificity(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """The share of variance that classes explain, `[n, m]` -> `[m]`.

  NaN for a column that is the same for all examples.
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


def measure_features(context: measures.Context) -> measures.Rows:
  """Scores of shared and personal channels, means over clients."""
  names = context.study.method_names
  expected = 'FedFac and FedAvg'
  errors.expect({*names} == {'FedFac', 'FedAvg'}, 'methods', expected, names)
  runs = {(one.method, one.condition, one.seed): one for one in context.run()}
  for condition, seed in context.each(context.study.conditions):
    fed_fac, fed_avg = (
      runs[name, condition, seed].open() for name in ('FedFac', 'FedAvg')
    )
    for row in _channels(context, fed_fac, fed_avg):
      yield {'condition': condition, 'seed': seed, **row}


def _channels(context, fed_fac, fed_avg):
  """Yields scores of FedFac's channels, compared with a run of FedAvg."""
  data, layer = fed_fac.settings.data, fed_fac.settings.method.layers
  # The dataset's own test images. It may have no argument but normalization.
  arrays = context.load_arrays(data.name, **data.arguments)
  images = measures.test_images(arrays)

  def maps(run, weights):
    """`[images, places, channels]`."""
    outputs = representation.layer_features(run.model, weights, images, layer)
    num_channels = weights[f'{layer}/kernel'].shape[-1]
    return outputs.reshape(len(images), -1, num_channels)

  scores = collections.defaultdict(list)
  with context.create_runtime() as runtime:
    state = fed_fac.server_state(fed_fac.build_process(), runtime)
    is_shared = np.asarray(state.algorithm['is_shared'][layer])
    is_local = fed_fac.settings.process.statistics == 'local'
    shown = fed_fac.data.client_ids[:_NUM_SHOWN_CLIENTS]
    for index, client_id in enumerate(shown):
      own = maps(fed_fac, fed_fac.personal_weights(client_id, runtime))
      # FedAvg's maps differ between clients only if statistics are local.
      if index == 0 or is_local:
        others = maps(fed_avg, fed_avg.personal_weights(client_id, runtime))
      scores[_LIKENESS].append(likeness(own, others))
      for quantity, outputs in (
        (_SPECIFICITY, own),
        (_FED_AVG_SPECIFICITY, others),
      ):
        of_channels = specificity(outputs.mean(axis=1), arrays.y_test)
        scores[quantity].append(of_channels)
  for channels, chosen in ((_SHARED, is_shared), (_PERSONAL, ~is_shared)):
    for quantity, values in scores.items():
      # Ignores channels that are the same for all images.
      value = np.nanmean(np.array(values)[:, chosen])
      yield {'channels': channels, 'quantity': quantity, 'value': value}


def features_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims of section 5.6 about the two kinds of filters."""
  conditions = numbers.distinct('condition')
  for condition in conditions:
    start = f'{condition}: ' if len(conditions) > 1 else ''
    here = numbers.where(condition=condition)
    like, specific, fed_avg_specific = (
      {
        channels: here.values('value', channels=channels, quantity=quantity)
        for channels in (_SHARED, _PERSONAL)
      }
      for quantity in (_LIKENESS, _SPECIFICITY, _FED_AVG_SPECIFICITY)
    )
    for statement, lead in (
      (
        "Shared channels are more like FedAvg's than personal ones are: the "
        'difference of correlations',
        like[_SHARED] - like[_PERSONAL],
      ),
      (
        'Personal channels tell classes apart better than shared ones: the '
        'difference of the shares of variance that classes explain',
        specific[_PERSONAL] - specific[_SHARED],
      ),
      (
        "They do so better than FedAvg's corresponding ones: the difference",
        specific[_PERSONAL] - fed_avg_specific[_PERSONAL],
      ),
    ):
      yield claims.difference(start + statement, lead)


def halved(study: Study) -> Study:
  """The study of the runs whose units are masked.

  Half of the units of a single layer are personal: the last layer that the
  condition divides, with the kappa of the authors' code.
  """

  def half(condition):
    hparams = study.settings_of(condition, FACTOR_ANALYSIS, 0).method
    last = hparams.layers.split(',')[-1]
    return {**study.conditions[condition], 'fed_fac.layers': last}

  return dataclasses.replace(
    study,
    methods={'half': Method('fed_fac', threshold=0.5, explained_variance=0.85)},
    conditions={condition: half(condition) for condition in study.conditions},
    selected=None,
  )


def measure_ablation(context: measures.Context) -> measures.Rows:
  """Accuracy with factor analysis and random splits, and with units masked."""
  # Trains all before the runtime is created.
  results = list(context.run())
  halves = list(context.run(halved(context.study)))
  for result in results:
    yield {**result.columns(), 'score': result.score()}
  with context.create_runtime() as runtime:
    for result in context.progress(halves):
      for name, accuracy in masked_accuracies(result.open(), runtime).items():
        yield {**result.columns(), 'method': name, 'score': accuracy}


def masked_accuracies(
  run: pfl.Run, runtime: runtime_base.Runtime
) -> Mapping[str, float]:
  """The accuracy with nothing, shared elements or personal elements masked.

  Masked elements have the weights of a network that was initialized with
  another seed.
  """
  layer = run.settings.method.layers
  state = run.server_state(run.build_process(), runtime)
  is_shared = np.asarray(state.algorithm['is_shared'][layer])
  masks = {
    'nothing masked': np.zeros_like(is_shared),
    SHARED_MASKED: is_shared,
    PERSONAL_MASKED: ~is_shared,
  }
  units = run.model.units[layer]
  # All weights of a unit, or only the weights that FedFac divides.
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
  for client_id in filter(run.data.num_test_examples, run.data.client_ids):
    personal = run.personal_weights(client_id, runtime)
    test = pfl.padded(run.data.test(client_id))
    for name, mask in masks.items():
      weights = collections.OrderedDict(personal)
      for variable, times in gates.items():
        is_masked = np.tile(mask, times)
        own = personal[variable]
        weights[variable] = np.where(is_masked, random[variable], own)
      accuracies[name].append(float(score(weights, test)['accuracy']))
  return {name: float(np.mean(values)) for name, values in accuracies.items()}
