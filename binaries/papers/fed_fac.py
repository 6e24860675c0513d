"""FedSplit and FedFac: all studies of the paper.

* `fedsplit_convergence` and `fedsplit_generalization` (theorems 1 and 2, see
  `fed_split`), `fedfac_simulation` (figures 6 and 7, see `fed_fac_simulation`).
* `fedsplit_neurons` (FedSplit's figures 1 and 2), `fedfac_features` (figure 10)
  and `fedfac_ablation` (table 8), see `fed_fac_units`.
* `fedfac_tuning` (tables 4 to 6): the divided layer Lambda, then the threshold
  tau, then the share kappa, each with the best values of the earlier ones. As
  in the paper, the best value has the highest test accuracy. The other studies
  report other seeds.
* `fedfac_comparison` (tables 2 and 7, figures 8 and 9): the accuracy of FedFac,
  static and dynamic, and of all methods that it is compared with, its
  distribution over the clients, the training loss by round, and the cost of
  rounds.
* `fedfac_new_clients` (table 3): accuracy on clients that did not train, by
  local training of the personal units or by the ensemble of the trained
  clients' models.
* `fedfac_equal_clients` (tables 2 and 8): whether FedFac leads on clients of
  equal size, as in the authors' code. To try other budgets, networks and
  starts, use `--set=num_epochs=5`, `--set=model=...` (and
  `--set=fed_fac.layers=...`, which all forms then divide) and
  `--set=initial_weights=FILE`.
* `fedfac_full_rule` (table 2): the same with the authors' full rule.

The results, and reasons why some differ from the paper's, are in
docs/results/fedfac.md.

Deviations

Scale `cpu`: the network is a CNN of two convolutions and a hidden dense layer,
and clients have mixtures of classes from Dirichlet(pi). There are 40 rounds of
one local epoch of Adam, and FedRep has five epochs on the head. The paper tunes
the number of epochs and trains to convergence. FedFac has Lambda = dense_1,
kappa = 0.85 and for each mixture the tau that was best for factors of updates
in `fedfac_tuning`, with seeds that are not reported. FedProx has the authors'
mu, 0.001, which is stronger here because the authors' loss is a sum over a
batch. FedEM has three components, and LG-FedAvg shares the head. Accuracies are
means over clients. The paper weights them by clients' sizes.

Scale `paper`: all methods follow the protocol of the authors' code
(ffair/FedFac on GitHub, at 76101b38). Batch normalization keeps its statistics
on the clients, even for FedAvg, and FedFac analyzes weights by eigenvectors and
divides kernels. The code's loss is a sum over the batch and ours is the mean,
so weight decay and FedProx's mu are the code's divided by the batch size.
Networks start at random. The authors use torchvision's VGG-16 and ResNet-18
with ImageNet weights, which `--set=initial_weights=FILE` sets. FedEM must then
be left out (`--methods`), since its models start from different random weights
here. The data need `--data_dir` with cifar10.npz, cifar100.npz, femnist.npz or
a text, or a network for TensorFlow Datasets (CIFAR) and
tff.simulation.datasets (FEMNIST). CIFAR needs a GPU.

Table 2 at scale `paper`: the paper reports accuracies weighted by clients'
sizes, the best mean of ten rounds, and says that a fifth of each client's
examples is its test set.

* CIFAR-10: 100 clients have 500 training and 100 test images, with classes from
  a Dirichlet distribution for each client whose concentration is ten times pi.
  All units of the last two convolutions are personal at pi = 0.1, and a
  twentieth of the units of the last one at 0.5 and 1. The code mirrors some
  training images once, at random, and we do not. It divides test images by
  their mean instead of their deviation, which leaves them about half of the
  training images' contrast. We divide both by the deviation.
* CIFAR-100: 100 clients have 480 training and 120 test images, and VGG-16 has
  batch normalization. FedAvg has 250 rounds in the code, whose script names no
  number, and 500 here. In the code a client's shards may be of one class, here
  its classes are distinct. The code's pixels are from 0 to 255, here images are
  normalized. The code's tau and kappa differ from the paper's tables 5 and 6
  (95, 95 and 90%; 0.9, 0.75 and 0.75): all units of the last hidden layer are
  personal with 5 and 10 classes, three quarters with 30.
* FEMNIST: the paper does not say which 1,079 writers it has. Nine tenths of the
  channels of the second convolution are personal. The code drops whole channels
  after that convolution, and has a softmax before its loss and another test
  share (20%). We have none of these.
* Shakespeare: the task is to predict the next character for 778 speaking roles,
  from a plain text of the plays. tff.simulation.datasets has 715 roles. The
  code's roles belong to one play each and have more than 80 characters in both
  parts, so the text should name PLAY_ROLE. FedFac divides the dense layer at
  the median of the communalities, the code at their mean. The code's loss is a
  sum over 32 sequences of 80 characters, by which we divide mu, and is weighted
  by character (here all have the same weight). Its network predicts every
  character of a sequence, ours the last. In its LG-FedAvg all layers stay on
  the clients, in ours all except the last.
* FedProx: the paper chooses mu from 1, 0.5, 0.1, 0.01 and 0.001. The code has
  0.001 on CIFAR-10; 1, 0.01 and 0.001 with 5, 10 and 30 classes of CIFAR-100;
  and 0.5 on the other data.
* FedEM has separate code: a weight decay of 0.0005 with a mean loss, and
  averaged statistics (`--methods=FedEM --set=weight_decay=0.0005
  --set=statistics=global`, in a separate folder). In that code, but not here,
  all clients share the moments of one Adam, and clients outside the cohort
  count in the mean.
* FedRep: the authors have no code that runs it. It has FedPer's epochs here,
  and its own ten on the head.

`fedfac_new_clients`: a new client trains all weights and then restores the
shared ones, as in the authors' code. It starts from the server's model (in the
code from the model of the client that was scored before). In the paper's text
it trains its personal units alone (in another row). At scale `cpu` 30 of 100
clients are new, not 10, to reduce the deviation. At both scales the ensemble
consists of the clients of the last round, as in the authors' code, and has the
mean of their probabilities (logits in the code). At scale `paper` local
training has 20 epochs in batches of 32, as in the code. New clients' statistics
of batch normalization come from their own examples (in the code from the client
that was scored before).

`fedfac_equal_clients`: in the authors' code clients have equal numbers of
examples. Their classes come from a Dirichlet distribution for each client with
one parameter pi for each class (here `client_dirichlet:` with ten times pi, the
sum). The statistics of batch normalization are never averaged, even for FedAvg,
and each client is scored with its own. At pi = 0.1 tau is infinite on the two
deepest divided layers, so that all of their units are personal. The factors are
of weights. This study differs: the network is a CNN of two convolutions without
batch normalization, and starts at random, not from ImageNet weights. Whole
layers are divided, including biases, and there are fewer rounds and epochs. The
test set is 17% of each client's examples. There is no weight decay, factors are
found by the paper's iteration, and tau is not the 5% quantile for pi = 1.

`fedfac_full_rule`: only kernels are divided, by eigenvectors of the weights,
and the statistics of batch normalization stay on the clients. Other differences
from the authors' protocol are as in `fedfac_equal_clients`, except tau: it is
theirs at pi = 1 (5%), our best one (75%), or infinite, which is theirs at
pi = 0.1. Only the last hidden layer is divided (two layers in the code at
pi = 0.1), and kappa is 0.85 (0.5 in the code at pi = 1).

`fedsplit_neurons`: where the paper is silent, we follow the authors' code.
100 clients train a network with 200 hidden neurons for five epochs of Adam from
a common start, in batches of 16. In one condition clients are alike, in the
other each has one digit. Outputs come from the trained network (in the code
from the last epoch, during training). The loss is on logits (probabilities in
the code), and the entropy's k is ours.

`fedfac_features`: half of the channels of a convolution are personal (at scale
`paper` ResNet-18's fifth one). Both methods have the same initial weights. The
paper shows the maps of one image, and calls the personal filters' maps clear
and specific, FedAvg's maps noisy, and the shared filters' maps similar to
FedAvg's. Here these are numbers over the dataset's test images. In the code
tau is the mean of the communalities, the images are training images, and the
FedAvg that it loads has 268 rounds.

`fedfac_ablation`, panel A: either the shared or the personal units are masked,
half of all units. Masks are weights of another initial network, put on the
trained models. In the paper clients train with the masks. In the code the masks
come with each download, are normal random numbers instead of kernels, and leave
out dense layers, which are masked here. Only the last of the condition's layers
is divided, with kappa 0.85, as in the code. Accuracies are plain means over
clients, and masked accuracies belong to the last models.

`fedfac_ablation`, panel B: an equal number of units are personal, at random.
The split is drawn in every round, like FedFac's partition, or once, for
comparison. From a common random start neurons are exchangeable (see
`fed_fac_simulation`), so that a random split that stays is about as good as
factor analysis. In the code's table 2 all units are personal for CIFAR-10 with
pi = 0.1 and CIFAR-100 with 5 and 10 classes. The random split then repeats
FedFac's row. The paper's two rows differ, so their tau was another one
(`--set=threshold=0.95`, which also applies to the masked runs). The authors
have no script with a random split, so our rule for a round is our own.

`fedfac_simulation`: the paper has nu_c = mu_c. Then every personal neuron is on
for every example of its client, and their sum is so far from 0 that 99.9% of
all labels are 1. Here nu_c ~ N(0, I) is drawn independently, and y = 1 if the
network's output is above its median, which is the given b. The paper does not
say where networks start. Neurons with random weights are exchangeable: neuron j
knows nothing about the true neuron j, so that any two partitions of the same
size are equivalent, including the true one and a random one, as the case
'random starts' shows. Here client c starts from its true weights with noise,
and the server from the mean over clients. The results depend on that. Dynamic
FedFac analyzes "updates (weights or gradients)". From this start weights
separate the neurons well, and their updates less so (rows 'dynamic, updates').
kappa = 0.75 is from the paper's grid: with 0.5 there are fewer factors than the
shared neurons have, and with 0.9 personal neurons also get factors. tau makes
the true number of neurons personal. Training is SGD with one epoch per round,
100 examples for each client, and all clients in each round.

`fedsplit_convergence` and `fedsplit_generalization`: the method has no
deviations. The widths that the theorems require grow with the fourth power of
the number of examples and are out of reach. Theorem 1 has a condition on eta_l,
of which our copy has the letters but not their places, and the proof is in a
supplement that we do not have. The legible parts are eta_l = O(...) of
lambda_s + lambda_p, gamma_s gamma_p and G N, and an exponent 2 that has lost
its base. For FedAvg the paper has lambda_s / (gamma_s G N^2). The condition is
therefore most probably

    eta_l = O((lambda_s + lambda_p) / (gamma_s gamma_p G N^2)),

with gamma the largest eigenvalue divided by the smallest. For a constant of 1
it is 3.7e-5 to 6.5e-5 with 2 clients, 3.0e-6 to 4.6e-6 with 5 and 4.5e-7 to
5.8e-7 with 10 (N = 20, 50, 100; 5 seeds), so eta_l = 0.1 is 1,500 to 220,000
times as large (80 to 2,200 times with N instead of N^2). The bound still holds.
It also holds with --set=step_size=4.5e-7, which meets the condition for all of
them, but the loss falls by no more than 3e-5 in 40 rounds. The constant of
theorem 2 is also unknown.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tff_pfl import plots
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Method, Study

from . import fed_fac_simulation, fed_fac_units, fed_split, panels

_FINE_TUNED = ('FedAvg, after local training', 'FedProx, after local training')
# Factor analysis of updates, or of weights. Static FedFac analyzes weights.
_OF_UPDATES, _OF_WEIGHTS = 'FedFac, dynamic', 'FedFac, dynamic, weights'
_LOCAL_TRAINING, _ENSEMBLE = 'FedFac, local training', 'FedFac, ensemble'
# The paper's text has this; the authors' code trains all units.
_PERSONAL_ALONE = 'FedFac, local training of personal units'
_LG_ENSEMBLE = 'LG-FedAvg, ensemble'
_UPDATES, _WEIGHTS = 'FedFac, updates', 'FedFac, weights'
_ALL_PERSONAL = 'FedFac, all personal'
_ANALYSIS = fed_fac_units.FACTOR_ANALYSIS
_RANDOM, _DRAWN_ONCE = 'random split', 'random split, drawn once'
_RANDOM_SPLITS = {
  # Drawn again in each round, like FedFac's partition.
  _RANDOM: Method('fed_fac', split='random'),
  _DRAWN_ONCE: Method('fed_fac', split='random', mode='static'),
}
_TABLE_2, _TABLE_3 = 'FedFac, table 2', 'FedFac, baselines of table 3'

# Settings of studies and their scales.

_study = functools.partial(Study, seeds=range(5), deviations=__doc__)
_LAST_ROUNDS = {'rounds_per_evaluation': 10**6}
_ADAM = {'optimizer': 'adam', 'learning_rate': 0.001}
_FINE_TUNING = {f'fine_tune_{name}': value for name, value in _ADAM.items()}
_CPU = {
  'dataset': 'cifar10',
  'num_clients': 100,
  'cohort_size': 10,
  'model': 'cnn',
  'model_arguments': {'filters': (8, 16), 'widths': (64,)},
  'num_rounds': 40,
  'num_epochs': 1,
  'num_head_epochs': 5,
  'batch_size': 50,
  'fine_tune_num_epochs': 1,
  'fine_tune_batch_size': 50,
  'fed_prox.proximal_strength': 0.001,
  **_FINE_TUNING,
  **_LAST_ROUNDS,
}
_PROTOCOL = {
  'num_clients': 100,
  'participation': 0.1,
  'num_rounds': 500,
  'rounds_per_evaluation': 1,
  'fed_fac.split': 'eigenvectors',
  'fed_fac.divided': 'kernels',
}


def _condition(partition, layers, threshold, explained_variance=0.85):
  """The partition, and FedFac's Lambda, tau and kappa."""
  return {
    'partition': partition,
    'fed_fac.layers': layers,
    'fed_fac.threshold': threshold,
    'fed_fac.explained_variance': explained_variance,
  }


