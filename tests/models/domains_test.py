import collections

import pytest

from tff_pfl.models import domains


def test_all_domains_weigh_the_same():
  of_data = domains.Domains(('a', 'b', 'c'), (10, 30, 80))
  assert of_data.number == 3
  assert of_data.loss_weights == [120 / 30, 120 / 90, 120 / 240]
  # Each domain's examples together count L / M.
  for weight, count in zip(of_data.loss_weights, of_data.num_examples):
    assert weight * count == pytest.approx(120 / 3)


def test_domain_without_examples_weighs_nothing_and_is_not_counted():
  of_data = domains.Domains(('a', 'b', 'c'), (10, 0, 30))
  assert of_data.loss_weights == [40 / 20, 0.0, 40 / 60]


@pytest.mark.parametrize(
  ('names', 'counts', 'reason'),
  [
    ((), (), '`domains.names`.*at least one'),
    (('a', 'a'), (1, 2), '`domains.names`.*distinct'),
    (('a', 'b'), (1,), '`domains.num_examples`.*2 numbers'),
    (('a', 'b'), (1, -1), '`domains.num_examples`.*not negative'),
    (('a', 'b'), (0, 0), '`domains.num_examples`.*not all 0'),
  ],
)
def test_impossible_domains_are_refused(names, counts, reason):
  with pytest.raises(ValueError, match=reason):
    domains.Domains(names, counts)


@pytest.mark.parametrize('found', [0, float('nan')])
def test_impossible_number_of_examples_per_client_is_refused(found):
  with pytest.raises(ValueError, match='`domains.examples_per_client`'):
    domains.Domains(('a',), (3,), found)


def test_inputs_and_domain_come_together_where_there_is_one():
  element = collections.OrderedDict(x=1, y=2)
  assert domains.join(element) == (1, 2)
  x, y = domains.join({**element, 'domain': 3})
  assert (dict(x), y) == ({'inputs': 1, 'domain': 3}, 2)
