"""Analysis and changes of TensorFlow's serialized graphs (`GraphDef`)."""

import collections
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.system.private_api import op_def_registry

# Registered as stateful, but as deterministic as the functions they call.
_CALLS = frozenset({'StatefulPartitionedCall', 'While', 'If', 'Case'})

# Numbers with which TensorFlow and Keras make names unique.
_NUMBERS = re.compile(r'(_\d+)+(?=/|$)')
# TensorFlow's name for a resource that each execution creates anew.
ANONYMOUS = 'cd2c89b7-88b7-44c8-ad83-06c2a9158347'
# Marks an operation that chooses between two forms of the same function: one
# for a client that runs alone, one for clients that run as one program.
FORMS_ATTRIBUTE = '_tff_pfl_forms'
ALONE, TOGETHER = 0, 1
# Marks of operations of `core.vectorization.change_if`, `apart` and `repeat`.
CHANGE_IF = '_tff_pfl_change_if'
APART = '_tff_pfl_apart'
COUNTED = '_tff_pfl_counted'

_unique_number = itertools.count()


def all_nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
  """Yields all nodes of a graph and its library's functions."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def is_deterministic(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Returns True if a graph certainly maps equal arguments to equal results.

  Any operation that TensorFlow registers as stateful, except for calls, makes
  it False, even a harmless one such as an assertion.
  """
  library = {function.signature.name for function in graph_def.library.function}
  kinds = {node.op for node in all_nodes(graph_def)} - library - _CALLS
  return all(map(_is_deterministic_op, kinds))


def _is_deterministic_op(kind: str) -> bool:
  definition = op_def_registry.get(kind)
  return (
    definition is not None
    and not definition.is_stateful
    # Fractional pooling draws random numbers without being stateful.
    and all(attribute.name != 'seed' for attribute in definition.attr)
  )


def kinds_in_use(graph_def: tf.compat.v1.GraphDef) -> collections.Counter:
  """Counts operations by kind. A function counts once if it is called."""
  nodes, _ = _in_use(graph_def)
  return collections.Counter(node.op for node in nodes)


def _in_use(graph_def: tf.compat.v1.GraphDef) -> tuple[list, dict[str, Any]]:
  """Returns the nodes in use, and the used functions by name.

  The functions are in the order of their first use.
  """
  unused = {f.signature.name: f for f in graph_def.library.function}
  used = {}
  nodes = [*graph_def.node]
  # The list grows.
  for node in nodes:
    for name in _called_by(node):
      if name in unused:
        used[name] = unused.pop(name)
        nodes += used[name].node_def
  return nodes, used


def _called_by(node: Any) -> Iterator[str]:
  """Yields names, among them the functions that a node may call."""
  yield node.op
  for _, attribute in sorted(node.attr.items()):
    yield attribute.func.name
    yield from (function.name for function in attribute.list.func)


def mark(outputs: Any, attribute: str) -> None:
  """Sets a bool attribute of the operation that computed the outputs."""
  operation = tf.nest.flatten(outputs)[0].op
  while operation.type == 'Identity':
    operation = operation.inputs[0].op
  operation._set_attr(attribute, tf.compat.v1.AttrValue(b=True))