_DIRICHLET = {
  f'dirichlet:{pi}': _condition(f'dirichlet:{pi}', 'dense_1', threshold)
  for pi, threshold in ((0.1, 0.95), (0.5, 0.95), (1, 0.75))
}
# The columns of table 2.
_ALL = float('inf')
_BATCH = {'normalization': 'batch', 'torchvision': True}
_OF_CIFAR_10 = {
  f'CIFAR-10, pi = {pi}': {
    'dataset': 'cifar10',
    'dataset_arguments': {'normalize': True},
    'num_epochs': 20,
    'batch_size': 32,
    'model': 'resnet_18',
    'model_arguments': _BATCH,
    'statistics': 'local',
    'weight_decay': 3.125e-7,
    'fed_prox.proximal_strength': 0.001 / 32,
    **_condition(f'client_dirichlet:{10 * pi:g}', *divided),
  }
  for pi, *divided in (
    (0.1, 'conv_16,conv_17', _ALL),
    (0.5, 'conv_17', 0.05),
    (1, 'conv_17', 0.05, 0.5),
  )
}
_OF_CIFAR_100 = {
  f'CIFAR-100, {classes} classes': {
    'dataset': 'cifar100',
    'dataset_arguments': {'test_fraction': 0.2, 'normalize': True},
    'num_epochs': 1,
    'batch_size': 64,
    'model': 'vgg_16',
    'model_arguments': {**_BATCH, 'widths': (4096, 4096), 'dropout': 0.5},
    'statistics': 'local',
    'weight_decay': 7.8125e-6,
    'fed_prox.proximal_strength': mu / 64,
    **_condition(f'shards:{classes}', 'dense_2', *divided),
  }
  for classes, mu, *divided in (
    (5, 1, _ALL),
    (10, 0.01, _ALL),
    (30, 0.001, 0.75, 0.95),
  )
}
_COLUMNS = {
  **_OF_CIFAR_10,
  **_OF_CIFAR_100,
  'FEMNIST': {
    'dataset': 'femnist',
    'num_clients': 1079,
    'num_epochs': 20,
    'batch_size': 16,
    'model': 'cnn',
    'model_arguments': dict(filters=(32, 64), widths=(512,), dropout=0.5),
    'fed_prox.proximal_strength': 0.5 / 16,
    'lg_fed_avg.global_depth': 2,
    **_condition('natural', 'conv_2', 0.9, 0.75),
  },
  'Shakespeare': {
    'dataset': 'shakespeare',
    'dataset_arguments': {'min_characters': 405},
    'num_clients': 778,
    'num_rounds': 100,
    'num_epochs': 5,
    'batch_size': 32,
    'model': 'text_lstm',
    'model_arguments': dict(
      units=256, num_layers=2, widths=(512,), dropout=0.5
    ),
    'fed_prox.proximal_strength': 0.5 / (32 * 80),
    **_condition('natural', 'dense_1', 0.5),
  },
}
# Conditions of one dataset, beginning with the least similar clients.
_SERIES = {
  '': _DIRICHLET,
  'CIFAR-10: ': _OF_CIFAR_10,
  'CIFAR-100: ': _OF_CIFAR_100,
}
_CONDITIONS = {**_DIRICHLET, **_COLUMNS}
_AT_PAPER = {'settings': _PROTOCOL, 'seeds': [0]}
_AT_CPU = {'conditions': [*_DIRICHLET], 'settings': _CPU}
_AT_SMALL = {'partition': 'dirichlet:0.5', 'model': 'cnn'}
# The layers of the paper's networks have other names.
_ONE_LAYER = {**_AT_SMALL, 'fed_fac.layers': 'dense_1'}


