import pytest

from tff_pfl import tff_api as tff
from tff_pfl.core import hparams, personalization
from tff_pfl.methods import ditto, l2gd, registry


def test_the_phase_has_the_hyperparameters():
  phase = hparams.LocalTrainingHParams(
    num_epochs=3, num_steps=7, learning_rate=0.5, momentum=0.25, batch_size=4
  ).phase()
  assert (phase.num_epochs, phase.num_steps, phase.batch_size) == (3, 7, 4)
  assert dict(phase.optimizer.get_hparams(phase.optimizer.initialize(()))) == {
    'learning_rate': 0.5,
    'momentum': 0.25,
  }
  # Epochs asked for take the place of steps.
  phase = hparams.LocalTrainingHParams(num_epochs=3, num_steps=7).phase(2)
  assert (phase.num_epochs, phase.num_steps) == (2, None)


def test_an_optimizer_that_is_no_name_is_taken_as_it_is():
  adagrad = tff.learning.optimizers.build_adagrad(0.5)
  for owner, phase in (
    (hparams.LocalTrainingHParams, 'phase'),
    (hparams.HeadAndBodyHParams, 'head_phase'),
    (hparams.HeadAndBodyHParams, 'body_phase'),
    (personalization.Personalization, 'phase'),
  ):
    assert getattr(owner(optimizer=adagrad), phase)().optimizer is adagrad
  with pytest.raises(ValueError, match='`learning_rate`.*left out.*found 0.1'):
    hparams.LocalTrainingHParams(optimizer=adagrad, learning_rate=0.1)
  with pytest.raises(ValueError, match='`head_learning_rate`.*left out'):
    hparams.HeadAndBodyHParams(optimizer=adagrad, head_learning_rate=0.1)
  with pytest.raises(ValueError, match='`personal_learning_rate`.*left out'):
    ditto.DittoHParams(optimizer=adagrad, personal_learning_rate=0.1)
  # What a method sets itself, it sets for an optimizer by name.
  with pytest.raises(ValueError, match='`optimizer` to be one of sgd or adam'):
    l2gd.L2gdHParams(optimizer=adagrad)


@pytest.mark.parametrize(
  'algorithm,name,steps',
  [
    ('fed_avg', 'num_epochs', 'num_steps'),
    ('fed_rep', 'num_body_epochs', 'num_body_steps'),
    # It has no such steps.
    ('ditto', 'personal_num_epochs', None),
    ('fed_avg', 'num_steps', None),
    ('fed_avg', 'learning_rate', None),
  ],
)
def test_steps_that_take_the_place_of_epochs(algorithm, name, steps):
  owner = registry.get_algorithm(algorithm).hparams
  assert hparams.steps_instead_of(owner, name) == steps
