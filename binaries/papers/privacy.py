"""Costs of privacy and attacked clients, for methods that share more or less.

* `private_accuracy`: the accuracy against epsilon, of methods whose clients
  send a whole model, a body (FedRep with a private mean is CENTAUR), or the
  shared units of one, and of local training, which sends nothing.
* `attacked_clients`: the accuracy of honest clients, where some of the others
  send five times their updates with the opposite sign, with the mean and with
  robust means.

Deviations from CENTAUR: its networks, data and budgets are larger, and its
clients draw their own noise. Epsilon is for cohorts of fixed size (see
`core.privacy`), for all rounds, at delta = clients ** -1.1. Rates are the
same for all methods and all epsilons.

References:
  Shen, Ye, Kang, Hassani, Shokri: Share Your Representation Only: Guaranteed
  Improvement of the Privacy-Utility Tradeoff in Federated Learning, ICLR 2023.
  Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through
  Personalization, ICML 2021.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tff_pfl as pfl

from .engine import claims, panels, paper, trials

_FED_AVG, _FED_AVG_FT = 'FedAvg', 'FedAvg + FT'
_FED_REP, _FED_FAC, _LOCAL = 'FedRep', 'FedFac', 'Local'
_DITTO = 'Ditto'
_NO_NOISE, _NOTHING_SENT = 'no noise', 'nothing sent'
_PRIVACY = 'CENTAUR'
_ATTACKS = 'Ditto'


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters that both experiments have.

  Attributes:
    num_epochs: Local epochs of a round and of fine-tuning.
    num_head_epochs: Epochs on the head where it is trained in turn.
  """

  dataset: str = 'mnist'
  partition: str = 'shards:2'
  num_clients: int = 1000
  cohort_size: int = 200
  model: str = 'mlp'
  model_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'widths': (16,)}
  )
  num_rounds: int = 30
  num_epochs: int = 1
  num_head_epochs: int = 3
  learning_rate: float = 0.05
  momentum: float = 0.5
  batch_size: int = 10
  num_seeds: int = 5


@dataclasses.dataclass(frozen=True)
class PrivacySizes(Sizes):
  """Sizes and hyperparameters of `private_accuracy`.

  Attributes:
    epsilons: Epsilons of the whole run, smallest first.
  """

  epsilons: Sequence[float] = (1, 2, 4, 8)

  @property
  def conditions(self) -> Mapping[str, Mapping[str, Any]]:
    """Settings by the name of the privacy budget."""
    private = {
      f'ε = {epsilon:g}': {'aggregator': pfl.PrivateMean(epsilon=epsilon)}
      for epsilon in self.epsilons
    }
    return {**private, _NO_NOISE: {}}


@dataclasses.dataclass(frozen=True)
class AttackSizes(Sizes):
  """Sizes and hyperparameters of `attacked_clients`.

  Attributes:
    attack: Attack, as `ProcessOptions.attack`.
    attacked_fractions: Shares of attacked clients, smallest first.
    aggregators: The server's means, by name.
  """

  num_clients: int = 100
  cohort_size: int = 20
  attack: str = 'scale:-5'
  attacked_fractions: Sequence[float] = (0.0, 0.1, 0.2)
  aggregators: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {
      'mean': 'mean',
      'geometric median': 'geometric_median',
    }
  )

  @property
  def conditions(self) -> Mapping[str, Mapping[str, Any]]:
    """Settings by the name of the condition."""
    return {
      self.condition(fraction, name): {
        'aggregator': aggregator,
        'attack': self.attack if fraction else 'none',
        'attacked_fraction': fraction,
      }
      for fraction in self.attacked_fractions
      for name, aggregator in self.aggregators.items()
    }

  @staticmethod
  def condition(fraction: float, aggregator: str) -> str:
    """The name of a condition."""
    return f'{fraction:.0%} attacked, {aggregator}'


_SMALL = {
  'dataset': 'digits',
  'num_clients': 20,
  'cohort_size': 10,
  'model_arguments': {'widths': (8,)},
  'num_rounds': 2,
  'num_seeds': 1,
}
_FED_AVG_METHOD = trials.Method(_FED_AVG, 'fed_avg', fine_tuned=_FED_AVG_FT)
_FED_REP_METHOD = trials.Method(_FED_REP, 'fed_rep')


