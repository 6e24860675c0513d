import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import attacks
from tff_pfl.methods import registry


def test_attacked_clients_are_drawn_by_the_seed_and_nested():
  drawn = [
    attacks.make_attack('sign_flip', fraction, 50, seed=3).clients
    for fraction in (0.1, 0.2, 0.2)
  ]
  assert [len(clients) for clients in drawn] == [5, 10, 10]
  assert set(drawn[0]) < set(drawn[1]) == set(drawn[2]) < set(range(50))
  assert attacks.make_attack('sign_flip', 0.2, 50, seed=4).clients != drawn[1]


def test_attacks_by_name():
  for spec, expected in {
    'sign_flip': attacks.Attack((0,), factor=-1),
    'scale:-2.5': attacks.Attack((0,), factor=-2.5),
    'label_flip': attacks.Attack((0,), flips_labels=True),
  }.items():
    # The least share that comes to one of them.
    assert attacks.make_attack(spec, 0.25, 2, seed=0) == expected


@pytest.mark.parametrize(
  ('spec', 'fraction', 'name'),
  [
    *(
      (spec, 0.1, 'attack')
      for spec in (
        *('flip', 'scale', 'scale:x', 'scale:1', 'scale:1:2'),
        'sign_flip:2',
      )
    ),
    # Of ten clients none, or all.
    *(
      ('sign_flip', fraction, 'attacked_fraction') for fraction in (0.049, 0.97)
    ),
    ('none', 0.1, 'attacked_fraction'),
  ],
)
def test_wrong_attack_is_refused(spec, fraction, name):
  with pytest.raises(ValueError, match=f'`{name}`'):
    attacks.make_attack(spec, fraction, 10, seed=0)


_KERNEL = toy_problems.KERNEL


def test_what_attacked_clients_send_is_multiplied():
  clients = toy_problems.CLIENTS
  process = toy_problems.linear(
    'fed_avg',
    {'attack': attacks.Attack((1,), factor=-3.0)},
    num_steps=1,
    learning_rate=0.1,
  )
  assert process.attacked_clients == (1,)
  state, _, _ = toy_problems.train(process, clients)
  slopes = [toy_problems.squared_error_gradient(_KERNEL, c) for c in clients]
  mean = toy_problems.weighted_mean([slopes[0], -3 * slopes[1]], clients)
  expected = {'head': _KERNEL - 0.1 * mean}
  toy_problems.assert_part(state.global_weights, expected)


def test_attacked_clients_learn_wrong_labels():
  clients = [toy_problems.labeled_examples(n, seed=n) for n in (20, 12)]
  model = toy_problems.classifier()
  attack = attacks.Attack((1,), flips_labels=True)
  process = toy_problems.full_batches('fed_avg', model, {'attack': attack})
  attacked, _, _ = toy_problems.train(process, clients)
  flipped = toy_problems.changed(
    clients[1], y=model.classifier.num_classes - 1 - clients[1].y
  )
  # Client 2 is not attacked.
  expected, _, _ = toy_problems.train(
    process, [clients[0], flipped], indices=[0, 2]
  )
  toy_problems.assert_close(attacked.global_weights, expected.global_weights)
  # Labels that are ignored stay so.
  ignored = toy_problems.changed(clients[1], y=np.int32([0, 1, 2, -1] * 3))
  (ignored,) = toy_problems.padded([ignored])
  actual = attack.on_examples(ignored, tf.constant(1), model)
  assert actual.y[:12].numpy().tolist() == [2, 1, 0, -1] * 3


def test_labels_that_are_no_classes_are_not_flipped():
  with pytest.raises(ValueError, match='flips_labels'):
    registry.build(
      'fed_avg',
      toy_problems.linear_network(None, _KERNEL),
      attack=attacks.Attack((1,), flips_labels=True),
    )
