"""What tests of HTML share: a name that is an element unless escaped."""

from html import parser

IMAGE = '"><img src=x onerror=alert(1)>'


class _Reader(parser.HTMLParser):
  def __init__(self):
    super().__init__()
    self.text = ''
    self.attributes = []

  def handle_starttag(self, tag, attrs):
    self.attributes += attrs

  def handle_data(self, data):
    self.text += data


def count_images(html):
  """How often a reader of HTML sees the text `IMAGE`, which is no element."""
  reader = _Reader()
  reader.feed(html)
  reader.close()
  assert 'onerror' not in dict(reader.attributes)
  return reader.text.count(IMAGE)