def _published(rows, columns):
  """Published figures, also for the mixtures that stand for CIFAR-10's."""
  return {
    (method, condition): value
    for conditions in (columns, _DIRICHLET)
    for method, values in rows.items()
    for condition, value in zip(conditions, values)
  }


# Tables 2 and 7, figures 8 and 9.

# Quantiles of the clients' accuracies, by column.
_QUANTILES = {
  'client_5_percent': 0.05,
  'client_25_percent': 0.25,
  'client_median': 0.5,
  'client_75_percent': 0.75,
  'client_95_percent': 0.95,
}


def measure_comparison(context: measures.Context) -> measures.Rows:
  """Accuracy and costs, and the training loss by round."""
  for result in context.run():
    losses = [metrics['loss'] for metrics in result.run.history]
    accuracies = [row['after']['accuracy'] for row in result.scores['clients']]
    quantiles = np.quantile(accuracies, [*_QUANTILES.values()])
    summary = result.run.summary
    weighted = summary.get('weighted', {})
    yield {
      **result.columns(),
      'score': result.score(),
      'weighted_accuracy_best_10': weighted.get('best_10_mean'),
      'seconds_per_round': summary['seconds_per_round'],
      **dict(zip(_QUANTILES, quantiles)),
      'client_std': np.std(accuracies),
      'training_loss': np.mean(losses),
      'loss_change': np.mean(np.abs(np.diff(losses))),
      **{f'loss/{number}': loss for number, loss in enumerate(losses, 1)},
    }


