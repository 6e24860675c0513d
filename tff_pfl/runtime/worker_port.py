"""The TCP port of a TFF worker, limited to one address of this machine.

TFF 0.87's `worker_binary` has no flag for an address: it listens on every
network interface (``[::]:PORT``, IPv4 included), without encryption or
authentication, and whoever reaches it can run programs as its user.
`WorkerPort` limits it to one address, on Linux and without privileges or
copies. Before the worker starts, this process listens on the same port. gRPC
servers share ports (SO_REUSEPORT), and a port's first listener may give the
kernel a program that hands out its connections. Ours hands a connection to the
worker if it was made to the given address, and otherwise to our own socket,
which closes it.

What that protects: with a loopback address, other machines cannot connect; with
the address of one network, other networks cannot. What it does not: users of
this machine can connect to a loopback address, as to any; and nothing that is
sent is encrypted.
"""

import contextlib
import ctypes
import functools
import ipaddress
import re
import socket
import struct
import sys
import threading
from typing import Optional, Union

from tff_pfl import errors

LOOPBACK = '127.0.0.1'
# Of <asm-generic/socket.h>; Python's `socket` lacks it.
_SO_ATTACH_REUSEPORT_CBPF = 51
# What the program returns: the position of a listener on the port, in the order
# in which they began to listen.
_REFUSE, _ACCEPT = 0, 1
_SECONDS_TO_ANSWER = 1.0
_NUM_TRIES = 8

_Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


def split_address(address: str, name: str) -> tuple[str, int]:
  """Returns the host and the port of an address.

  Args:
    address: "host:port", or "[host]:port" for IPv6.
    name: What to call it in an error.

  Raises:
    ValueError: If it is not like that.
  """
  host, _, port = str(address).rpartition(':')
  is_bracketed = host.startswith('[') and host.endswith(']')
  if is_bracketed:
    host = host[1:-1]
  errors.expect(
    host
    and not re.search(r'[\s/\[\]]', host)
    and (is_bracketed or ':' not in host)
    and re.fullmatch('[0-9]{1,5}', port)
    and 1 <= int(port) <= 65535,
    name,
    "'host:port' with a port from 1 to 65535 ('[host]:port' for IPv6)",
    address,
  )
  return host, int(port)


class WorkerPort:
  """A port that is reserved for one worker, which is to be started on it."""

  def __init__(self, host: Optional[str] = None, port: Optional[int] = None):
    """Reserves the port.

    Args:
      host: The address to serve on, such as `'127.0.0.1'`; `'0.0.0.0'` or
        `'::'` for all. None for loopback where this system can limit a worker
        to it, and all otherwise.
      port: The port, 1 to 65535; None for a free one.

    Raises:
      RunError: If the port cannot be had, or not limited to the address.
      ValueError: If a number is out of range.
    """
    if port is not None:
      errors.expect(1 <= port <= 65535, 'port', 'from 1 to 65535', port)
    self._address = _resolve(LOOPBACK if host is None else host)
    self._closing: Optional[threading.Thread] = None
    self._is_closed = False
    with contextlib.ExitStack() as stack:
      self._socket = stack.enter_context(_reserve(self._address, port))
      self._number = self._socket.getsockname()[1]
      if not self._address.is_unspecified:
        try:
          self._limit()
        except OSError as error:
          if host is not None:
            raise errors.RunError(
              f'Could not limit a TFF worker to {host} on this system '
              f'({error.strerror or error}); serve on 0.0.0.0 and close the '
              'port to others with a firewall.'
            ) from error
          # No longer listening, it would be handed connections no more.
          self._socket.close()
          self._socket = _bind(self._number, socket.SO_REUSEPORT)
      stack.pop_all()
    self._must_be_limited = (
      host is not None and not self._address.is_unspecified
    )

  def __enter__(self) -> 'WorkerPort':
    return self

  def __exit__(self, *unused_exception) -> None:
    self.close()

  @property
  def number(self) -> int:
    """The TCP port."""
    return self._number

  @property
  def host(self) -> str:
    """The address at which programs on this machine reach the worker."""
    if self._address.is_unspecified:
      return LOOPBACK
    return str(self._address)

  @property
  def target(self) -> str:
    """The worker's gRPC address for programs on this machine."""
    host = f'[{self.host}]' if ':' in self.host else self.host
    return f'{host}:{self.number}'

  def is_served(self) -> bool:
    """Returns whether a worker answers."""
    return _answers(self.host, self.number)

  def check_limit(self) -> None:
    """Makes sure that a worker with a given address has no other.

    Raises:
      RunError: If it answers there.
    """
    if not self._must_be_limited:
      return
    for other in (_other_loopback(self.host), '::1'):
      if other != self.host and _answers(other, self.number):
        raise errors.RunError(
          f'The TFF worker on {self.target} also answers on {other}: this '
          'system does not limit it to one address.'
        )

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
    program, self._program_memory = _filter_program(self._address)
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
    with _bind(self.number, socket.SO_REUSEPORT) as worker:
      worker.listen()
      # Several times, for otherwise it would be left to chance.
      for _ in range(_NUM_TRIES):
        _expect_connection(worker, self.host, self.number)
        _expect_connection(
          self._socket, _other_loopback(self.host), self.number
        )
    self._socket.settimeout(None)

  def _close_connections(self) -> None:
    """Closes what the kernel hands to us instead of the worker."""
    while not self._is_closed:
      with contextlib.suppress(OSError):
        _reset(self._socket.accept()[0])


