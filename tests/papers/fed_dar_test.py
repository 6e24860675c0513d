"""FedDAR's experiments with networks, without their training."""

import pytest

from binaries.papers import fed_dar
from tests.papers import untrained
from tff_pfl.comparisons import claims

_DOMAINS, _DIGITS = fed_dar.EXPERIMENTS


def test_clients_fine_tune_for_an_epoch_at_half_the_rate():
  options = fed_dar.FULL['heart_disease'].fine_tuning()
  assert (options.num_epochs, options.num_steps) == (1, None)
  assert options.learning_rate == pytest.approx(0.01)


def test_scores_are_of_the_last_ten_rounds_or_after_fine_tuning():
  sizes = fed_dar.Sizes(num_seeds=1)
  context = untrained.Context(sizes, lambda _: untrained.finished(0.5, 0.4))
  rows = list(_DOMAINS.measure(context))
  assert len(rows) == 4 * (14 + 2)
  for row in rows:
    is_fine_tuned = row['method'] in ('FedAvg + FT', 'FedProx + FT')
    assert row['mean'] == row['domain/1'] == (0.4 if is_fine_tuned else 0.5)
  for config in (wanted.config for wanted in context.trials):
    assert config.hparams.batch_size == sizes.batch_size
    assert config.personalization == sizes.fine_tuning()
    assert config.num_warmup_rounds + config.num_rounds == sizes.num_rounds


def _claims(entry, names, values, sizes):
  """Claims of scores that are all alike, by statement."""
  table = untrained.table(names, values, 'min', 'mean', 'client_mean')
  return {claim.statement: claim for claim in entry.claims(table, sizes)}


def test_claims_about_domains_are_of_means_over_partitions_and_of_each():
  sizes = fed_dar.FULL['relabelled_digits']
  values = {
    'alpha=0.1': {'FedAvg': 0.5, 'FedDAR-WA': 0.6, 'FedDAR-SA': 0.7},
    'alpha=100': {'FedAvg': 0.8, 'FedDAR-WA': 0.6, 'FedDAR-SA': 0.75},
  }
  found = _claims(_DOMAINS, ('partition', 'method'), values, sizes)
  lead = found['FedDAR-SA serves the domains better on average than FedAvg']
  assert lead.measured == pytest.approx(0.725 - 0.65)
  assert lead.verdict == claims.HOLDS
  lead = found['FedDAR-WA serves the domains better on average than FedAvg']
  assert lead.verdict == claims.FAILS
  # For each mixture there is another best method.
  worst = [c for name, c in found.items() if name.startswith('With alpha')]
  assert [c.measured for c in worst] == pytest.approx([0.1, -0.05])
  assert [c.verdict for c in worst] == [claims.HOLDS, claims.FAILS]
  (ranges,) = [c for name, c in found.items() if name.startswith('How hetero')]
  assert ranges.measured == pytest.approx(0.05 - 0.3)
  assert ranges.verdict == claims.HOLDS


def test_fed_bn_and_fed_avg_beside_it_have_batch_normalization():
  sizes = fed_dar.DIGITS_FULL
  context = untrained.Context(sizes, lambda _: untrained.finished(0.5, 0.4))
  list(_DIGITS.measure(context))
  normalized = [
    wanted.config.algorithm
    for wanted in context.trials
    if wanted.config.model_arguments.get('normalization') == 'batch'
  ]
  each = len(sizes.partitions) * sizes.num_seeds
  assert sorted(normalized) == ['fed_avg'] * each + ['fed_bn'] * each


def test_claims_about_digits_turn_round_where_clients_have_one_domain():
  values = {
    'alpha=0.1': {
      'FedAvg': 0.75,
      'FedAvg + multi-head': 0.25,
      'FedDAR-WA': 0.5,
      'FedBN': 0.25,
      'FedAvg, batch normalization': 0.3,
    },
    'alpha=1': {
      'FedAvg': 0.75,
      'FedAvg + multi-head': 0.5,
      'FedDAR-WA': 0.25,
      'FedBN': 0.5,
      'FedAvg, batch normalization': 0.3,
    },
  }
  sizes = fed_dar.Sizes(partitions=dict.fromkeys(values, 'unused'))
  found = _claims(_DIGITS, ('partition', 'method'), values, sizes).values()
  assert [round(claim.measured, 6) for claim in found] == [
    0.25, -0.25, -0.25, 0.25, 0.05, -0.5, 0.25, 0.25, -0.25, -0.2
  ]  # fmt: skip
  assert [claim.verdict for claim in found] == (
    [claims.HOLDS] * 5 + [claims.FAILS] * 5
  )
