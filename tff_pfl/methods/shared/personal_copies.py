"""Methods whose clients keep a whole personal model besides the global one.

The personal model is the client's local state. It starts from the initial
weights when the client first takes part. If a client is scored but never took
part, it starts from the global model and trains as in a round.
"""

from collections.abc import Callable
from typing import Any

from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work
from tff_pfl.models import split_model


def personal_copies_work(
  model: split_model.SplitModel,
  train: Callable[..., client_lib.ClientResult],
  train_personal: Callable[..., Any],
  **others: Any,
) -> client_work.ClientWork:
  """Makes a method whose clients keep a personal model.

  Args:
    train: `client -> ClientResult`, a round. The local state is the personal
      model.
    train_personal: `(client, personal, num_epochs) -> TrainResult`, the part of
      a round that trains the personal model, from `personal`, for `num_epochs`.
      None trains as long as in a round.
    **others: Further fields of `ClientWork`.
  """

  def fit_new_client(client, num_epochs):
    return train_personal(client, client.received, num_epochs).weights

  return client_work.global_weights_work(
    model,
    client_work.Exchange(train),
    initial_local=model.initial_weights,
    personal_weights=lambda unused_broadcast, personal: personal,
    fit_new_client=fit_new_client,
    **others,
  )
