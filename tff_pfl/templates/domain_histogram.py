"""How many training examples there are of each domain, by one federated sum.

Each client counts its own examples; the server adds up the counts, and nothing
else leaves a client. As the counts are aggregated, secure or private summation
could take the place of the plain one.
"""

from __future__ import annotations

from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import datasets
from tff_pfl import runtime as runtime_lib
from tff_pfl.datasets import array_checks
from tff_pfl.models import domain_models, domains, split_model
from tff_pfl.runtime import base as runtime_base


def count_domains(
  data: datasets.FederatedDataset,
  runtime: Optional[runtime_base.Runtime] = None,
) -> tuple[int, ...]:
  """Returns how many training examples there are of each domain.

  Only domain ids become clients' data; inputs are not read, unless the dataset
  cannot tell the ids without.

  Args:
    data: A dataset with domains.
    runtime: What runs the sum; None for this process's CPU.

  Returns:
    A number for each of `data.domain_names`, 0 where there is no example.

  Raises:
    ValueError: The dataset has no domains, or an id is out of range; the
      message names the client.
  """
  clients = [
    array_checks.check_domain_ids(
      data.train_domains(client_id),
      f'domain of client {client_id!r}',
      data.num_domains,
    )
    for client_id in data.client_ids
  ]
  ids_type = tff.TensorType(np.int32, [None])

  @tff.tensorflow.computation(ids_type)
  def counts_of(ids):
    counts = tf.math.bincount(ids, minlength=data.num_domains, dtype=tf.int64)
    return tf.ensure_shape(counts, [data.num_domains])

  @tff.federated_computation(tff.FederatedType(ids_type, tff.CLIENTS))
  def histogram(ids):
    return tff.federated_sum(tff.federated_map(counts_of, ids))

  with runtime_lib.given_or_on_cpu(runtime) as runtime:
    counts = runtime.run(histogram, clients)
  return tuple(int(count) for count in counts)


def with_domains(
  model: split_model.SplitModel,
  data: datasets.FederatedDataset,
  runtime: Optional[runtime_base.Runtime] = None,
) -> split_model.SplitModel:
  """Returns the model for a dataset: with its domains, if it has any.

  Args:
    model: A model of examples `{x, y}`.
    runtime: As for `count_domains`.
  """
  if data.domain_names is None:
    return model
  counts = count_domains(data, runtime)
  return domain_models.with_domains(
    model,
    domains.Domains(data.domain_names, counts, sum(counts) / data.num_clients),
  )
