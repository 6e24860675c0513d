"""Figures as parts of an HTML page.

What matplotlib writes is a document of its own, with metadata, styles, fonts
and ids that repeat from picture to picture. Here it becomes an element that is
a fraction of the size and leaves fonts and colors to the page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from xml.etree import ElementTree

import markupsafe
import matplotlib
from matplotlib.figure import Figure

_HEX_COLOR = re.compile('#[0-9a-f]{6}')
_LONG_DECIMAL = re.compile(r'-?\d+\.\d{2,}')
_UNTURNED = re.compile(r'rotate\(-?0 [^)]*\)')
_REFERENCE = re.compile(r'#([\w.-]+)')
_FONT = re.compile(r"font: (?:\w+ )*?([\d.]+)px [^;]*('[^;]*)?")
_DRAWN_ATTRIBUTES = ('d', 'x', 'y', 'width', 'height', 'transform', 'points')
_NO_METADATA = {'Date': None, 'Creator': None, 'Format': None, 'Type': None}


def inline_svg(figure: Figure, label: str, key: str) -> markupsafe.Markup:
  """Returns a figure as an `svg` element that can stand in an HTML page.

  It is scalable, and its texts are in the font of the page. Each of its colors
  is `var(--c-rrggbb, #rrggbb)`, so that a page can replace them.

  Args:
    label: What it shows, for those who cannot see it.
    key: Unique on the page; the ids within the picture start with it.
  """
  file = io.BytesIO()
  with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': key}):
    figure.savefig(file, format='svg', transparent=True, metadata=_NO_METADATA)
  text = file.getvalue().decode()
  root = ElementTree.fromstring(text)
  for parent in list(root.iter()):
    for child in list(parent):
      # The style is the page's; the rest is of no use there.
      if _local_name(child.tag) in ('metadata', 'style'):
        parent.remove(child)
  # Only what something refers to needs an id, and one that is unique.
  referred = dict.fromkeys(re.findall(r'["(]#([\w.-]+)', text))
  ids = {name: f'{key}-{i}' for i, name in enumerate(referred)}
  for element in root.iter():
    element.tag = _local_name(element.tag)
    element.attrib = dict(_page_attributes(element, ids))
    # The indentation.
    element.text = (element.text or '').strip() or None
    element.tail = None
  for element in root.iter():
    _hoist_style(element)
  for name in ('width', 'height', 'version'):
    root.attrib.pop(name)
  root.attrib.update({'role': 'img', 'aria-label': label})
  # What has no content is closed at once, which HTML allows within `svg`.
  return markupsafe.Markup(ElementTree.tostring(root, encoding='unicode'))


def _local_name(name: str) -> str:
  """A name without its namespace, which an HTML page does not have."""
  return name.rpartition('}')[2]


def _page_attributes(
  element: ElementTree.Element, ids: Mapping[str, str]
) -> list[tuple[str, str]]:
  """The attributes of an element of a picture, as they stand in a page.

  Args:
    ids: By id in the picture, that in the page; other ids are left out.
  """
  attributes = []
  for name, value in element.attrib.items():
    name = _local_name(name)
    if name == 'id':
      value = ids.get(value, '')
    elif name == 'href' and value.startswith('#'):
      value = f'#{ids[value[1:]]}'
    elif name == 'clip-path':
      value = _REFERENCE.sub(lambda m: f'#{ids[m[1]]}', value)
    elif name in _DRAWN_ATTRIBUTES:
      # A tenth of a point is less than a pixel.
      value = _LONG_DECIMAL.sub(lambda m: f'{float(m[0]):.1f}', value)
      value = _UNTURNED.sub('', ' '.join(value.split()))
    elif name == 'style':
      value = _FONT.sub(r'font-size: \1px', value)
      value = _HEX_COLOR.sub(lambda m: f'var(--c-{m[0][1:]}, {m[0]})', value)
    if value:
      attributes.append((name, value))
  return attributes


def _hoist_style(parent: ElementTree.Element) -> None:
  """Writes a style that all children have in common once, at their parent."""
  styles = {child.get('style') for child in parent}
  (style,) = styles if len(styles) == 1 else (None,)
  # An opacity would apply to the children together.
  alike = style is not None and not re.search(r'(^|; *)opacity', style)
  if alike and len(parent) > 1 and 'style' not in parent.attrib:
    for child in parent:
      del child.attrib['style']
    parent.set('style', style)
