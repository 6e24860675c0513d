"""The clients of a run: their data and their stored states.

Both are read only for the requested clients, so memory does not grow with the
population.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tree

from tff_pfl import datasets, errors
from tff_pfl.core import personalized_process
from tff_pfl.models import split_model
from tff_pfl.runs import run_store, value_codec
from tff_pfl.runtime import base as runtime_base

# From client indices to the clients' states, in order.
StatesOf = Callable[[Sequence[int]], list]
# Advice for the part of an example in which model and data differ.
_ADVICE = {
  'y': ' (numbers to predict are floats; see `label_spec`)',
  'domain': ' (see `pfl.with_domains`)',
  'weight': ' (see `with_sample_weight`)',
}


def check_data_fit(
  model: split_model.SplitModel, data: datasets.FederatedDataset
) -> None:
  """Raises `ValueError` if a model cannot take a dataset's examples."""
  for name in {**model.element_spec, **data.element_spec}:
    expected, actual = (
      dict(tree.flatten_with_path({name: spec[name]} if name in spec else {}))
      for spec in (model.element_spec, data.element_spec)
    )
    errors.expect(
      expected.keys() == actual.keys()
      and all(
        spec.dtype == actual[path].dtype
        and spec.shape.is_compatible_with(actual[path].shape)
        for path, spec in expected.items()
      ),
      'data',
      f'examples with {_described(expected, name)}, as model {model.name!r} '
      f'takes them{_ADVICE.get(name, "")}',
      f'{_described(actual, name)} in dataset {data.name!r}',
    )
  if model.domains is not None:
    names = tuple(model.domains.names)
    errors.expect(
      names == data.domain_names,
      'data',
      f'a dataset of the domains of model {model.name!r}, in their order:'
      f' {", ".join(names)}',
      f'{", ".join(data.domain_names)} in dataset {data.name!r}',
    )
  if model.classifier is not None and data.num_classes is not None:
    known = model.classifier.num_classes
    errors.expect(
      data.num_classes <= known,
      'data',
      f'a dataset of at most the {known} classes of model {model.name!r}',
      f'{data.num_classes} classes in dataset {data.name!r}',
    )


def _described(specs, name):
  return (
    ' and '.join(
      f'{".".join(path)} {spec.dtype.name}{spec.shape}'
      for path, spec in specs.items()
    )
    or f'no {name}'
  )


def check_test_examples(
  data: datasets.FederatedDataset, attacked: Collection[int] = ()
) -> None:
  """Raises `ValueError` if no client can be scored in round 1.

  Args:
    attacked: Indices of the attacked clients, which are not scored.
  """
  attacked = {*attacked}
  errors.expect(
    any(
      data.num_test_examples(data.client_ids[index])
      for index in joined_clients(data, range(data.num_clients), 1)
      if index not in attacked
    ),
    'data',
    'a dataset in which at least one client has test examples'
    + (' and joins in round 1' if data.join_round else '')
    + (' and is not attacked' if attacked else ''),
    f'none among {data.num_clients} clients of {data.name}',
  )


def joined_clients(
  data: datasets.FederatedDataset,
  client_indices: Sequence[int],
  round_number: int,
) -> list[int]:
  """The clients of some that have joined by a round."""
  return [
    index
    for index in client_indices
    if data.join_round.get(data.client_ids[index], 1) <= round_number
  ]


def check_unchanged(
  data: datasets.FederatedDataset, store: run_store.RunStore
) -> None:
  """Raises `RunError` if a run was trained on other data."""
  recorded = store.config['data_sha256']
  if recorded != data.fingerprint:
    raise errors.RunError(
      f'The data have changed since the run in {store.directory} was trained'
      f' on them: their checksum was {recorded}, and is {data.fingerprint}.'
      ' Restore the data, or train again. If the run had data of its own, give'
      ' them to `open_run`, with the process.'
    )


def decode_state(data: bytes, template: Any) -> Any:
  """Decodes a stored state.

  Args:
    template: The process's initial `ServerState` or `ClientState`.

  Raises:
    RunError: If the state belongs to another method or model.
  """
  try:
    return value_codec.decode(data, template)
  except ValueError as error:
    raise errors.RunError(
      f"Cannot use the run's stored state with this method and model: {error}"
    ) from error


def server_state(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  store: run_store.RunStore,
) -> personalized_process.ServerState:
  """The server's newest state in a run's store."""
  return decode_state(store.server_state(), runtime.run(process.initialize))


def client_states(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  store: run_store.RunStore,
) -> StatesOf:
  """A function from clients to their newest states in a run's store.

  A client without a stored state gets its initial state.
  """
  template = runtime.run(process.initialize_client_state, 0)

  def states_of(client_indices):
    indices = [int(index) for index in client_indices]
    states = {
      index: decode_state(state, template)
      for index, state in store.client_states(indices).items()
    }
    new = [index for index in indices if index not in states]
    if new:
      initial = runtime.run(process.initialize_client_states, new)
      states.update(zip(new, initial))
    return [states[index] for index in indices]

  return states_of
