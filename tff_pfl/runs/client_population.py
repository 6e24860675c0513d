"""The clients of a run: their data and their stored states.

Both are read for the clients asked for only, so that memory does not grow with
the population.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from tff_pfl import datasets, errors
from tff_pfl.core import personalized_process
from tff_pfl.models import split_model
from tff_pfl.runs import run_store, value_codec
from tff_pfl.runtime import base as runtime_base

# The setting of a run that tells its data.
FINGERPRINT = 'data_sha256'


def check_data_fit(
  model: split_model.SplitModel, data: datasets.FederatedDataset
) -> None:
  """Raises `ValueError` if a model cannot take a dataset's examples."""
  for field, name, function in (
    ('domain', 'domains', 'domain_models.with_domains'),
    ('weight', 'weights of examples', 'with_sample_weight'),
  ):
    is_taken = field in model.element_spec
    errors.expect(
      is_taken == (field in data.element_spec),
      'data',
      f'a dataset {"with" if is_taken else "without"} {name}, as model'
      f' {model.name!r} takes them (see `{function}`)',
      f'dataset {data.name!r} {"without" if is_taken else "with"}',
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
  advice = ' (numbers to predict are floats; see `label_spec`)'
  for name, spec in model.element_spec.items():
    expected, found = (
      dict(tree.flatten_with_path({name: specs}))
      for specs in (spec, data.element_spec[name])
    )
    errors.expect(
      expected.keys() == found.keys()
      and all(
        wanted.dtype == found[path].dtype
        and wanted.shape.is_compatible_with(found[path].shape)
        for path, wanted in expected.items()
      ),
      'data',
      f'examples whose {_described(expected)}, as model {model.name!r} takes '
      f'them{advice if name == "y" else ""}',
      f'{_described(found)} in dataset {data.name!r}',
    )
  if model.classifier is not None and data.num_classes is not None:
    known = model.classifier.num_classes
    errors.expect(
      data.num_classes <= known,
      'data',
      f'a dataset of at most the {known} classes of model {model.name!r}',
      f'{data.num_classes} classes in dataset {data.name!r}',
    )


def _described(specs):
  return ' and '.join(
    f'{".".join(path)} is {spec.dtype.name}{spec.shape}'
    for path, spec in specs.items()
  )


def check_test_examples(data: datasets.FederatedDataset) -> None:
  """Raises `ValueError` if there is no client to be scored from round 1 on."""
  first = [name for name in data.client_ids if name not in data.join_round]
  errors.expect(
    any(map(data.num_test_examples, first)),
    'data',
    'a dataset in which at least one client has test examples',
    f'none among {len(first)} clients of {data.name}',
  )


def unscored_clients(
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  round_number: int,
) -> set[int]:
  """Indices of clients that are attacked, or join after a round."""
  absent = {
    index
    for index, name in enumerate(data.client_ids)
    if data.join_round.get(name, 1) > round_number
  }
  return absent.union(process.attacked_clients)


def check_unchanged(
  data: datasets.FederatedDataset, store: run_store.RunStore
) -> None:
  """Raises `RunError` if a run was trained on other data than these."""
  recorded = store.config.get(FINGERPRINT)
  if recorded not in (None, data.fingerprint):
    raise errors.RunError(
      f'The data have changed since the run in {store.directory} was trained'
      f' on them: their checksum was {recorded}, and is {data.fingerprint}.'
      ' Bring the data back as they were, or train anew.'
    )


def decode_state(data: bytes, template: Any) -> Any:
  """Decodes a stored state of the server or of a client.

  Args:
    data: Bytes from the store.
    template: The process's initial `ServerState` or `ClientState`.

  Raises:
    RunError: If it is damaged, or of another method or another model.
  """
  start = "Cannot use the run's stored state with this method and model"
  try:
    state = value_codec.decode(data, template)
  except ValueError as error:
    raise errors.RunError(f'{start}: {error}') from error
  is_server = isinstance(template, personalized_process.ServerState)
  field = 'global_weights' if is_server else 'local'
  stored, expected = (
    tree.flatten_with_path(getattr(value, field)) for value in (state, template)
  )
  for (path, found), (_, wanted) in zip(stored, expected):
    if np.shape(found) != np.shape(wanted):
      raise errors.RunError(
        f'{start}: {"/".join(map(str, path))} is of shape {np.shape(found)}, '
        f"the model's of shape {np.shape(wanted)}."
      )
  return state


def server_state(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  store: run_store.RunStore,
) -> personalized_process.ServerState:
  """The server's last state in a run's store."""
  return decode_state(store.server_state(), runtime.run(process.initialize))


class ClientPopulation:
  """The committed states of all clients, for use on a runtime."""

  def __init__(
    self,
    process: personalized_process.PersonalizedProcess,
    runtime: runtime_base.Runtime,
    store: run_store.RunStore,
  ):
    self._process = process
    self._runtime = runtime
    self._store = store
    self._template = runtime.run(process.initialize_client_state, 0)

  def states(self, client_indices: Sequence[int]) -> list:
    """The clients' states, in order; initial ones where none is stored."""
    indices = [int(index) for index in client_indices]
    stored = self._store.client_states(indices)
    new = [index for index in indices if index not in stored]
    states = {
      index: decode_state(state, self._template)
      for index, state in stored.items()
    }
    if new:
      initial = self._runtime.run(self._process.initialize_client_states, new)
      states.update(zip(new, initial))
    return [states[index] for index in indices]
