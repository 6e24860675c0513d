import numpy as np

from tests.methods import toy_problems

_RATE, _STRENGTH = 0.1, 0.7
# The first has no example of class 2, nobody in round 1 has one of class 0.
_CLIENTS = [
  toy_problems.client_of_classes(labels, 4, seed)
  for seed, labels in enumerate([[1, 1, 1, 1], [1, 2, 2], [0, 2]])
]


def _trained(body, head, client, prototypes):
  """Two steps, by hand."""
  for _ in range(2):
    features = client.x @ body
    slopes = toy_problems.class_slopes(features @ head, client.y)
    of_features = slopes @ head.T
    for j, label in enumerate(client.y):
      if label in prototypes:
        distance = features[j] - prototypes[label]
        # The mean over 2 features and the examples.
        of_features[j] += _STRENGTH * distance / len(client.y)
    head = head - _RATE * features.T @ slopes
    body = body - _RATE * client.x.T @ of_features
  return {'body': body, 'head': head}


def _class_means(models, clients):
  features = np.concatenate(
    [c.x @ model['body'] for c, model in zip(clients, models)]
  )
  labels = np.concatenate([c.y for c in clients])
  return {c: features[labels == c].mean(0) for c in np.unique(labels)}


def test_rounds_by_hand():
  process = toy_problems.full_batches(
    'fed_proto',
    toy_problems.linear_classifier(),
    num_steps=2,
    learning_rate=_RATE,
    pull_strength=_STRENGTH,
  )
  cohorts = [(0, 1), (0, 2), (1, 2)]
  initial = {'body': toy_problems.BODY, 'head': toy_problems.HEAD}

  def rounds():
    models, prototypes = [initial] * 3, {}
    for cohort in cohorts:
      for i in cohort:
        models[i] = _trained(
          **models[i], client=_CLIENTS[i], prototypes=prototypes
        )
      prototypes.update(
        _class_means([models[i] for i in cohort], [_CLIENTS[i] for i in cohort])
      )
      yield {
        'algorithm': {
          'is_known': [float(label in prototypes) for label in range(3)],
          'means': dict(prototypes),
        },
        'local': list(models),
        # It is drawn to the prototypes.
        'new': [_trained(**initial, client=_CLIENTS[0], prototypes=prototypes)],
      }

  state, _, _ = toy_problems.check_rounds(process, _CLIENTS, rounds(), cohorts)
  assert not state.global_weights
