"""Test examples that a sweep must leave alone."""


def poisoned(data):
  """The same clients with test examples that cannot be read."""

  def load(client_id, split):
    assert split == 'train', 'Test examples were read.'
    return data.train(client_id)

  return data.replaced(load=load)