# The figure, a column, the claim about it, and True if it is larger than
# FedAvg's.
_FIGURES_8_AND_9 = (
  (8, 'client_median', "the median client's accuracy is larger", True),
  (8, 'client_std', 'accuracies differ less between clients', False),
  (9, 'training_loss', 'the training loss, mean over rounds, is lower', False),
  (9, 'loss_change', 'it changes less from round to round', False),
)


def comparison_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about leads over conditions, figures 8 and 9, and table 7."""
  known, conditions = map(numbers.distinct, ('method', 'condition'))
  forms = [form for form in (_OF_UPDATES, _OF_WEIGHTS) if form in known]
  if not forms or 'FedAvg' not in known:
    return

  def lead(column, condition, other='FedAvg'):
    return numbers.lead(column, forms[0], other, condition=condition)

  def growth(column, series, other='FedAvg'):
    return lead(column, series[-1], other) - lead(column, series[0], other)

  for start, series in _SERIES.items():
    here = [condition for condition in series if condition in conditions]
    if len(here) > 1 and 'LG-FedAvg' in known:
      yield claims.difference(
        f'{start}The more alike clients are, the larger its lead over '
        'LG-FedAvg: the last lead less the first',
        growth(study.metric, here, 'LG-FedAvg'),
        source=_TABLE_2,
      )
    if len(here) > 1:
      yield claims.difference(
        f'{start}The more the clients differ, the lower its training loss is '
        "beside FedAvg's: the last difference less the first",
        growth('training_loss', here),
        source='FedFac, figure 9',
      )
  for condition in conditions:
    for number, column, words, is_larger in _FIGURES_8_AND_9:
      yield claims.difference(
        f"{condition}: {words} than FedAvg's: the difference",
        lead(column, condition),
        source=f'FedFac, figure {number}',
        **{'above' if is_larger else 'below': 0},
      )
    own, fed_avg = (
      numbers.values('seconds_per_round', method=method, condition=condition)
      for method in (forms[0], 'FedAvg')
    )
    yield claims.difference(
      f"{condition}: a round of dynamic FedFac takes less than 4 of FedAvg's: "
      'the ratio of seconds',
      own / fed_avg,
      source='FedFac, table 7',
      below=4,
    )
    if 'FedEM' in known:
      yield claims.difference(
        f'{condition}: it takes less time than one of FedEM, in seconds',
        lead('seconds_per_round', condition, 'FedEM'),
        source='FedFac, table 7',
        below=0,
      )


def draw_comparison(numbers: Numbers, study: Study, figure: Figure) -> None:
  """Draws table 2 and, for each condition, figures 8 and 9."""
  names, conditions = map(numbers.distinct, ('method', 'condition'))
  panels.prepare(figure, max(12, 6 * len(conditions)), 13, len(study.seeds))
  grid = figure.add_gridspec(3, len(conditions))
  top = figure.add_subplot(grid[0, :])
  plots.bars(numbers.frame, x='condition', y=study.metric, ax=top)
  top.set_ylabel('Test accuracy')
  for index, condition in enumerate(conditions):
    here = numbers.where(condition=condition).frame
    quantiles = here.groupby('method', sort=False)[[*_QUANTILES]].mean()
    quantiles.columns = ['whislo', 'q1', 'med', 'q3', 'whishi']
    stats = quantiles.to_dict('records')
    boxes = figure.add_subplot(grid[1, index])
    boxes.bxp(stats, orientation='horizontal', showfliers=False)
    boxes.invert_yaxis()
    boxes.set_yticklabels(names if index == 0 else [''] * len(names))
    boxes.set_xlabel("Clients' test accuracies: 5, 25, 50, 75, 95%")
    boxes.set_title(condition, loc='left')
    # Fine-tuned methods have no training losses of their own.
    own = here[~here['method'].isin(_FINE_TUNED)]
    losses = pd.wide_to_long(own, 'loss', ['method', 'seed'], 'round', sep='/')
    curves = figure.add_subplot(grid[2, index])
    plots.curves(losses.reset_index(), y='loss', title=condition, ax=curves)
    curves.set_ylabel('Training loss')
    curves.get_legend().remove()
  # One legend for all panels, next to the last one.
  curves.legend(frameon=False, loc='upper left', bbox_to_anchor=(1, 1))


_BASELINES = {
  'FedAvg': Method('fed_avg'),
  'FedProx': Method('fed_prox'),
  'FedPer': Method('fed_per'),
  'LG-FedAvg': Method('lg_fed_avg'),
  'FedEM': Method('fed_em'),
  'FedRep': Method('fed_rep'),
  'FedFac, static': Method('fed_fac', mode='static'),
}
_METHODS = {**_BASELINES, _OF_WEIGHTS: Method('fed_fac', analysed='weights')}
_DYNAMIC_ROW = (83.07, 74.87, 71.53, 71.36, 69.32, 62.75, 83.01, 50.29)
_TABLE_2_ROWS = {
  'FedAvg': (80.33, 70.39, 68.49, 7.10, 30.11, 45.13, 76.80, 49.96),
  'FedProx': (80.58, 71.96, 70.07, 20.93, 33.13, 46.58, 81.07, 49.92),
  'FedPer': (76.24, 71.30, 68.70, 67.73, 66.43, 59.94, 71.23, 50.14),
  'LG-FedAvg': (77.10, 55.44, 47.02, 65.86, 24.35, 22.43, 76.53, 36.36),
  'FedEM': (57.22, 57.08, 53.31, 52.24, 51.89, 61.83, 79.49, 35.33),
  'FedRep': (66.94, 39.32, 30.72, 21.53, 17.25, 11.07, 69.65, 40.95),
  'FedFac, static': (83.07, 74.83, 70.47, 71.38, 68.97, 61.07, 81.39, 49.83),
  _OF_WEIGHTS: _DYNAMIC_ROW,
  _OF_UPDATES: _DYNAMIC_ROW,
}
_COMPARISON = _study(
  name='fedfac_comparison',
  summary='FedFac, static and dynamic, and all its baselines',
  source='FedFac, tables 2 and 7, figures 8 and 9',
  settings=_ADAM,
  methods={
    **_METHODS,
    _OF_UPDATES: Method('fed_fac', analysed='updates'),
    _FINE_TUNED[0]: Method('fed_avg', fine_tune='all'),
    _FINE_TUNED[1]: Method('fed_prox', fine_tune='all'),
  },
  conditions=_CONDITIONS,
  measure=measure_comparison,
  claims=[
    claims.better(_OF_UPDATES, _BASELINES, source=_TABLE_2, is_ours=True),
    claims.better(_OF_WEIGHTS, _BASELINES, source=_TABLE_2),
    claims.better(_OF_WEIGHTS, _OF_UPDATES, source=_TABLE_2, is_ours=True),
    claims.better(_OF_UPDATES, _FINE_TUNED, source=_TABLE_3, is_ours=True),
    claims.better(_OF_WEIGHTS, _FINE_TUNED, source=_TABLE_3),
    comparison_claims,
  ],
  draw=draw_comparison,
  published=_published(_TABLE_2_ROWS, _COLUMNS),
  scales={
    'paper': {
      **_AT_PAPER,
      'conditions': [*_COLUMNS],
      'methods': _METHODS,
      'metric': 'weighted_accuracy_best_10',
    },
    'cpu': _AT_CPU,
    'small': _ONE_LAYER,
  },
)

# Table 3.


def new_clients_claims(
  numbers: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """Claims about the ensemble with the least similar clients."""
  known, conditions = map(numbers.distinct, ('method', 'condition'))
  for condition, name in itertools.product(_LEAST_ALIKE, _FINE_TUNED):
    if condition in conditions and {_ENSEMBLE, name} <= {*known}:
      yield claims.difference(
        f'{condition}: {_ENSEMBLE} is at most 0.02 less accurate than {name}',
        numbers.lead('score', _ENSEMBLE, name, condition=condition),
        above=-0.02,
      )


_LEAST_ALIKE = ('dirichlet:0.1', 'CIFAR-10, pi = 0.1')
_OF_NEW_CLIENTS = {**_DIRICHLET, **_OF_CIFAR_10}
# The ensemble's models are not fitted to the new clients' data.
_OTHERS = {
  'FedAvg': Method('fed_avg', score='new_clients'),
  _FINE_TUNED[0]: Method('fed_avg', score='new_clients', fine_tune='all'),
  'FedProx': Method('fed_prox', score='new_clients'),
  _FINE_TUNED[1]: Method('fed_prox', score='new_clients', fine_tune='all'),
  _LG_ENSEMBLE: Method('lg_fed_avg', score='new_clients_by_ensemble'),
  'FedEM': Method('fed_em', score='new_clients'),
  'FedRep': Method('fed_rep', score='new_clients'),
}
_TABLE_3_ROWS = {
  _LOCAL_TRAINING: (61.1, 57.5, 70.3),
  _ENSEMBLE: (64.1, 71.5, 71.6),
  _LG_ENSEMBLE: (20.5, 31.1, 37.7),
  'FedRep': (39.7, 33.2, 26.6),
  'FedAvg': (40.0, 59.5, 68.5),
  _FINE_TUNED[0]: (65.0, 66.0, 69.5),
}
_NEW_CLIENTS = _study(
  name='fedfac_new_clients',
  summary='New clients of FedFac, by local training and by ensemble',
  source='FedFac, table 3',
  settings={**_ADAM, **_FINE_TUNING},
  methods={
    **_OTHERS,
    _LOCAL_TRAINING: Method(
      'fed_fac', score='new_clients', new_client_training='all'
    ),
    _PERSONAL_ALONE: Method('fed_fac', score='new_clients'),
    _ENSEMBLE: Method('fed_fac', score='new_clients_by_ensemble'),
  },
  conditions=_OF_NEW_CLIENTS,
  num_new_clients=30,
  claims=[
    claims.better(_ENSEMBLE, than=_LOCAL_TRAINING),
    claims.better(_LOCAL_TRAINING, than='FedAvg', conditions=_LEAST_ALIKE),
    claims.better(_LOCAL_TRAINING, than=_PERSONAL_ALONE, is_ours=True),
    new_clients_claims,
    claims.better(
      _ENSEMBLE,
      than=[*_OTHERS],
      conditions=[c for c in _OF_NEW_CLIENTS if c not in _LEAST_ALIKE],
    ),
  ],
  draw=panels.score_bars(width=12),
  published=_published(_TABLE_3_ROWS, _OF_CIFAR_10),
  scales={
    'paper': {
      **_AT_PAPER,
      'conditions': [*_OF_CIFAR_10],
      'num_clients': 90,
      'num_new_clients': 10,
      'fine_tune_num_epochs': 20,
      'fine_tune_batch_size': 32,
    },
    'cpu': {**_AT_CPU, 'num_clients': 70},
    'small': {**_ONE_LAYER, 'num_new_clients': 2},
  },
)

# Tables 4 to 6.

_TUNED = {
  'layers': 'Divided layer (Lambda)',
  'threshold': 'Threshold (tau)',
  'explained_variance': 'Explained variance (kappa)',
}


@dataclasses.dataclass(frozen=True)
class Swept:
  """Values that `fedfac_tuning` tries.

  Attributes:
    layers: Values of Lambda, from the first layer on.
    thresholds: Values of tau.
    explained_variances: Values of kappa.
  """

  layers: Sequence[str] = ('conv_1', 'conv_2', 'dense_1')
  thresholds: Sequence[float] = (0.25, 0.5, 0.75, 0.9, 0.95)
  explained_variances: Sequence[float] = (0.5, 0.75, 0.85, 0.9, 0.95)


def measure_tuning(context: measures.Context) -> measures.Rows:
  """Accuracy with each value of each hyperparameter, one after another."""
  start = {'layers': None, 'threshold': 0.5, 'explained_variance': 0.85}
  chosen = dict.fromkeys(context.study.conditions, start)
  # The attributes of `Swept` are in the order of the hyperparameters.
  for hparam, values in zip(_TUNED, vars(context.parameters).values()):
    for condition, point in chosen.items():
      # Names have all three values, so that a chosen point runs only once.
      tried = [{**point, hparam: value} for value in values]
      points = {'-'.join(map(str, one.values())): one for one in tried}
      part = dataclasses.replace(
        context.study.select(conditions=[condition]),
        methods={n: Method('fed_fac', **one) for n, one in points.items()},
        selected=None,
      )
      scores = Numbers(
        {
          'condition': condition,
          'hyperparameter': hparam,
          'value': points[result.method][hparam],
          'seed': result.seed,
          'score': result.score(),
        }
        for result in context.run(part)
      )
      yield from scores.frame.to_dict('records')
      best = scores.curve('score', 'value').mean(axis=0).argmax()
      chosen[condition] = tried[best]


def tuning_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about tables 4 and 5, and about the order of hyperparameters."""
  conditions = numbers.distinct('condition')
  layers, thresholds = study.parameters.layers, study.parameters.thresholds

  def scores(hparam, condition):
    fixed = {'hyperparameter': hparam, 'condition': condition}
    return numbers.curve('score', 'value', **fixed)

  def influence(hparam):
    ranges = [np.ptp(scores(hparam, c), axis=1) for c in conditions]
    return np.mean(ranges, axis=0)

  def best_threshold(condition):
    best = scores('threshold', condition).argmax(axis=1)
    return np.array(thresholds)[best]

  for more, less in itertools.pairwise(_TUNED):
    yield claims.difference(
      f'{_TUNED[more]} counts more than {_TUNED[less]}: the difference of the '
      'ranges of accuracy, means over partitions',
      influence(more) - influence(less),
      source='FedFac, section 5.3',
    )
  source, best = 'FedFac, table 4', layers[-1]
  first_run = conditions[0], study.method_names[0], study.seeds[0]
  if not study.settings_of(*first_run).data.name.startswith('cifar'):
    # The text says that shallow layers are preferable on handwritten digits.
    source, best = 'FedFac, section 5.3', layers[0]
  for condition in conditions:
    of_layers = dict(zip(layers, scores('layers', condition).T))
    own = of_layers.pop(best)
    for layer, other in of_layers.items():
      statement = f'{condition}: {best} is more accurate than {layer}'
      yield claims.difference(statement, own - other, source=source)
  for series in _SERIES.values():
    here = [condition for condition in series if condition in conditions]
    if here:
      yield claims.difference(
        f'{here[0]}: more than half of the neurons are personal with the best'
        ' tau',
        best_threshold(here[0]),
        source='FedFac, table 5',
        above=0.5,
        of_paper=True,
      )
    if len(here) > 1:
      yield claims.difference(
        f'The best tau is larger for {here[0]} than for {here[-1]}',
        best_threshold(here[0]) - best_threshold(here[-1]),
        source='FedFac, table 5',
      )


