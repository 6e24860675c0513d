"""The TCP port of a TFF worker, limited to this machine.

TFF's `worker_binary` listens on every network interface, unencrypted, and has
no flag for an address. Anyone who reaches it can run programs as its user. Here
only connections to 127.0.0.1 reach it, on Linux and without privileges. This
process listens on the port first (gRPC servers share ports) and gives the
kernel a filter: connections to 127.0.0.1 go to the second listener, the worker,
and all others to the first, which never accepts them. Other users of this
machine can still reach the worker. A system without such filters serves all
addresses.
"""

import ctypes
import functools
import socket
import struct
import sys

HOST = '127.0.0.1'
_OTHER_HOST = '127.0.0.2'
# From <asm-generic/socket.h>, which Python's `socket` lacks.
_SO_ATTACH_REUSEPORT_CBPF = 51
# Results of the filter: positions of the port's listeners, in the order in
# which they started to listen.
_REFUSE, _ACCEPT = 0, 1
_SECONDS_TO_CONNECT = 1.0
_NUM_TRIES = 8
# Until the worker starts, our own socket takes the connections.
_SECONDS_TO_SPEAK = 0.1


class WorkerPort:
  """A free port that is reserved for one worker.

  No other run can take it. Otherwise two runs with the same port would both
  start, and the kernel would give their connections to either worker.

  Attributes:
    number: The TCP port.
  """

  def __init__(self):
    """Reserves a port."""
    self._socket = _bind(0)
    self.number = self._socket.getsockname()[1]
    try:
      self._limit()
    except OSError:
      # A socket that does not listen gets no connections.
      self._socket.close()
      self._socket = _bind(self.number)

  def is_served(self) -> bool:
    """Returns True if a worker answers.

    A gRPC server speaks first, with its HTTP/2 settings.
    """
    try:
      with socket.create_connection(
        (HOST, self.number), _SECONDS_TO_SPEAK
      ) as probe:
        return bool(probe.recv(1))
    except OSError:
      return False

  def close(self) -> None:
    """Releases the port, whose worker must have ended."""
    self._socket.close()

  def _limit(self) -> None:
    """Refuses connections to other addresses, or raises `OSError`."""
    self._socket.listen()
    program, self._program_memory = _filter_program()
    self._socket.setsockopt(
      socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program
    )
    # Some systems ignore the filter. A single connection could go right by
    # chance, so several are tried.
    with _bind(self.number) as worker:
      worker.listen()
      for _ in range(_NUM_TRIES):
        for listener, host in ((worker, HOST), (self._socket, _OTHER_HOST)):
          listener.settimeout(_SECONDS_TO_CONNECT)
          with socket.create_connection(
            (host, self.number), _SECONDS_TO_CONNECT
          ):
            listener.accept()[0].close()


def _bind(port: int) -> socket.socket:
  """Returns a socket bound to all interfaces, like a gRPC server's."""
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
  """Returns True if gRPC servers use IPv6 sockets here, by gRPC's rule."""
  try:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
      probe.bind(('::1', 0))
    return True
  except OSError:
    return False


def _filter_program() -> tuple[bytes, ctypes.Array]:
  """Makes a socket filter that accepts connections to `HOST`.

  Returns:
    The `struct sock_fprog` and the memory that it points to. The kernel's
    `Documentation/networking/filter.rst` describes the instructions.
  """
  if sys.platform != 'linux':
    raise OSError(0, 'it is not Linux')
  load_byte, load_word, shift_right = 0x30, 0x20, 0x74
  jump_if_equal, ret = 0x15, 0x06
  # Offsets from here count from the IP header.
  header = 0x100000000 - 0x100000
  (host,) = struct.unpack('!I', socket.inet_aton(HOST))
  # Operands of a jump: instructions to skip if equal, and if not equal.
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
