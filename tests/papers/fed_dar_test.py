"""FedDAR's experiments with networks, without their training."""

import tff_pfl as pfl
from binaries.papers import fed_dar
from tests.papers import untrained

_DOMAINS, _DIGITS, *_ = fed_dar.EXPERIMENTS


def test_scores_are_of_the_last_ten_rounds_or_after_fine_tuning():
  sizes = fed_dar.Sizes(num_seeds=1)
  context = untrained.Context(sizes)
  rows = list(_DOMAINS.measure(context))
  assert len(rows) == 4 * (14 + 3)
  for row in rows:
    is_fine_tuned = row['method'] in ('FedAvg + FT', 'FedProx + FT')
    assert row['mean'] == row['domain/1'] == (0.4 if is_fine_tuned else 0.5)
  for config in context.configs:
    assert config.method.batch_size == sizes.batch_size
    # Clients fine-tune for an epoch at half the rate.
    assert config.process.personalization == pfl.Personalization(
      num_epochs=1, learning_rate=0.025, momentum=0.5, batch_size=32
    )
    num_rounds = config.start.num_warmup_rounds + config.rounds.num_rounds
    assert num_rounds == sizes.num_rounds


def test_fed_bn_and_fed_avg_beside_it_have_batch_normalization():
  sizes = fed_dar.DIGITS_FULL
  context = untrained.Context(sizes)
  list(_DIGITS.measure(context))
  normalized = [
    config.algorithm
    for config in context.configs
    if config.model.arguments.get('normalization') == 'batch'
  ]
  each = len(sizes.partitions) * sizes.num_seeds
  assert sorted(normalized) == ['fed_avg'] * each + ['fed_bn'] * each
