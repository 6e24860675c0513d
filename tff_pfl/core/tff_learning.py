"""Methods without client state in the form of `tff.learning`.

A `LearningProcess` takes only the server's state and the clients' data, so it
runs even if clients cannot be identified: under `tff.learning.programs`, and in
production systems, for which it compiles to `MapReduceForm` and
`DistributeAggregateForm`.

Clients have no numbers there. A fingerprint of a client's examples replaces its
number in seeds (for the order of its examples and for dropout).
"""

import collections
from typing import Any

import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import client_work, example_tensors, personalized_process
from tff_pfl.models import randomness, split_model


def build_learning_process(
  name: str,
  work: client_work.ClientWork,
  the_round: Any,
  server_optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.templates.LearningProcess:
  """Builds the `LearningProcess` of a method.

  Args:
    the_round: The method's round: its `state_type`, its computation
      `initialize`, and `run`, `(state, client states, examples) -> (state,
      client states, metrics)`, in a federated computation.
    server_optimizer: Optimizer of the server's steps.

  Returns:
    The process. It reports the metrics of rounds, grouped as in TFF's own
    algorithms. Its model weights are the trained weights and moving statistics
    of the model given to a client that contributes no data, in the model's
    order. They can be set if they include all global weights. Other weights
    (FedBABU's frozen head) do not change.
    Its hyperparameters are `learning_rate_factor` in `client_work`, which
    multiplies all learning rates of the clients (1 at first), and the server
    optimizer's hyperparameters in `finalizer`, as in TFF's own algorithms.

  Raises:
    ValueError: If clients keep local state.
  """
  errors.expect(
    not tf.nest.flatten(work.initial_kept),
    'stateless',
    f'given when {name} is built, as its clients keep local state, for which '
    "TFF's LearningProcess has no place",
    False,
  )
  model = work.model
  trained = [n for n in model.initial_weights if n not in model.statistics]
  statistics = [n for n in model.initial_weights if n in model.statistics]
  examples_of = example_tensors.build_examples_of(model.element_spec)
  anonymous_state = tff.tensorflow.computation(
    _anonymous_state, examples_of.type_signature.result
  )
  state_type = the_round.state_type

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(examples_of.type_signature.parameter, tff.CLIENTS),
  )
  def next_fn(state, client_data):
    examples = tff.federated_map(examples_of, client_data)
    states = tff.federated_map(anonymous_state, examples)
    new_state, _, metrics = the_round.run(state, states, examples)
    return tff.learning.templates.LearningProcessOutput(
      new_state, tff.federated_map(_grouped, metrics)
    )

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    weights = work.model_without_data(work.broadcast_of(state))
    return tff.learning.models.ModelWeights(
      tuple(weights[name] for name in trained),
      tuple(weights[name] for name in statistics),
    )

  @tff.tensorflow.computation(
    state_type, get_model_weights.type_signature.result
  )
  def set_model_weights(state, weights):
    values = dict(zip([*trained, *statistics], tf.nest.flatten(weights)))
    if set(work.initial_global) <= set(values):
      new = split_model.select(values, state.global_weights)
    else:
      refusal = tf.debugging.Assert(
        False,
        ['The weights of one model are not the global weights of this method.'],
      )
      with tf.control_dependencies([refusal]):
        new = tf.nest.map_structure(tf.identity, state.global_weights)
    return state._replace(global_weights=new)

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return collections.OrderedDict(
      client_work=collections.OrderedDict(
        learning_rate_factor=state.rate_factor
      ),
      finalizer=server_optimizer.get_hparams(state.server_optimizer),
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    return state._replace(
      server_optimizer=server_optimizer.set_hparams(
        state.server_optimizer, hparams['finalizer']
      ),
      rate_factor=hparams['client_work']['learning_rate_factor'],
    )

  return tff.learning.templates.LearningProcess(
    the_round.initialize,
    next_fn,
    get_model_weights,
    set_model_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


def _anonymous_state(examples):
  return personalized_process.ClientState(
    client_index=randomness.fingerprint(examples),
    num_rounds=tf.constant(0, tf.int32),
    local=collections.OrderedDict(),
  )


@tff.tensorflow.computation
def _grouped(metrics):
  """The metrics in the structure that `tff.learning.programs` expect."""
  train = collections.OrderedDict(metrics)
  update_norm = train.pop('update_norm')
  aggregator = train.pop('aggregator', ())
  return collections.OrderedDict(
    client_work=collections.OrderedDict(train=train),
    aggregator=aggregator,
    finalizer=collections.OrderedDict(update_norm=update_norm),
  )
