"""The costs of privacy and of attacks, for methods that share more or less.

* `private_accuracy`: accuracy by epsilon. Clients send a whole model, a body
  (FedRep with a private mean is CENTAUR), the shared units of a model, or
  nothing (local training).
* `attacked_clients`: accuracy of honest clients while some other clients send
  five times their updates with the opposite sign, for the mean and for the
  geometric median.

The papers have no figure with these numbers: all claims are ours.

Deviations:

`private_accuracy`. CENTAUR has larger networks, data and budgets, and its
clients draw their own noise. Epsilon is for cohorts of fixed size (see
`core.privacy`), for all rounds, at delta = clients ** -1.1. Learning rates are
the same for all methods and all epsilons.

References:
  Shen, Ye, Kang, Hassani, Shokri: Share Your Representation Only: Guaranteed
  Improvement of the Privacy-Utility Tradeoff in Federated Learning, ICLR 2023.
  Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through
  Personalization, ICML 2021.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import tff_pfl as pfl
from tff_pfl.studies import claims
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Method, Study

from . import panels

_study = functools.partial(Study, seeds=range(5), deviations=__doc__)

_METHODS = {
  'FedAvg': Method('fed_avg'),
  'FedAvg + FT': Method('fed_avg', fine_tune='all'),
  'FedRep': Method('fed_rep', num_head_epochs=3),
}
_TRAINING = dict(num_epochs=1, learning_rate=0.05, momentum=0.5, batch_size=10)
_SETTINGS = dict(
  _TRAINING,
  **{f'fine_tune_{name}': value for name, value in _TRAINING.items()},
  dataset='mnist',
  partition='shards:2',
  model='mlp',
  model_arguments={'widths': (16,)},
  num_rounds=30,
  # Only the first and the last rounds are evaluated.
  rounds_per_evaluation=10**6,
  num_final_evaluations=1,
  client_weighting='uniform',
)
_NO_NOISE = 'no noise'
_ATTACKED = '{:.0%} attacked, {}'.format
_FRACTIONS = (0.1, 0.2)
_MEAN, _MEDIAN = 'mean', 'geometric median'


def _less_lost(
  statement: str,
  methods: Sequence[str],
  before: str,
  conditions: Sequence[str],
) -> claims.Check:
  """The claim that methods lose less than FedAvg between conditions.

  Args:
    statement: Format of the statement, with condition and method.
    before: The condition without loss.
    conditions: The other conditions.
  """

  def check(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
    keys = ['method', 'seed']
    at_first = numbers.where(condition=before).frame.set_index(keys)['score']
    # Keeps the methods and seeds that both conditions have.
    frame = numbers.frame.join(at_first.rename('before'), on=keys, how='inner')
    lost = Numbers(frame.assign(lost=frame['before'] - frame['score']))
    for condition, method in itertools.product(conditions, methods):
      known = lost.distinct('method', condition=condition)
      if {'FedAvg', method} <= {*known}:
        yield claims.difference(
          statement.format(condition, method),
          lost.lead('lost', 'FedAvg', method, condition=condition),
          is_ours=True,
        )

  return check


def _robust_mean_claims(
  numbers: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """The claims that a robust mean helps if clients are attacked."""
  for fraction, method in itertools.product(
    _FRACTIONS, ('FedAvg', 'FedRep', 'Ditto')
  ):
    robust, plain = (_ATTACKED(fraction, name) for name in (_MEDIAN, _MEAN))
    known = numbers.distinct('condition', method=method)
    if {robust, plain} <= {*known}:
      yield claims.difference(
        f'{fraction:.0%} attacked: {method} is more accurate with the '
        f'{_MEDIAN} than with the {_MEAN}',
        numbers.lead('score', robust, plain, by='condition', method=method),
        is_ours=True,
      )


_BUDGETS = {
  f'ε = {epsilon}': {'aggregator': pfl.PrivateMean(epsilon=epsilon)}
  for epsilon in (1, 2, 4, 8)
}
STUDIES = (
  _study(
    name='private_accuracy',
    summary='What epsilon costs those who share all weights, a body, or units',
    source='CENTAUR',
    settings=dict(_SETTINGS, num_clients=1000, cohort_size=200),
    methods={
      **_METHODS,
      'FedFac': Method('fed_fac', mode='static'),
      # It sends nothing, so noise makes no difference.
      'local training': Method('local_only', aggregator='mean'),
    },
    conditions={**_BUDGETS, _NO_NOISE: {}},
    claims=[
      claims.better(['FedRep', 'FedFac'], 'FedAvg + FT', is_ours=True),
      claims.better('FedRep', 'local training', is_ours=True),
      _less_lost(
        '{}: the noise costs FedAvg more than {}',
        ('FedRep', 'FedFac'),
        _NO_NOISE,
        list(_BUDGETS),
      ),
    ],
    draw=panels.score_bars(width=10),
  ),
  _study(
    name='attacked_clients',
    summary='What attacked clients cost the others, by method and mean',
    source='Ditto',
    settings=dict(_SETTINGS, num_clients=100, cohort_size=20),
    methods={**_METHODS, 'Ditto': Method('ditto')},
    conditions={
      _ATTACKED(fraction, name): {
        'aggregator': aggregator,
        'attack': 'scale:-5' if fraction else 'none',
        'attacked_fraction': fraction,
      }
      for fraction in (0.0, *_FRACTIONS)
      for name, aggregator in ((_MEAN, 'mean'), (_MEDIAN, 'geometric_median'))
    },
    claims=[
      _less_lost(
        '{}: {} loses less than FedAvg',
        ('FedAvg + FT', 'FedRep', 'Ditto'),
        _ATTACKED(0, _MEAN),
        [_ATTACKED(fraction, _MEAN) for fraction in _FRACTIONS],
      ),
      _robust_mean_claims,
    ],
    draw=panels.score_bars(y_label='Test accuracy of honest clients', width=12),
    # One client of ten is attacked.
    scales={'small': {'num_clients': 10}},
  ),
)
