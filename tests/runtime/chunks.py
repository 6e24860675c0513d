"""A runtime that computes cohorts in chunks, as `ray` does, in one process."""

import functools
import itertools

from tff_pfl.runtime import (
  client_mapper,
  in_process,
  ray_actor,
  stages,
  transport,
)


class ChunksRuntime(in_process.InterpretingRuntime):
  """Has several actors, of which each forgets chunks now and then.

  Args:
    size: Clients in a chunk.
    homeless: Whether each stage of a chunk is computed by another actor, as
      after a loss.
  """

  def __init__(self, size, num_actors=1, homeless=False):
    super().__init__(
      _Mapper(size, num_actors, homeless),
      '/device:CPU:0',
      stages.StagedInterpreter,
    )


class _Mapper(client_mapper.ClientMapper):
  def __init__(self, size, num_actors, homeless):
    super().__init__([None])
    self._size = size
    self._homeless = homeless
    self._actors = [
      ray_actor.ChunkActor(1, on_gpu=False, fetch=lambda boxed: boxed[0])
      for _ in range(num_actors)
    ]
    self._numbers = itertools.count()

  def map(self, function, argument, num_clients):
    raise AssertionError('The server maps nothing.')

  def prepare(self, plan):
    return next(self._numbers), stages.pack(plan)

  def cohort(self, program, argument, num_clients):
    return functools.partial(
      self._compute, program, next(self._numbers), argument, num_clients, []
    )

  def _compute(self, program, run, argument, num_clients, so_far, received):
    so_far.append([transport.encode(dict(received))])
    outputs = []
    for chunk, begin in enumerate(range(0, num_clients, self._size)):
      end = min(begin + self._size, num_clients)
      is_home = len(so_far) > 1 and not self._homeless
      actor = chunk + (len(so_far) if self._homeless else 0)
      output = self._actors[actor % len(self._actors)].compute(
        ray_actor.Order(
          program=(program[0], [program[1]]),
          run=run,
          chunk=chunk,
          num_clients=end - begin,
          received=list(so_far),
          argument=None
          if is_home
          else transport.encode(transport.client_part(argument, begin, end)),
          shared={},
        )
      )
      if isinstance(output, Exception):
        raise output
      outputs.append(transport.decode(output))
    return outputs
