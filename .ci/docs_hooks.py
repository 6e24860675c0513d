"""Hooks of MkDocs: the pages of the reference, and links in the tutorials.

There is a reference page for each module, from its docstrings. The pages follow
the packages as they are, so a module that is added, moved or removed needs no
change here.
"""

import ast
import functools
import pathlib
import re

from mkdocs.structure.files import File

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# In pages, links to files of the library, which have pages in the reference.
_SOURCE = re.compile(r'(?<=[("/])\.\./tff_pfl/([\w/]+)\.py(?=[#)"])')
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


@functools.cache
def _parsed(path):
  return ast.parse(path.read_text('utf-8'))


def _docstring(path):
  return ast.get_docstring(_parsed(path)) or ''


def _summary(node):
  return (ast.get_docstring(node) or '').partition('\n')[0]


def _comment_above(path, number):
  """The comment on the lines before a line of a file."""
  lines = path.read_text('utf-8').splitlines()[: number - 1]
  comment = []
  while lines and lines[-1].startswith('#'):
    comment.insert(0, lines.pop().lstrip('# '))
  return ' '.join(comment)


def _definition(module, name):
  """The module that defines a name, below tff_pfl, and the name's summary.

  A package's `__init__` and a module may have it from another module.
  """
  path = _ROOT / 'tff_pfl' / module.replace('.', '/')
  if (path / f'{name}.py').is_file():  # The name is a module.
    summary = _summary(_parsed(path / f'{name}.py'))
    return f'{module}.{name}'.lstrip('.'), summary
  path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
  for node in _parsed(path).body:
    if getattr(node, 'name', None) == name:
      return module, _summary(node)
    if name in (getattr(t, 'id', '') for t in getattr(node, 'targets', ())):
      return module, _comment_above(path, node.lineno)
    if getattr(getattr(node, 'target', None), 'id', '') == name:
      return module, _comment_above(path, node.lineno)
    for alias in getattr(node, 'names', ()):
      origin = getattr(node, 'module', None) or ''
      if (alias.asname or alias.name) == name and origin.startswith('tff_pfl'):
        origin = origin.removeprefix('tff_pfl').lstrip('.')
        return _definition(origin, alias.name)
  return module, ''


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
  for node in _parsed(path.with_suffix('.pyi')).body:
    for alias in getattr(node, 'names', ()):
      named = node.module.removeprefix('tff_pfl').lstrip('.')
      module, summary = _definition(named, alias.name)
      link = f'[`{module}`]({_page_path(module)})'
      if module == 'errors':
        link = '`errors`'
      summary = summary.replace('|', '\\|')
      rows.append(f'| `pfl.{alias.name}` | {summary} | {link} |')
  table = ['| name | summary | documented in |', '|---|---|---|', *rows]
  return f'# tff_pfl\n\n{_docstring(path)}\n\n' + '\n'.join(table) + '\n'


def _page_path(module):
  """The page of a module or package, below reference/."""
  path = module.replace('.', '/')
  is_package = (_ROOT / 'tff_pfl' / path).is_dir()
  return f'{path}/index.md' if is_package else f'{path}.md'


def _reference_path(module):
  """The page of a source file that a page links to, below reference/."""
  if module == '__init__':
    return 'tff_pfl.md'
  return module.replace('__init__', 'index') + '.md'


@functools.cache
def _searched():
  """The pages of the reference that the search finds, below reference/.

  They are methods, the modules that `tff_pfl` has names of, and whatever the
  guide links to. Internals would come before the guide.
  """
  pages = set(re.findall(r'\]\(([\w/]+\.md)\)', _face_page()))
  for path in (_ROOT / 'docs').rglob('*.*'):
    if path.suffix in ('.md', '.ipynb'):
      pages.update(
        map(_reference_path, _SOURCE.findall(path.read_text('utf-8')))
      )
  return pages


def _module_page(module):
  name = '.'.join(('tff_pfl', *module.with_suffix('').parts))
  page = module.with_suffix('.md').as_posix()
  is_found = module.parts[0] == 'methods' or page in _searched()
  search = '' if is_found else '---\nsearch:\n  exclude: true\n---\n\n'
  return f'{search}# {name}\n\n::: {name}\n'


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


def _to_reference(text):
  """Has links to the library's files lead to the reference.

  So they work on the repository's page as well.
  """
  return _SOURCE.sub(lambda link: f'reference/{_reference_path(link[1])}', text)


def on_page_markdown(markdown, page, config, files):
  """Has links lead to the reference, and the search find the guide first."""
  folder = page.file.src_uri.partition('/')[0]
  if folder != 'reference':
    # Results are long, and have most words somewhere.
    page.meta['search'] = {'boost': 0.2 if folder == 'results' else 4}
  return _to_reference(markdown)


def on_post_page(output, page, config):
  """Has links in notebooks, which are left as they are, lead to the site."""
  if not page.file.src_uri.endswith('.ipynb'):
    return output
  output = _to_reference(output)
  return re.sub(r'(href="[^":]+)\.(?:md|ipynb)(["#])', r'\1.html\2', output)
