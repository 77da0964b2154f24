"""What a browser would do with a page."""

import re
from html.parser import HTMLParser


class Loads(HTMLParser):
    """Collects whatever a browser would fetch."""

    def __init__(self, html):
        super().__init__()
        self.urls, self.tags = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "a":  # fetched by nobody who does not click
            return
        self.urls += [value for name, value in attrs if name in {"src", "href", "srcset", "data"}]


def assert_loads_nothing(html):
    """Check that a page is whole without a network, and return what it embeds."""
    loads = Loads(html)
    assert all(re.match("data:(image|video)/", url) for url in loads.urls)
    assert loads.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    assert not re.search(r"url\(|@import", html)
    return loads.urls
