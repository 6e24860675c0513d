"""Timing of rounds of several contestants, in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

# Runs the round of the given number, from 0 on, and waits for all results.
RunRound = Callable[[int], None]


def force(value: Any) -> None:
  """Waits for all numbers of a computation's result."""
  for leaf in tree.flatten(value):
    np.asarray(leaf)


def time_in_turns(
  contestants: Mapping[str, RunRound],
  num_rounds: int,
  on_round: Callable[[], Any] = lambda: None,
) -> dict:
  """Times rounds of several contestants: A B A B and so on.

  In turns, so that a slower phase of the machine affects all of them. Garbage
  is collected before each round, with the clock stopped. The collector then
  ignores all objects of the first round for good: a walk over TensorFlow's
  would empty the processor's caches, as in no simulation.

  Args:
    contestants: Name to the function that runs a round. Data, and all else that
      a simulation has before a round, must be ready.
    num_rounds: Rounds of each contestant after the first one, at least 1.
    on_round: Called after each round of each contestant.

  Returns:
    Name to the seconds of its `1 + num_rounds` rounds; the first one includes
    tracing and compilation.
  """
  seconds = {name: [] for name in contestants}
  for round_number in range(num_rounds + 1):
    for name, run_round in contestants.items():
      gc.collect()
      if round_number == 1:
        gc.freeze()
      start = time.perf_counter()
      run_round(round_number)
      seconds[name].append(time.perf_counter() - start)
      on_round()
  return seconds


def summarize(seconds: Sequence[float]) -> dict:
  """Returns the median, min and max of rounds, at least one."""
  return {
    'median': statistics.median(seconds),
    'min': min(seconds),
    'max': max(seconds),
  }
