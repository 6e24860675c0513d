"""Computations on which the runtimes must agree."""

from tests.runtime import parity


class Cases(dict):
  """From a name to what makes a computation, and its arguments."""

  def add(self, *arguments):
    """Adds a computation with each of some tuples of arguments."""

    def decorate(make):
      for number, argument in enumerate(arguments):
        self[f'{make.__name__.strip("_")}-{number}'] = (make, argument)
      return make

    return decorate

  def check(self, name, rt, native):
    """Checks that two runtimes return the same, again and again."""
    make, arguments = self[name]
    computation = make()
    expected = native.run(computation, *arguments)
    first = rt.run(computation, *arguments)
    # Once more, with everything loaded, which leaves the first result alone.
    again = [rt.run(computation, *arguments) for _ in range(2)]
    for result in (first, *again):
      parity.assert_same(result, expected)