_CONVOLUTIONS = [f'conv_{i}' for i in range(1, 14) if i != 2]
_TUNING = _study(
  name='fedfac_tuning',
  summary="FedFac's divided layer, threshold and explained variance in turn",
  source='FedFac, tables 4 to 6',
  settings=_ADAM,
  methods={'FedFac': Method('fed_fac')},
  conditions={**_DIRICHLET, **_OF_CIFAR_100},
  seeds=range(5, 10),
  measure=measure_tuning,
  parameters=Swept(),
  claims=[tuning_claims],
  draw=panels.bars(
    'score',
    group='value',
    by='condition',
    panel='hyperparameter',
    title=_TUNED.get,
    sharey=True,
    y_label='Test accuracy',
  ),
  scales={
    'paper': {
      **_AT_PAPER,
      'conditions': [*_OF_CIFAR_100],
      'seeds': [1],
      'layers': (*_CONVOLUTIONS, 'dense_1', 'dense_2'),
      **_LAST_ROUNDS,
    },
    'cpu': _AT_CPU,
    'small': {
      **_AT_SMALL,
      'thresholds': (0.5, 0.9),
      'explained_variances': (0.75, 0.85),
    },
  },
)

# The authors' protocol.


def measure_equal_clients(context: measures.Context) -> measures.Rows:
  """Accuracies, and the stability of FedFac's partition."""
  for result in context.run():
    unchanged = result.run.history[-1].get('unchanged_elements')
    yield {
      **result.columns(),
      'score': result.score(),
      'unchanged_units': unchanged and np.mean(list(unchanged.values())),
    }