def _measure(context, compared, column, more=None):
  """Accuracies of methods by condition.

  Args:
    compared: Methods of every condition of the sizes.
    column: Name of the conditions' column in the table.
    more: Further conditions, by name.
  """
  conditions = {
    name: trials.Condition(compared, settings)
    for name, settings in context.sizes.conditions.items()
  }
  for result in context.run(
    {**conditions, **(more or {})},
    client_weighting='uniform',
    num_final_evaluations=1,
  ):
    yield {**result.columns(column), 'accuracy': result.accuracy()}


def measure_privacy(context: trials.Context) -> paper.Rows:
  """Accuracies by epsilon."""
  compared = [
    _FED_AVG_METHOD,
    _FED_REP_METHOD,
    trials.Method(_FED_FAC, 'fed_fac', {'mode': 'static'}),
  ]
  alone = trials.Condition([trials.Method(_LOCAL, 'local_only')])
  return _measure(context, compared, 'privacy', {_NOTHING_SENT: alone})


def privacy_claims(table: paper.Table, sizes: PrivacySizes) -> paper.Claims:
  """Claims that sharing less costs less, and that taking part pays at all."""
  alone = table.values('accuracy', method=_LOCAL, privacy=_NOTHING_SENT)
  for budget in sizes.conditions:
    yield from claims.more_accurate(
      table,
      _PRIVACY,
      [(_FED_REP, _FED_AVG_FT), (_FED_FAC, _FED_AVG_FT)],
      privacy=[budget],
    )
    yield claims.difference(
      f'{budget}: FedRep is more accurate than local training',
      _PRIVACY,
      table.values('accuracy', method=_FED_REP, privacy=budget) - alone,
    )
    if budget != _NO_NOISE:
      lost = {
        method: table.lead(
          'accuracy', _NO_NOISE, budget, by='privacy', method=method
        )
        for method in (_FED_AVG, _FED_REP, _FED_FAC)
      }
      for less in (_FED_REP, _FED_FAC):
        yield claims.difference(
          f'{budget}: the noise costs FedAvg more than {less}',
          _PRIVACY,
          lost[_FED_AVG] - lost[less],
        )


def measure_attacks(context: trials.Context) -> paper.Rows:
  """Accuracies of honest clients by share of attacked ones and aggregator."""
  compared = [_FED_AVG_METHOD, _FED_REP_METHOD, trials.Method(_DITTO, 'ditto')]
  return _measure(context, compared, 'setting')


def attack_claims(table: paper.Table, sizes: AttackSizes) -> paper.Claims:
  """Claims that personal models suffer less, and that robust means help."""
  mean, *robust = sizes.aggregators
  none, *fractions = sizes.attacked_fractions

  def lost(method, fraction, aggregator):
    conditions = (sizes.condition(f, aggregator) for f in (none, fraction))
    return table.lead('accuracy', *conditions, by='setting', method=method)

  for fraction in fractions:
    for personal in (_FED_AVG_FT, _FED_REP, _DITTO):
      yield claims.difference(
        f'{fraction:.0%} attacked, {mean}: {personal} loses less than FedAvg',
        _ATTACKS,
        lost(_FED_AVG, fraction, mean) - lost(personal, fraction, mean),
      )
    for aggregator in robust:
      for method in (_FED_AVG, _FED_REP, _DITTO):
        yield claims.difference(
          f'{fraction:.0%} attacked: {method} is more accurate with the '
          f'{aggregator} than with the {mean}',
          _ATTACKS,
          table.lead(
            'accuracy',
            sizes.condition(fraction, aggregator),
            sizes.condition(fraction, mean),
            by='setting',
            method=method,
          ),
        )


EXPERIMENTS = (
  paper.Experiment(
    name='private_accuracy',
    summary='What epsilon costs those who share all weights, a body, or units',
    paper='Privacy (CENTAUR)',
    measure=measure_privacy,
    claims=privacy_claims,
    draw=panels.accuracy_bars(by='privacy', width=10),
    full={'mnist': PrivacySizes()},
    fast=PrivacySizes(**_SMALL, epsilons=(4,)),
  ),
  paper.Experiment(
    name='attacked_clients',
    summary='What attacked clients cost the others, by method and mean',
    paper='Robustness (Ditto)',
    measure=measure_attacks,
    claims=attack_claims,
    draw=panels.accuracy_bars(
      by='setting', y_label='Test accuracy of honest clients', width=12
    ),
    full={'mnist': AttackSizes()},
    fast=AttackSizes(**_SMALL, attacked_fractions=(0.0, 0.2)),
  ),
)