def _resolve(host: str) -> _Address:
  """Returns the IP address of `host`."""
  try:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as error:
    raise ValueError(
      errors.message('address', 'an address of this machine', host)
    ) from error
  addresses = [ipaddress.ip_address(info[4][0].split('%')[0]) for info in found]
  # "localhost" may be both; programs prefer neither in particular.
  return min(addresses, key=lambda address: address.version)


def _reserve(address: _Address, port: Optional[int]) -> socket.socket:
  """Returns a socket that keeps a port from others while a worker uses it.

  Without it, two runs that pick the same free port at the same moment would
  both start, and the kernel would hand each one's connections to either worker.
  The socket is bound as the worker's will be.

  Args:
    address: An address of this machine.
    port: The port, or None for a free one.

  Returns:
    The bound socket.

  Raises:
    RunError: If the port cannot be had.
  """
  try:
    if not address.is_unspecified:
      family = socket.AF_INET if address.version == 4 else socket.AF_INET6
      with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((str(address), 0))
  except OSError as error:
    raise errors.RunError(
      f'Could not serve on {address}: {error.strerror}; choose an address of '
      'this machine.'
    ) from error
  try:
    if port is not None:
      # Unlike the binding below, this one also fails for a port that another
      # gRPC server is willing to share.
      with _bind(port, socket.SO_REUSEADDR):
        pass
    return _bind(port or 0, socket.SO_REUSEPORT)
  except OSError as error:
    raise errors.RunError(
      f'Could not serve on port {port or "0"}: {error.strerror}; '
      'choose another port.'
    ) from error


def _bind(port: int, option: int) -> socket.socket:
  """Returns a socket bound to `port` on all interfaces with `option` set."""
  family = socket.AF_INET6 if _has_ipv6() else socket.AF_INET
  reservation = socket.socket(family, socket.SOCK_STREAM)
  try:
    reservation.setsockopt(socket.SOL_SOCKET, option, 1)
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


def _other_loopback(host: str) -> str:
  """Returns a loopback address that is not `host`."""
  return '127.0.0.2' if host == LOOPBACK else LOOPBACK


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


def _filter_program(address: _Address) -> tuple[bytes, ctypes.Array]:
  """Returns a socket filter that accepts connections to `address`.

  Args:
    address: The address.

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
  destination = header + (16 if address.version == 4 else 24)
  words = struct.unpack(f'!{len(address.packed) // 4}I', address.packed)
  # Pairs of what to load and what it must be, to go on.
  checks: list[tuple[list[tuple[int, int]], int]] = [
    ([(load_byte, header), (shift_right, 4)], address.version)
  ]
  for index, word in enumerate(words):
    checks.append(([(load_word, destination + 4 * index)], word))
  instructions = []
  for loads, expected in checks:
    instructions += [(code, 0, 0, value) for code, value in loads]
    # The two last instructions are "accept" and "refuse".
    instructions.append((jump_if_equal, 0, None, expected))
  instructions += [(ret, 0, 0, _ACCEPT), (ret, 0, 0, _REFUSE)]
  last = len(instructions) - 1
  packed = b''.join(
    struct.pack(
      'HBBI',
      code,
      if_true,
      last - 1 - position if if_false is None else if_false,
      value,
    )
    for position, (code, if_true, if_false, value) in enumerate(instructions)
  )
  memory = ctypes.create_string_buffer(packed, len(packed))
  return (
    struct.pack('HP', len(instructions), ctypes.addressof(memory)),
    memory,
  )
