"""README.md and docs/: their code runs, their links resolve, names exist."""

import collections
import json
import pathlib
import re
import runpy
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

import tff_pfl
from binaries import early, papers
from binaries.papers import record
from tests.methods import toy_problems
from tff_pfl import datasets, runtime
from tff_pfl.methods import registry
from tff_pfl.models import zoo
from tff_pfl.runs import report
from tff_pfl.studies import claims

_ROOT = pathlib.Path(__file__).parents[1]
_DOCS = _ROOT / 'docs'
_README = _ROOT / 'README.md'
_PAGES = [_README, *sorted(_DOCS.rglob('*.md'))]
# What the library's tests do on less.
_SLOW = ('exporting', 'production', 'programs', 'studies')
_TUTORIALS = sorted((_DOCS / 'tutorials').glob('*.ipynb'))


def _name_of(path):
  return str(path.relative_to(_ROOT))


def _text(path):
  """A page's text; of a notebook, that of its cells in Markdown."""
  text = path.read_text('utf-8')
  if path.suffix == '.ipynb':
    cells = json.loads(text)['cells']
    text = '\n\n'.join(
      ''.join(cell['source'])
      for cell in cells
      if cell['cell_type'] == 'markdown'
    )
  return text


def _code_blocks(path, language):
  return re.findall(rf'^```{language}\n(.*?)^```', _text(path), re.S | re.M)


def _run_blocks(path):
  """Runs a page's Python, block by block, and returns the names defined."""
  names = {}
  for code in _code_blocks(path, 'python'):
    exec(compile(code, _name_of(path), 'exec'), names)
  return names


@pytest.fixture(name='hooks')
def _hooks(monkeypatch):
  """The hooks of the site, without MkDocs."""
  for name in ('mkdocs', 'mkdocs.structure', 'mkdocs.structure.files'):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
  monkeypatch.setattr(
    sys.modules['mkdocs.structure.files'], 'File', None, raising=False
  )
  return runpy.run_path(str(_ROOT / '.ci' / 'docs_hooks.py'))


def _reference(hooks):
  """The pages of the packages' modules, by path below reference/."""
  return {
    path.removeprefix('reference/'): text
    for pages in hooks['_pages']().values()
    for path, text in pages
  }


def test_the_reference_names_the_page_of_each_name(hooks):
  page, known = hooks['_face_page'](), {*_reference(hooks)}
  rows = re.findall(r'^\| `pfl\.(\w+)` \| (.+) \| (.*) \|$', page, re.MULTILINE)
  assert sorted(name for name, *_ in rows) == tff_pfl.__all__
  links = {
    name: link
    for name, _, cell in rows
    for link in re.findall(r'\((.*)\)', cell)
  }
  assert {*links.values()} <= known | {'fields.md', 'plots.md'}
  assert links['zoo'] == 'models/zoo.md'
  assert links['FederatedDataset'] == 'datasets/federated_dataset.md'
  summary = 'Registers a method under the name of the decorated function.'
  assert ['method', summary] in [[name, words] for name, words, _ in rows]


def test_the_search_leaves_internals_out(hooks):
  excluded = {
    path
    for path, text in _reference(hooks).items()
    if re.match(r'---\nsearch:\n  exclude: true\n---\n\n# tff_pfl', text)
  }
  # The guide names these, and the face.
  assert 'runtime/vectorization_rules.md' in excluded
  assert {'methods/fed_rep.md', 'runs/run.md', 'core/gather.md'}.isdisjoint(
    excluded
  )


def test_links_to_files_of_the_library_lead_to_the_reference(hooks):
  for link, page in (
    ('](../tff_pfl/core/client.py)', '](reference/core/client.md)'),
    ('](../../tff_pfl/core/client.py#x)', '](../reference/core/client.md#x)'),
    ('](../tff_pfl/runs/__init__.py)', '](reference/runs/index.md)'),
    ('](../tff_pfl/__init__.py)', '](reference/tff_pfl.md)'),
    ('href="../../tff_pfl/fields.py"', 'href="../reference/fields.md"'),
  ):
    assert hooks['_to_reference'](link) == page


def test_readme_is_short():
  assert len(_text(_README).splitlines()) <= 110
  (example,) = _code_blocks(_README, 'python')
  assert len(example.splitlines()) < 25


def _check_readme(names, folder):
  run = names['run']
  assert run.summary['num_rounds'] == len(run.history) == 60
  # The README says 0.88, and 0.51 for one model.
  assert run.scores['after/accuracy'].mean() == pytest.approx(0.88, abs=0.02)
  assert (folder / 'my_run' / 'summary.json').is_file()


def _check_programs(names, _):
  told = []
  names['mlflow'] = types.SimpleNamespace(
    log_metrics=lambda metrics, step: told.append((step, metrics))
  )
  names['run'].continue_(
    5, callbacks=[names['ToMlflow']()], show_progress=False
  )
  assert [step for step, _ in told] == [5, 5]
  assert 'personal/accuracy' in told[1][1]
  assert names['probabilities'].shape == (len(names['x']), 10)


