"""Methods whose clients keep a whole model of their own, beside the global one.

The personal model is the client's local state; it starts from the initial
weights when the client first takes part. A client that is scored and never took
part starts from the global model and trains its personal one as in a round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tff_pfl.core import client_work
from tff_pfl.models import split_model


def personal_copies_work(
  model: split_model.SplitModel,
  train: Callable[..., client_work.ClientResult],
  train_personal: Callable[..., Any],
  default_weighting: str = 'num_examples',
) -> client_work.ClientWork:
  """Makes a method whose clients keep a personal model.

  Args:
    train: `(broadcast, personal, examples, seed) -> ClientResult`, a round;
      `local` is the new personal model.
    train_personal: `(broadcast, personal, examples, seed, num_epochs) ->
      TrainResult`: the part of a round that trains the personal model, for
      `num_epochs` or (None) as long as in a round.
    default_weighting: As for `ClientWork`.
  """

  def fit_new_client(broadcast, unused_initial, examples, seed, num_epochs):
    start = broadcast.global_weights
    return train_personal(broadcast, start, examples, seed, num_epochs).weights

  return client_work.ClientWork(
    model,
    [client_work.Exchange(train)],
    initial_global=model.initial_weights,
    initial_local=model.initial_weights,
    personal_weights=lambda unused_broadcast, personal: personal,
    global_model=lambda global_weights: global_weights,
    fit_new_client=fit_new_client,
    default_weighting=default_weighting,
  )
