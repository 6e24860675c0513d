"""A federated dataset of given examples."""


class Clients:
  """Clients of given examples, which notes whose training examples are read."""

  def __init__(self, train, test):
    self.client_ids = [f'client {i}' for i in range(len(train))]
    self.num_clients = len(train)
    self.trained = []
    self._train = dict(zip(self.client_ids, train))
    self._test = dict(zip(self.client_ids, test))

  def train(self, client_id):
    self.trained.append(client_id)
    return self._train[client_id]

  def test(self, client_id):
    return self._test[client_id]

  def num_train_examples(self, client_id):
    return len(self._train[client_id])

  def num_test_examples(self, client_id):
    return len(self._test[client_id])
