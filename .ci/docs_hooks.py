"""Hooks of MkDocs: the pages of the reference, and links in the tutorials.

There is a reference page for each module, from its docstrings. The pages follow
the packages as they are, so a module that is added, moved or removed needs no
change here.
"""

import ast
import pathlib
import re

from mkdocs.structure.files import File

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Where a user begins, first. A package that does not exist is left out.
_PACKAGES = (
  'methods',
  'core',
  'models',
  'datasets',
  'runs',
  'studies',
  'runtime',
  'export',
)


def _modules(package):
  """The modules of a package and of those in it, as paths below tff_pfl."""
  root = _ROOT / 'tff_pfl'
  found = [
    path.relative_to(root)
    for path in sorted((root / package).rglob('*.py'))
    if not any(part.startswith('_') for part in path.relative_to(root).parts)
  ]
  # A package's own modules come before those of the packages in it.
  return sorted(found, key=lambda path: (len(path.parts), path))


def _docstring(path):
  return ast.get_docstring(ast.parse(path.read_text('utf-8'))) or ''


def _package_page(package, modules):
  """A package's docstring and a table of its modules."""
  text = _docstring(_ROOT / 'tff_pfl' / package / '__init__.py')
  rows = []
  for module in modules:
    summary = _docstring(_ROOT / 'tff_pfl' / module).partition('\n')[0]
    link = module.relative_to(package).with_suffix('.md').as_posix()
    name = link[: -len('.md')].replace('/', '.')
    rows.append(f'| [`{name}`]({link}) | {summary} |')
  table = '\n'.join(['| module | what is in it |', '|---|---|', *rows])
  return f'# tff_pfl.{package}\n\n{text}\n\n{table}\n'


def _face_page():
  """`tff_pfl` itself: its docstring, and where its names are documented."""
  path = _ROOT / 'tff_pfl' / '__init__.py'
  rows = []
  for node in ast.parse(path.with_suffix('.pyi').read_text('utf-8')).body:
    for alias in getattr(node, 'names', ()):
      module = node.module.removeprefix('tff_pfl').lstrip('.')
      page = module.replace('.', '/')
      if (_ROOT / 'tff_pfl' / page / f'{alias.name}.py').is_file():
        page = f'{page}/{alias.name}'.lstrip('/')  # It is a module.
        module = page.replace('/', '.')
      elif (_ROOT / 'tff_pfl' / page).is_dir():
        page += '/index'
      link = f'[`{module}`]({page}.md)' if module != 'errors' else '`errors`'
      rows.append(f'| `pfl.{alias.name}` | {link} |')
  table = '\n'.join(['| name | documented in |', '|---|---|', *rows])
  return f'# tff_pfl\n\n{_docstring(path)}\n\n{table}\n'


def _module_page(module):
  name = '.'.join(('tff_pfl', *module.with_suffix('').parts))
  return f'# {name}\n\n::: {name}\n'


def _pages():
  """Package to the pages of its own, as `(path in docs, text)`."""
  pages = {}
  for package in _PACKAGES:
    if (_ROOT / 'tff_pfl' / package).is_dir():
      modules = _modules(package)
      pages[package] = [
        (f'reference/{package}/index.md', _package_page(package, modules)),
        *(
          (f'reference/{module.with_suffix(".md")}', _module_page(module))
          for module in modules
        ),
      ]
  return pages


def _top_pages():
  """Pages of modules in no package, by their title."""
  return {
    'tff_pfl': ('reference/tff_pfl.md', _face_page()),
    **{
      name: (f'reference/{name}.md', _module_page(pathlib.Path(f'{name}.py')))
      for name in ('fields', 'plots')
    },
  }


def on_config(config):
  """Adds the reference to the navigation."""
  reference = [{title: path} for title, (path, _) in _top_pages().items()]
  for package, pages in _pages().items():
    (index, _), *modules = pages
    prefix = len(f'reference/{package}/')
    entries = [{path[prefix:-3].replace('/', '.'): path} for path, _ in modules]
    reference.append({package: [index, *entries]})
  config.nav.append({'Reference': reference})
  config.watch.append(str(_ROOT / 'tff_pfl'))
  return config


def on_files(files, config):
  """Adds the pages."""
  for pages in [*_pages().values(), _top_pages().values()]:
    for path, text in pages:
      files.append(File.generated(config, path, content=text))
  return files


def on_post_page(output, page, config):
  """Has links in notebooks, which are left as they are, lead to the site."""
  if not page.file.src_uri.endswith('.ipynb'):
    return output
  return re.sub(r'(href="[^":]+)\.(?:md|ipynb)(["#])', r'\1.html\2', output)
