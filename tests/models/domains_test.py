import collections

from tff_pfl.models import domains


def test_all_domains_with_examples_weigh_the_same():
  of_data = domains.Domains(('a', 'b', 'c', 'd'), (10, 30, 0, 80))
  assert of_data.number == 4
  # Each domain's examples together count L / M, of three.
  assert of_data.loss_weights == [120 / 30, 120 / 90, 0, 120 / 240]


def test_inputs_and_domain_come_together_where_there_is_one():
  element = collections.OrderedDict(x=1, y=2)
  assert domains.join(element) == (1, 2)
  x, y = domains.join({**element, 'domain': 3})
  assert (dict(x), y) == ({'inputs': 1, 'domain': 3}, 2)
