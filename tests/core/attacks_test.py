import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import attacks
from tff_pfl.methods import registry

pytestmark = pytest.mark.usefixtures('runtime')


def test_attacked_clients_are_drawn_by_the_seed_and_nested():
  drawn = [
    attacks.make_attack('sign_flip', fraction, 50, seed=3).clients
    for fraction in (0.0, 0.1, 0.2, 0.2)
  ]
  assert [len(clients) for clients in drawn] == [0, 5, 10, 10]
  assert set(drawn[1]) < set(drawn[2]) == set(drawn[3]) < set(range(50))
  assert attacks.make_attack('sign_flip', 0.2, 50, seed=4).clients != drawn[2]


@pytest.mark.parametrize(
  ('spec', 'factor', 'flips_labels'),
  [
    ('none', 1, False),
    ('sign_flip', -1, False),
    ('scale:-2.5', -2.5, False),
    ('label_flip', 1, True),
  ],
)
def test_attacks_by_name(spec, factor, flips_labels):
  attack = attacks.make_attack(spec, 0.0, 10, seed=0)
  assert (attack.factor, attack.flips_labels) == (factor, flips_labels)


@pytest.mark.parametrize(
  ('spec', 'fraction', 'name'),
  [
    ('flip', 0.1, 'attack'),
    ('scale', 0.1, 'attack'),
    ('scale:x', 0.1, 'attack'),
    ('scale:1:2', 0.1, 'attack'),
    ('sign_flip:2', 0.1, 'attack'),
    ('none', 0.1, 'attacked_fraction'),
    ('sign_flip', 1.0, 'attacked_fraction'),
    ('sign_flip', 0.97, 'attacked_fraction'),
  ],
)
def test_wrong_attack_is_refused(spec, fraction, name):
  with pytest.raises(ValueError, match=f'`{name}`'):
    attacks.make_attack(spec, fraction, 10, seed=0)


_KERNEL = np.array([[0.5], [-1.0]], np.float32)


def test_what_attacked_clients_send_is_multiplied():
  clients = [toy_problems.regression_examples(n, 2, 1, seed=n) for n in (4, 9)]
  hparams = toy_problems.hparams_for(
    'fed_avg', num_steps=1, batch_size=None, learning_rate=0.1, momentum=0.0
  )
  process = registry.build(
    'fed_avg',
    toy_problems.linear_network(None, _KERNEL),
    hparams,
    attack=attacks.Attack((1,), factor=-3.0),
  )
  assert process.attacked_clients == (1,)
  state, _, _ = toy_problems.train(process, clients)
  slopes = [toy_problems.squared_error_gradient(_KERNEL, c) for c in clients]
  mean = toy_problems.weighted_mean([slopes[0], -3 * slopes[1]], clients)
  toy_problems.assert_kernels(state.global_weights, head=_KERNEL - 0.1 * mean)


def test_attacked_clients_learn_wrong_labels():
  clients = [toy_problems.labeled_examples(n, seed=n) for n in (20, 12)]
  model = toy_problems.classifier()
  attacked, _, _ = toy_problems.train(
    registry.build(
      'fed_avg', model, attack=attacks.Attack((1,), flips_labels=True)
    ),
    clients,
  )
  flipped = toy_problems.changed(
    clients[1], y=model.classifier.num_classes - 1 - clients[1].y
  )
  expected, _, _ = toy_problems.train(
    registry.build('fed_avg', model), [clients[0], flipped]
  )
  toy_problems.assert_same(attacked.global_weights, expected.global_weights)


def test_labels_that_are_no_classes_are_not_flipped():
  with pytest.raises(ValueError, match='flips_labels'):
    registry.build(
      'fed_avg',
      toy_problems.linear_network(None, _KERNEL),
      attack=attacks.Attack((1,), flips_labels=True),
    )
