"""IFCA (HypCluster): a few global models, of which each client takes the best.

    client:  k_i = argmin_k f_i(w_k);  w <- SGD on f_i from w_{k_i}, E epochs
    server:  w_k <- sum n_i w_i / sum n_i over the clients with k_i = k

A client chooses anew in every round and before it is scored, so it keeps no
state. A model that no client chose gets no update (but may still move if the
server uses momentum).

The aggregator gets the updates and the shares of the clusters. The server turns
these into means over the members of each cluster. So clipping bounds a client's
part in the sums, not the step of a cluster. Private factories add noise to
both. A cluster then moves only if its share is at least half of one client's
share (see `aggregators.least_share`).

Symbols: k -> num_clusters, tau -> num_epochs or num_steps, gamma ->
learning_rate.

Deviations from the paper: model averaging (IFCA's option II), weighted by the
clients' numbers of examples. The models start from one draw of the initial
weights in different orders (`models.copies.drawn_apart`).

References:
  Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated
  Learning, NeurIPS 2020, Algorithm 1.
  Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with
  Applications to Federated Learning, arXiv:2002.10619, HypCluster.
"""

import collections

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work, objectives, scoring
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import copies, split_model


@fields.dataclass
class IfcaHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of IFCA: local training and the clusters.

  Attributes:
    num_clusters: Number of global models to choose from (k), at least 1.
    cluster_seed: Seed of the models' initial weights.
  """

  num_clusters: fields.Size = 3
  cluster_seed: fields.Seed = 0


@registry.method(
  'a few global models, of which each client takes the best',
  IfcaHParams,
  unsupported=('num_warmup_rounds',),
)
def ifca(model, hparams):
  """IFCA."""
  clusters = copies.components(model, hparams.num_clusters)

  def best_cluster(client):
    scores = [
      scoring.score(model, weights, client.examples, training_loss=True)
      for weights in clusters.parts(client.received).values()
    ]
    losses = [each.sums['loss'] for each in scores]
    return tf.argmin(tf.stack(losses), output_type=tf.int32)

  def weights_of(global_weights, cluster):
    parts = list(clusters.parts(global_weights).values())
    return collections.OrderedDict(
      (name, tf.gather(tf.stack([part[name] for part in parts]), cluster))
      for name in model.initial_weights
    )

  def train(client):
    cluster = best_cluster(client)
    initial = weights_of(client.received, cluster)
    trained, metrics = client.sgd(
      objectives.joint_loss(model), initial, hparams.phase()
    )
    membership = tf.one_hot(cluster, hparams.num_clusters)
    moved = split_model.difference(initial, trained)
    update = {
      copy: {
        name: tf.cast(membership[k], value.dtype) * value
        for name, value in moved.items()
      }
      for k, copy in enumerate(clusters.names)
    }
    return client_lib.ClientResult(
      update=clusters.join(update),
      local=collections.OrderedDict(cluster=cluster),
      metrics=metrics,
      report=membership,
    )

  def mean_of_members(state, update, shares, cohort):
    update = copies.means_of_members(
      clusters, update, shares, cohort.least_share
    )
    return update, state.algorithm

  return client_work.ClientWork(
    model,
    [client_work.Exchange(train, mean_of_members)],
    initial_global=copies.drawn_apart(clusters, hparams.cluster_seed),
    initial_local=collections.OrderedDict(cluster=np.int32(0)),
    personal_weights=lambda broadcast, local: weights_of(
      broadcast.global_weights, local['cluster']
    ),
    fit_new_client=lambda client, unused_epochs: collections.OrderedDict(
      cluster=best_cluster(client)
    ),
    trains_new_clients=False,
    keeps_local=False,
    statistics=clusters.statistics,
  )