def without_xla(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  """Removes requests for XLA from a graph, in place, and returns it."""
  for part in parts_for_xla(graph_def):
    part.attr['_XlaMustCompile'].b = False
  return graph_def


def parts_for_xla(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
  """Returns the nodes and functions that XLA must compile."""
  return [
    part
    for part in (*all_nodes(graph_def), *graph_def.library.function)
    if '_XlaMustCompile' in part.attr and part.attr['_XlaMustCompile'].b
  ]


def choose_forms(graph_def: tf.compat.v1.GraphDef, form: int) -> None:
  """Chooses a form of client work (see `core.in_place`).

  Args:
    graph_def: The graph, which is changed in place.
    form: `ALONE` or `TOGETHER`.
  """
  for nodes, function in _scopes(graph_def):
    choices = [node for node in nodes if FORMS_ATTRIBUTE in node.attr]
    # Grappler ends the process if a node of the function that it inlines has
    # the name of one of the choice's own results.
    new_names = {node.name: f'{node.name}_form' for node in choices}
    for choice in choices:
      _call_form(choice, form)
    if choices:
      _rename_nodes(nodes, function, new_names)


def _scopes(graph_def: tf.compat.v1.GraphDef) -> Iterator[tuple[Any, Any]]:
  """Yields the nodes of the graph and of each function, and the function."""
  yield graph_def.node, None
  for function in graph_def.library.function:
    yield function.node_def, function


def _rename_nodes(nodes, function, new_names):
  """Renames nodes and arguments of a scope where they have a new name."""
  for node in nodes:
    node.name = new_names.get(node.name, node.name)
    node.input[:] = [_with_new_name(i, new_names) for i in node.input]
  if function is not None:
    for result in (function.ret, function.control_ret):
      for key, value in [*result.items()]:
        result[key] = _with_new_name(value, new_names)


def _call_form(node, form):
  """Makes a choice of a form a call of the form."""
  choice = tf.compat.v1.NodeDef()
  choice.CopyFrom(node)
  node.op = 'StatefulPartitionedCall'
  del node.input[0]
  node.attr.clear()
  node.attr['f'].func.CopyFrom(choice.attr['branches'].list.func[form])
  for name in ('Tin', 'Tout'):
    node.attr[name].CopyFrom(choice.attr[name])


def _with_new_name(tensor, new_names):
  """Replaces the node in the name of a tensor or control input."""
  mark = '^' if tensor.startswith('^') else ''
  node, colon, output = tensor.removeprefix('^').partition(':')
  return f'{mark}{new_names.get(node, node)}{colon}{output}'


def make_portable(graph_def: tf.compat.v1.GraphDef) -> None:
  """Makes a graph run on any worker, without XLA or variables.

  Args:
    graph_def: The graph, which is changed in place.
  """
  choose_forms(graph_def, TOGETHER)
  without_xla(graph_def)
  _keep_in_use(graph_def)


def _keep_in_use(graph_def):
  """Removes unused functions, and returns the used ones' names.

  Both are in the order of the first use.
  """
  _, used = _in_use(graph_def)
  library = graph_def.library
  kept = list(used.values())
  del library.function[:]
  library.function.extend(kept)
  for gradient in [*library.gradient]:
    if not {gradient.function_name, gradient.gradient_func} <= used.keys():
      library.gradient.remove(gradient)
  return list(used)


def is_shared(node: Any) -> bool:
  """Returns True for a variable or table that other executions share."""
  return (
    'shared_name' in node.attr
    and node.attr['shared_name'].s.decode() != ANONYMOUS
  )


def make_names_unique(graph_def: tf.compat.v1.GraphDef) -> list[str]:
  """Gives functions names that no other loaded graph has.

  TensorFlow keeps all functions of a process in one table.

  Returns:
    The new names of the functions.
  """
  suffix = f'_of_copy_{next(_unique_number)}'
  names = {
    f.signature.name: f.signature.name + suffix
    for f in graph_def.library.function
  }
  _rename(graph_def, names)
  return list(names.values())


def make_names_canonical(
  graph_def: tf.compat.v1.GraphDef, tensors: Sequence[str], salt: str = ''
) -> tuple[list[str], list[str]]:
  """Names functions, nodes and arguments alike in any process.

  TensorFlow's names count all functions of the process, and Keras's names all
  layers. XLA's compiled programs contain them, so only functions with canonical
  names are found among the programs of an earlier run or another process. No
  two graphs have a function name in common unless all their functions are
  equal.

  Args:
    graph_def: The graph, which is changed in place. Its functions are sorted,
      and unused ones and custom gradients are removed.
    tensors: Names of the graph's tensors.
    salt: Text that makes the functions' names differ from the names for another
      salt.

  Returns:
    The new names of the functions and of the tensors.
  """
  arguments = [f.arg_attr.values() for f in graph_def.library.function]
  for part in itertools.chain(all_nodes(graph_def), *arguments):
    # TensorFlow counts these, or they name nodes.
    for attribute in ('_gradient_op_type', '_class', '_user_specified_name'):
      part.attr.pop(attribute, None)
  used = _keep_in_use(graph_def)
  names = {name: f'tff_pfl_{number}' for number, name in enumerate(used)}
  _rename(graph_def, names)
  tensors = _make_node_names_canonical(graph_def, tensors)
  # Without the graph's own nodes, among them constants with initial weights.
  content = graph_def.library.SerializeToString(deterministic=True)
  digest = hashlib.sha256(content + salt.encode()).hexdigest()[:16]
  names = {name: f'{name}_{digest}' for name in names.values()}
  _rename(graph_def, names)
  return list(names.values()), tensors


def _make_node_names_canonical(graph_def, tensors):
  """Counts nodes anew, and returns the new names of the graph's tensors."""
  kinds = {node.op for node in all_nodes(graph_def)}
  for nodes, function in _scopes(graph_def):
    numbers = collections.Counter()
    new_names = {node.name: _numbered(node.name, numbers) for node in nodes}
    if function is None:
      tensors = [_with_new_name(tensor, new_names) for tensor in tensors]
    else:
      for argument in function.signature.input_arg:
        name = _numbered('argument', numbers)
        new_names[argument.name] = argument.name = name
    _rename_nodes(nodes, function, new_names)
    for node in nodes:
      # Control inputs, which come last, were in the order of the old names.
      if len(node.input) > 1 and node.input[-2].startswith('^'):
        node.input.sort(key=lambda name: name if name.startswith('^') else '')
    # A node that calls a function by its kind has outputs of these names.
    if function is not None and function.signature.name not in kinds:
      returned = dict(function.ret)
      function.ret.clear()
      for number, result in enumerate(function.signature.output_arg):
        value, result.name = returned[result.name], f'result_{number}'
        function.ret[result.name] = value
  return tensors


def _numbered(name, numbers):
  """Replaces the numbers of a name by the next one of its kind."""
  kind = _NUMBERS.sub('', name)
  numbers[kind] += 1
  return f'{kind}_{numbers[kind]}'


def _rename(graph_def, names):
  library = graph_def.library
  for gradient in library.gradient:
    gradient.function_name = names[gradient.function_name]
    gradient.gradient_func = names[gradient.gradient_func]
  for function in library.function:
    function.signature.name = names[function.signature.name]
    _rename_in_attributes(function.attr, names)
  for node in all_nodes(graph_def):
    node.op = names.get(node.op, node.op)
    _rename_in_attributes(node.attr, names)


def _rename_in_attributes(attributes: Any, names: dict[str, str]) -> None:
  for attribute in attributes.values():
    kind = attribute.WhichOneof('value')
    if kind == 'func':
      _rename_call(attribute.func, names)
    elif kind == 'list':
      for call in attribute.list.func:
        _rename_call(call, names)
    elif kind == 's' and attribute.s.isascii():
      # Keras's strings name a function's versions for other devices.
      name = attribute.s.decode()
      attribute.s = names.get(name, name).encode()


def _rename_call(call: Any, names: dict[str, str]) -> None:
  call.name = names.get(call.name, call.name)
  _rename_in_attributes(call.attr, names)
