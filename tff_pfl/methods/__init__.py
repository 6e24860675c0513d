"""One method per file, each reading like its paper's pseudocode.

Clients' SGD has a momentum of 0.5 by default, as in FedRep's experiments,
unless a method says otherwise. Most papers use none.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
  importlib.import_module(f'{__name__}.{_module.name}')
