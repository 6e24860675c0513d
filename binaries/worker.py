r"""Starts one TFF worker, which computes for runs with `--runtime=remote`.

    python -m binaries.worker --address=127.0.0.1:8000

prints one line when it is ready, and runs until Ctrl-C or SIGTERM. Then, on the
same machine,

    python -m binaries.train --runtime=remote --workers=127.0.0.1:8000 ...

**TFF's connections are neither encrypted nor authenticated**: whoever reaches
the address can have the worker run any program, and whoever is on the way can
read what is sent, the clients' data included. So keep the default, which only
users of this machine reach, and reach a worker on another machine through SSH.
With a worker started on the machine `node1` as above, and this left running on
the machine that trains,

    ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:8001:127.0.0.1:8000 node1

the worker is `--workers=127.0.0.1:8001` there; a further machine gets another
local port, and `--workers` takes all of them with commas between.

In a network that only those may enter who may do all that,
`--address=10.0.0.5:8000` serves on one address of the machine, and
`--address=0.0.0.0:8000` on all. TFF's worker itself listens on all addresses in
any case; connections to others than the given one are taken from it by the
Linux kernel and closed (see `tff_pfl/runtime/worker_port.py`). Where that does
not work, the program says so and ends.
"""

import sys

from absl import flags

from binaries import program
from tff_pfl.runtime import worker_port, worker_process
from tff_pfl.system import shutdown

_ADDRESS = flags.DEFINE_string(
  'address', '127.0.0.1:8000', 'Where to serve, host:port.'
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'max_concurrent_clients',
  None,
  "How many clients' computations run at the same time (default: the number of "
  'usable CPU cores).',
  lower_bound=1,
)
flags.adopt_module_key_flags(program)


def main() -> None:
  """Serves until it is told to end."""
  host, port = worker_port.split_address(_ADDRESS.value, '--address')
  with worker_process.start_worker(
    host=host, port=port, max_concurrent_clients=_MAX_CONCURRENT_CLIENTS.value
  ) as worker:
    print(f'TFF worker ready at {_ADDRESS.value} (process {worker.pid})')
    sys.stdout.flush()
    while not worker.wait(0.1):
      shutdown.raise_if_stopped()
    raise worker_process.WorkerDiedError(worker.describe_end())


if __name__ == '__main__':
  program.run(main)
