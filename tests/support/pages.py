"""Check a page as a browser would load it."""

import re
from html.parser import HTMLParser


class Loads(HTMLParser):
    """Collects the URLs that a browser would fetch."""

    def __init__(self, html):
        super().__init__()
        self.urls, self.tags = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "a":  # fetched only on a click
            return
        self.urls += [value for name, value in attrs if name in {"src", "href", "srcset", "data"}]


def assert_loads_nothing(html):
    """Check that a page needs no network, and return its embedded files."""
    loads = Loads(html)
    assert all(re.match("data:(image|video)/", url) for url in loads.urls)
    assert loads.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    assert not re.search(r"url\(|@import", html)
    return loads.urls