def _check_domains(names, _):
  assert names['process'].model.domains.names == ('small', 'large')


def _check_production(names, _):
  assert names['form'].work.type_signature
  trained = list(names['models'].values().values())[-1]
  assert trained.round_number == 2
  train = map(names['data'].train, names['data'].client_ids[:2])
  # A record that is not parsed as it was written would train otherwise.
  state, _ = names['learning_process'].next(
    names['learning_process'].initialize(),
    [
      tf.data.Dataset.from_tensors(collections.OrderedDict(x=e.x, y=e.y))
      for e in train
    ],
  )
  toy_problems.assert_same(
    dict(names['state']['global_weights']), dict(state.global_weights)
  )


def _check_exporting(names, _):
  # The run's model knows nothing of the eleventh client's two classes.
  assert names['after']['accuracy'] > names['before']['accuracy'] + 0.5
  predicted = names['probabilities'].argmax(axis=1)
  assert names['after']['accuracy'] == pytest.approx(
    (predicted == names['new'].y).mean()
  )


@pytest.mark.parametrize(
  'page',
  [
    pytest.param(page, marks=[pytest.mark.slow] * (page.stem in _SLOW))
    for page in _PAGES
    if _code_blocks(page, 'python') and page.stem != 'adding_a_method'
  ],
  ids=_name_of,
)
@pytest.mark.usefixtures('registers')
def test_python_of_pages_runs(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(report, '_write_pictures', lambda *_: None)
  check = globals().get(f'_check_{page.stem.lower()}')
  names = _run_blocks(page)
  if check:
    check(names, tmp_path)


@pytest.mark.usefixtures('runtime', 'registers')
def test_methods_written_by_the_guide_are_fed_prox_and_fed_per():
  _run_blocks(_DOCS / 'adding_a_method.md')
  model = toy_problems.classifier()

  def weights(name, **hparams):
    process = registry.build(name, model, **hparams, seed=3)
    data = [toy_problems.labeled_examples(n, n) for n in (7, 12)]
    return toy_problems.train(process, data, 2)[0].global_weights

  ours = weights('near_global', strength=0.5)
  expected = weights('fed_prox', proximal_strength=0.5)
  for name in ours:
    np.testing.assert_array_equal(ours[name], expected[name])
  bodies, expected = weights('body_and_head'), weights('fed_per')
  assert bodies.keys() == expected.keys()
  for name in bodies:
    np.testing.assert_array_equal(bodies[name], expected[name])


def _anchors(page):
  """The anchors that headings get on the site, and on GitHub."""
  text = re.sub(r'^```.*?^```', '', _text(page), flags=re.S | re.M)
  headings = re.findall(r'^#+ (.*)$', text, re.M)
  return {
    re.sub(r'[\s-]+', '-', re.sub(r'[^\w\s-]', '', heading).strip().lower())
    for heading in headings
  }


@pytest.mark.parametrize('page', [*_PAGES, *_TUTORIALS], ids=_name_of)
def test_links_resolve(page):
  text = re.sub(r'^```.*?^```', '', _text(page), flags=re.S | re.M)
  for link in re.findall(r'\]\(([^)\s]+)\)', text):
    if re.match(r'https?://', link):
      continue
    path, _, anchor = link.partition('#')
    target = (page.parent / path).resolve() if path else page
    assert target.is_file(), f'{link} in {_name_of(page)}'
    if anchor:
      assert anchor in _anchors(target), f'{link} in {_name_of(page)}'


@pytest.mark.parametrize('page', _PAGES, ids=_name_of)
def test_files_named_in_pages_exist(page):
  named = re.findall(
    r'\b(?:tff_pfl|binaries|tests|docs)/[\w/.]*\w', _text(page)
  )
  # Presets are also named without their folder.
  named += [
    f'binaries/flagfiles/{name}'
    for name in re.findall(r'`([a-z]\w+\.txt)`', _text(page))
  ]
  missing = [name for name in named if not (_ROOT / name).exists()]
  assert missing == []


def _known_flags():
  from absl import flags

  from binaries import run_flags  # noqa: F401  (defines those of methods)

  # The last of them is of the commit at which old studies run.
  names = {'help', 'helpfull', 'flagfile', 'experiment', *flags.FLAGS}
  for program in (_ROOT / 'binaries').rglob('*.py'):
    source = program.read_text('utf-8')
    names.update(re.findall(r"DEFINE_\w+\(\s*'(\w+)'", source))
    # Those that are made of fields.
    for fields in re.findall(r'# By field of .*?^}', source, re.S | re.M):
      names.update(re.findall(r": '(\w+)'", fields))
  return names


@pytest.mark.parametrize('page', _PAGES, ids=_name_of)
def test_flags_named_in_pages_exist(page):
  known = _known_flags()
  for code in _code_blocks(page, 'python'):
    # The arguments of a dataset and of a model that the page registers.
    known.update(
      f'{kind}_{name}'
      for kind in ('dataset', 'model')
      for function in re.findall(rf'^@pfl.{kind}\n(def .*)', code, re.M)
      for name in re.findall(r'(\w+): \w+ =', function)
    )
  # What other programs are told stands before the name of ours, if that is
  # there at all.
  others = r'^(ray|sbatch) (?:(?!\.sh ).)*|pip install .*'
  text = re.sub(others, '', _text(page), flags=re.M)
  for flag in re.findall(r'(?<![\w-])--([a-z]\w*)', text):
    is_negated = flag.startswith('no') and flag[2:] in known
    assert flag in known or is_negated, f'--{flag} in {_name_of(page)}'


def test_flags_of_commands_are_not_overridden_by_their_presets():
  blocks = [block for page in _PAGES for block in _code_blocks(page, 'sh')]
  commands = '\n'.join(blocks).replace('\\\n', ' ').splitlines()
  for command in filter(re.compile(r'--flagfile=').search, commands):
    flags = re.findall(r'--\S+', command)
    given = {flag for flag in flags if not flag.startswith('--flagfile=')}
    expanded = [line for flag in flags for line in early.expanded(flag)]
    # The last of two flags of one name counts.
    last = {line.partition('=')[0]: line for line in expanded}
    assert given <= {*last.values()}, command


@pytest.mark.parametrize(
  'page, names',
  [
    ('README.md', registry.ALGORITHMS),
    ('docs/methods.md', registry.ALGORITHMS),
    ('docs/data.md', datasets.DATASETS),
    ('docs/data.md', datasets.PARTITIONERS),
    ('docs/models.md', zoo.MODELS),
    ('docs/runtimes.md', runtime.RUNTIMES),
  ],
)
def test_tables_are_complete(page, names):
  text = _text(_ROOT / page)
  missing = [name for name in names if not re.search(rf'`{name}[`:]', text)]
  assert missing == []


def test_the_needs_of_methods_are_named():
  text = _text(_DOCS / 'methods.md')
  for needs, words in (
    ('needs_classes', 'need one class label'),
    ('needs_domains', 'need domains'),
  ):
    sentence = re.search(rf'([^.]*)\s{words}', text)[1]
    expected = {
      name
      for name, entry in registry.ALGORITHMS.items()
      if getattr(entry, needs)
    }
    assert {*re.findall(r'`(\w+)`', sentence)} == expected


def test_every_page_is_in_the_navigation_and_every_picture_is_shown():
  nav = (_ROOT / 'mkdocs.yml').read_text('utf-8')
  shown = '\n'.join(map(_text, _PAGES))
  for page in [*_PAGES[1:], *_TUTORIALS]:
    assert f': {page.relative_to(_DOCS)}\n' in nav or page.name == 'index.md'
  for picture in _DOCS.rglob('*.png'):
    assert f'({picture.name})' in shown, picture


def test_every_study_is_on_a_papers_page():
  pages = '\n'.join(map(_text, (_DOCS / 'results').glob('*.md')))
  for name in papers.STUDIES:
    assert f'<!-- claims: {name} -->' in pages, name


def test_results_are_those_of_the_records():
  """Tables of claims are written by `reproduce --docs_dir`, never by hand."""
  records = record.read(str(_DOCS / 'results'))
  assert records
  for page in (_DOCS / 'results').glob('*.md'):
    text = _text(page)
    assert record.rewritten(text, records, papers.STUDIES) == text, page
  every_claim = sum((r['claims'] for r in records.values()), [])
  numbers = ('measured', 'low', 'high', 'p_value')
  for claim in every_claim:
    again = claims.recomputed(claim)._asdict()
    assert again['verdict'] == claim['verdict'], claim
    np.testing.assert_allclose(
      *(np.array([c[n] for n in numbers], float) for c in (again, claim)),
      rtol=1e-3,  # Bounds are told with six digits.
    )
  count = claims.count_all(every_claim)
  assert f'[{count.split(" claims")[0]}]' in _text(_README)


@pytest.mark.parametrize('tutorial', _TUTORIALS, ids=_name_of)
def test_stored_outputs_of_tutorials_are_small_and_no_errors(tutorial):
  for cell in json.loads(tutorial.read_text('utf-8'))['cells']:
    outputs = cell.get('outputs', ())
    assert len(json.dumps(outputs)) < 150_000
    assert all(output['output_type'] != 'error' for output in outputs)
    assert all(output.get('name') != 'stderr' for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize('tutorial', _TUTORIALS, ids=_name_of)
def test_tutorial_runs(tutorial, tmp_path):
  pytest.importorskip('nbmake')
  # In a process of its own: nbmake has pytest collect the notebook.
  command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
  command += ['-m', '', '--nbmake', '--nbmake-timeout=900', str(tutorial)]
  result = subprocess.run(
    command, cwd=_ROOT, capture_output=True, text=True, check=False
  )
  assert result.returncode == 0, result.stdout[-5000:]
