"""The TCP port of a TFF worker, limited to this machine.

TFF 0.87's `worker_binary` has no flag for an address: it listens on every
network interface (``[::]:PORT``, IPv4 included), without encryption or
authentication, and whoever reaches it can run programs as its user.
`WorkerPort` limits it to loopback, on Linux and without privileges or copies.
Before the worker starts, this process listens on the same port. gRPC servers
share ports (SO_REUSEPORT), and a port's first listener may give the kernel a
program that hands out its connections. Ours hands a connection to the worker if
it was made to 127.0.0.1, and otherwise to our own socket, which closes it.

So other machines cannot connect. Users of this machine can, and nothing that is
sent is encrypted. Where a system cannot limit it, the worker serves all
addresses.
"""

import contextlib
import ctypes
import functools
import socket
import struct
import sys
import threading
from typing import Optional

HOST = '127.0.0.1'
_OTHER_HOST = '127.0.0.2'
# Of <asm-generic/socket.h>; Python's `socket` lacks it.
_SO_ATTACH_REUSEPORT_CBPF = 51
# What the program returns: the position of a listener on the port, in the order
# in which they began to listen.
_REFUSE, _ACCEPT = 0, 1
_SECONDS_TO_ANSWER = 1.0
_NUM_TRIES = 8


class WorkerPort:
  """A free port that is reserved for one worker, to be started on it.

  While it is reserved no other run takes it: two that pick the same free port
  would both start, and the kernel would hand each one's connections to either
  worker.

  Attributes:
    number: The TCP port.
  """

  def __init__(self):
    """Reserves a port."""
    self._closing: Optional[threading.Thread] = None
    self._is_closed = False
    self._socket = _bind(0)
    self.number = self._socket.getsockname()[1]
    try:
      self._limit()
    except OSError:
      # No longer listening, it would be handed connections no more.
      self._socket.close()
      self._socket = _bind(self.number)

  @property
  def target(self) -> str:
    """The worker's gRPC address."""
    return f'{HOST}:{self.number}'

  def is_served(self) -> bool:
    """Returns whether a worker answers."""
    return _answers(HOST, self.number)

  def close(self) -> None:
    """Gives up the port; its worker must have ended."""
    self._is_closed = True
    if self._closing is not None:
      with contextlib.suppress(OSError):
        self._socket.shutdown(socket.SHUT_RDWR)  # Ends `accept`.
      self._closing.join()
    self._socket.close()

  def _limit(self) -> None:
    """Refuses connections to other addresses; raises `OSError` if it cannot."""
    self._socket.listen()
    program, self._program_memory = _filter_program()
    self._socket.setsockopt(
      socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program
    )
    self._try_out()
    self._closing = threading.Thread(
      target=self._close_connections,
      name=f'tff-worker-port-{self.number}',
      daemon=True,
    )
    self._closing.start()

  def _try_out(self) -> None:
    """Raises `OSError` unless the program is obeyed; some systems ignore it."""
    with _bind(self.number) as worker:
      worker.listen()
      # Several times, for otherwise it would be left to chance.
      for _ in range(_NUM_TRIES):
        _expect_connection(worker, HOST, self.number)
        _expect_connection(self._socket, _OTHER_HOST, self.number)
    self._socket.settimeout(None)

  def _close_connections(self) -> None:
    """Closes what the kernel hands to us instead of the worker."""
    while not self._is_closed:
      with contextlib.suppress(OSError):
        _reset(self._socket.accept()[0])


def _bind(port: int) -> socket.socket:
  """Returns a socket bound as a gRPC server's is, to all interfaces."""
  family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
  reservation = socket.socket(family, socket.SOCK_STREAM)
  try:
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
      reservation.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    reservation.bind(('', port))
  except OSError:
    reservation.close()
    raise
  return reservation


@functools.cache
def _has_ipv6() -> bool:
  """Returns whether gRPC servers use IPv6 sockets here, by gRPC's own rule."""
  if not socket.has_ipv6:
    return False
  try:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
      probe.bind(('::1', 0))
    return True
  except OSError:
    return False


def _expect_connection(listener: socket.socket, host: str, port: int) -> None:
  """Raises `OSError` unless `listener` gets a connection to this address."""
  listener.settimeout(_SECONDS_TO_ANSWER)
  with socket.create_connection((host, port), _SECONDS_TO_ANSWER):
    _reset(listener.accept()[0])


def _reset(connection: socket.socket) -> None:
  """Closes a connection so that its port can be used again at once."""
  connection.setsockopt(
    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)
  )
  connection.close()


def _answers(host: str, port: int) -> bool:
  """Returns whether a gRPC server takes connections to this address.

  Such a server speaks first (HTTP/2's settings).
  """
  try:
    with socket.create_connection((host, port), _SECONDS_TO_ANSWER) as probe:
      return bool(probe.recv(1))
  except OSError:
    return False


def _filter_program() -> tuple[bytes, ctypes.Array]:
  """Returns a socket filter that accepts connections to `HOST`.

  Returns:
    The `struct sock_fprog` and the memory that it points to. See the kernel's
    `Documentation/networking/filter.rst` for the instructions.
  """
  if sys.platform != 'linux':
    raise OSError(0, 'it is not Linux')
  load_byte, load_word, shift_right = 0x30, 0x20, 0x74
  jump_if_equal, ret = 0x15, 0x06
  # Offsets from here count from the IP header.
  header = 0x100000000 - 0x100000
  (host,) = struct.unpack('!I', socket.inet_aton(HOST))
  # Of a jump: how many instructions to skip if equal, and if not.
  instructions = [
    (load_byte, 0, 0, header),
    (shift_right, 0, 0, 4),
    (jump_if_equal, 0, 3, 4),  # The IP version.
    (load_word, 0, 0, header + 16),
    (jump_if_equal, 0, 1, host),  # The destination.
    (ret, 0, 0, _ACCEPT),
    (ret, 0, 0, _REFUSE),
  ]
  packed = b''.join(struct.pack('HBBI', *each) for each in instructions)
  memory = ctypes.create_string_buffer(packed, len(packed))
  return (
    struct.pack('HP', len(instructions), ctypes.addressof(memory)),
    memory,
  )
