"""Test examples that a sweep must leave alone."""

from tff_pfl import datasets


class _Poisoned(datasets.ExampleSource):
  """Test examples that must not be read."""

  def examples(self, position):
    raise AssertionError('Test examples were read.')

  labels = examples
  num_examples = examples


def poisoned(data):
  """The same clients with test examples that cannot be read."""
  return datasets.FederatedDataset(
    name=data.name,
    client_ids=data.client_ids,
    element_spec=data.element_spec,
    num_classes=data.num_classes,
    train=data._train,
    test=_Poisoned(),
    domain_names=data.domain_names,
  )