def equal_clients_claims(
  numbers: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """Claims about the order in tables 2 and 8, and the authors' scripts."""
  del study
  known, conditions = map(numbers.distinct, ('method', 'condition'))
  forms = [n for n in (_UPDATES, _WEIGHTS, _ALL_PERSONAL) if n in known]
  others = [n for n in known if n not in forms]
  for condition, form in itertools.product(conditions, forms):
    for other in others:
      yield claims.difference(
        f'{condition}: {form}, is more accurate than {other}',
        numbers.lead('score', form, other, condition=condition),
        source='FedFac, table 8' if other in _RANDOM_SPLITS else _TABLE_2,
        is_ours=form != _WEIGHTS or other == _DRAWN_ONCE,
      )
    if form != _ALL_PERSONAL:
      yield claims.difference(
        f'{condition}: {form}: nearly all units keep their side in the last '
        'round: their share',
        numbers.values('unchanged_units', method=form, condition=condition),
        source='FedFac, figure 7',
        above=0.95,
        is_ours=form != _WEIGHTS,
      )
  words = {
    _ALL_PERSONAL: 'with all units of the last hidden layers personal',
    _WEIGHTS: 'by factor analysis of weights',
  }
  for condition, form in itertools.product(conditions, words):
    if {form, _UPDATES} <= {*known}:
      yield claims.difference(
        f'{condition}: {words[form]} it is at most 0.01 less accurate than '
        'by factor analysis of updates',
        numbers.lead('score', form, _UPDATES, condition=condition),
        source="the authors' code",
        above=-0.01,
        is_ours=True,
      )


_EQUAL_CLIENTS = _study(
  name='fedfac_equal_clients',
  summary='When FedFac is ahead of others on clients of equal size',
  source='FedFac, tables 2 and 8',
  settings={**_ADAM, **_CPU, 'dataset_arguments': {'test_fraction': 0.17}},
  methods={
    'FedAvg': Method('fed_avg'),
    'FedPer': Method('fed_per'),
    'FedRep': Method('fed_rep'),
    _UPDATES: Method('fed_fac', analysed='updates'),
    _WEIGHTS: Method('fed_fac', analysed='weights'),
    **_RANDOM_SPLITS,
    _ALL_PERSONAL: Method('fed_fac', layers='conv_2,dense_1', threshold=_ALL),
  },
  conditions={
    'pi = 0.1': _condition('client_dirichlet:1', 'dense_1', 0.75),
    'pi = 1': _condition('client_dirichlet:10', 'dense_1', 0.75),
  },
  measure=measure_equal_clients,
  claims=[equal_clients_claims],
  draw=panels.score_bars(width=12),
  scales={'small': {'model': 'cnn'}},
)

_FEW_PERSONAL, _MANY_PERSONAL = 'FedFac, tau = 5%', 'FedFac, tau = 75%'
_RIVALS, _MOST_UNLIKE, _ALIKE = ('FedAvg', 'FedPer'), 'pi = 0.1', 'pi = 1'
_FULL_RULE = _study(
  name='fedfac_full_rule',
  summary="FedFac by all of its authors' rule, on clients of equal size",
  source=_TABLE_2,
  settings={
    **_ADAM,
    **_CPU,
    'dataset_arguments': {'test_fraction': 0.17},
    'model_arguments': {**_CPU['model_arguments'], 'normalization': 'batch'},
    'statistics': 'local',
    'fed_fac.split': 'eigenvectors',
    'fed_fac.divided': 'kernels',
  },
  methods={
    'FedAvg': Method('fed_avg'),
    'FedPer': Method('fed_per'),
    _FEW_PERSONAL: Method('fed_fac', threshold=0.05),
    _MANY_PERSONAL: Method('fed_fac', threshold=0.75),
    _ALL_PERSONAL: Method('fed_fac', threshold=_ALL),
  },
  conditions={
    _MOST_UNLIKE: {'partition': 'client_dirichlet:1'},
    _ALIKE: {'partition': 'client_dirichlet:10'},
  },
  claims=[
    # With the authors' tau, and with others.
    claims.better(_ALL_PERSONAL, than=_RIVALS, conditions=_MOST_UNLIKE),
    claims.better(_FEW_PERSONAL, than=_RIVALS, conditions=_ALIKE),
    *(
      claims.better(name, than=_RIVALS, conditions=where, is_ours=True)
      for name, where in (
        (_FEW_PERSONAL, _MOST_UNLIKE),
        (_MANY_PERSONAL, _MOST_UNLIKE),
        (_MANY_PERSONAL, _ALIKE),
        (_ALL_PERSONAL, _ALIKE),
      )
    ),
  ],
  draw=panels.score_bars(width=12),
  scales={
    'small': {'model': 'cnn', 'model_arguments': {'normalization': 'batch'}}
  },
)

# Units: FedSplit's figures 1 and 2, FedFac's figure 10 and table 8.

_NEURONS = _study(
  name='fedsplit_neurons',
  summary='Neurons of clients that trained alone: some are alike, others '
  'differ where the data do',
  source='FedSplit, figures 1 and 2',
  settings={
    **_ADAM,
    'dataset': 'mnist',
    'num_clients': 100,
    'cohort_size': 100,
    'model': 'mlp',
    'model_arguments': {'widths': (200,)},
    'num_rounds': 1,
    'num_epochs': 5,
    'batch_size': 16,
  },
  methods={'Local': Method('local_only')},
  conditions={
    fed_fac_units.ALIKE: {'partition': 'iid'},
    fed_fac_units.ONE_DIGIT: {'partition': 'shards:1'},
  },
  seeds=range(5, 10),
  measure=fed_fac_units.measure_neurons,
  claims=[fed_fac_units.neurons_claims],
  draw=fed_fac_units.draw_neurons,
  scales={
    'small': {
      'num_rounds': 1,
      'cohort_size': 4,
      'model_arguments': {'widths': (20,)},
    }
  },
)
_OF_FEATURES = ['dirichlet:0.5', 'CIFAR-10, pi = 0.5']
_FEATURES = _study(
  name='fedfac_features',
  summary="What FedFac's shared and personal channels show, and FedAvg's",
  source='FedFac, figure 10',
  settings=_ADAM,
  methods={
    'FedFac': Method('fed_fac', threshold=0.5),
    'FedAvg': Method('fed_avg'),
  },
  conditions={name: _CONDITIONS[name] for name in _OF_FEATURES},
  measure=fed_fac_units.measure_features,
  claims=[fed_fac_units.features_claims],
  draw=panels.bars(
    'value',
    group='quantity',
    by='channels',
    panel='condition',
    y_label='Mean over channels and clients',
  ),
  scales={
    'paper': {
      **_AT_PAPER,
      'conditions': _OF_FEATURES[1:],
      'fed_fac.layers': 'conv_5',
      **_LAST_ROUNDS,
    },
    'cpu': {
      'conditions': _OF_FEATURES[:1],
      'settings': _CPU,
      'fed_fac.layers': 'conv_2',
    },
    'small': {**_AT_SMALL, 'fed_fac.layers': 'conv_2'},
  },
)
_TABLE_8_ROWS = {_ANALYSIS: (83.1, 74.9, 71.5), _RANDOM: (81.4, 72.5, 70.4)}
_ABLATION = _study(
  name='fedfac_ablation',
  summary="FedFac's shared and personal elements, and random splits",
  source='FedFac, table 8',
  settings=_ADAM,
  methods={_ANALYSIS: Method('fed_fac'), **_RANDOM_SPLITS},
  conditions=_CONDITIONS,
  measure=fed_fac_units.measure_ablation,
  claims=[
    claims.better(
      fed_fac_units.SHARED_MASKED, than=fed_fac_units.PERSONAL_MASKED
    ),
    claims.better(_ANALYSIS, than=_RANDOM),
    claims.better(_ANALYSIS, than=_DRAWN_ONCE, is_ours=True),
  ],
  draw=panels.score_bars(width=12),
  published=_published(_TABLE_8_ROWS, _OF_CIFAR_10),
  scales={
    'paper': {**_AT_PAPER, 'conditions': [*_COLUMNS]},
    'cpu': _AT_CPU,
    'small': _ONE_LAYER,
  },
)

# Generated data.

_SIMULATION = _study(
  name='fedfac_simulation',
  summary='Factor analysis finds shared and personal neurons, and a random '
  'choice costs accuracy',
  source='FedFac, figures 6 and 7',
  measure=fed_fac_simulation.measure,
  parameters=fed_fac_simulation.Sizes(),
  claims=[fed_fac_simulation.make_claims],
  draw=fed_fac_simulation.draw,
  scales={
    'small': {
      'num_clients': 4,
      'num_inputs': 20,
      'num_neurons': 20,
      'others': (),
      'random_starts': False,
      'num_rounds': 2,
    }
  },
)
_SMALL_SPLIT = {'nums_clients': (2, 4), 'num_neurons': 100, 'num_rounds': 2}
_CONVERGENCE = _study(
  name='fedsplit_convergence',
  summary="FedSplit's loss falls geometrically, within the theorem's bound "
  "and faster than FedAvg's",
  source='FedSplit, theorem 1',
  measure=fed_split.measure,
  parameters=fed_split.Sizes(),
  claims=[fed_split.make_claims],
  draw=panels.curves(
    'loss_share',
    over='round',
    y_label='Training loss, share of the initial',
    log_y=True,
    width=4.4,
    panel='num_clients',
    title='{} clients'.format,
    sharey=True,
  ),
  scales={'small': _SMALL_SPLIT},
)
_GENERALIZATION = _study(
  name='fedsplit_generalization',
  summary='Errors on new examples, and what bounds them, grow with the '
  'number of clients that share the examples',
  source='FedSplit, theorem 2',
  measure=fed_split.measure_generalization,
  parameters=fed_split.GeneralizationSizes(),
  claims=[fed_split.generalization_claims],
  draw=panels.curves(
    'value',
    over='num_clients',
    by='measure',
    x_label='Clients',
    y_label='Error or bound',
    log_x=True,
    log_y=True,
  ),
  scales={'small': {**_SMALL_SPLIT, 'num_examples': 40}},
)

STUDIES = (
  _CONVERGENCE,
  _GENERALIZATION,
  _SIMULATION,
  _TUNING,
  _COMPARISON,
  _NEW_CLIENTS,
  _EQUAL_CLIENTS,
  _FULL_RULE,
  _NEURONS,
  _FEATURES,
  _ABLATION,
)
