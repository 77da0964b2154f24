"""Open every page of a built site in headless Chromium and fail if one looks broken.

    python -m scripts.ci.site_looks build/site build/screenshots

Each page is opened as wide as a phone and as a laptop, light and dark. An error is a message in the
browser's console, a page wider than its window, or an image that does not load. Images of other
sites are left to ``make site-links``, because this machine may be offline. On Debian, ``apt-get
install chromium chromium-driver`` installs the programs.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Thread

from selenium import webdriver

WIDTHS = (375, 1280)
"""CSS pixels."""
HEIGHT = 900
QUIET = (
    "--headless=new --no-sandbox --disable-quic --no-first-run --hide-scrollbars --disable-sync"
    " --disable-background-networking --disable-component-update"
    " --use-angle=swiftshader --enable-unsafe-swiftshader"
)
"""Options that keep Chromium from using the network on its own, and draw 3D without a GPU."""
ALLOWED = re.compile(r"https:|.*/favicon\.ico ")
"""Messages of other sites, and of the icon that a browser asks for on its own."""
LOOK = """
const root = document.documentElement;
const found = [];
if (root.scrollWidth > innerWidth) {
  const wide = [...document.querySelectorAll("main *")].filter(
    each => each.getBoundingClientRect().right > innerWidth);
  found.push(`is ${root.scrollWidth} pixels wide: ${wide[0]?.outerHTML.slice(0, 120)}`);
}
for (const image of document.images) {
  const here = image.src.startsWith(location.origin);
  if (here && image.complete && !image.naturalWidth) found.push(`misses ${image.src}`);
}
return found;
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder to this machine and yield its address: pages with modules need a server."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = partial(quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Run a browser with a fresh profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*QUIET.split(), f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            yield driver
        finally:
            driver.quit()


def look(driver: webdriver.Chrome, page: str, width: int, scheme: str, shot: Path) -> list[str]:
    """Open a page and return the problems found.

    Args:
        driver: The browser.
        page: Its address.
        width: Width of the window, in CSS pixels.
        scheme: Preferred colour scheme, ``light`` or ``dark``.
        shot: File of the screenshot.
    """
    # Not "mobile": a phone would shrink a page that is too wide, and innerWidth with it.
    metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page)
    found = driver.execute_script(LOOK)
    logged = [entry["message"] for entry in driver.get_log("browser")]
    found += [f"logs {message}" for message in logged if not ALLOWED.match(message)]
    shot.parent.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(shot))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Look at every page; return 1 if one is broken."""
    parser = argparse.ArgumentParser(description="Open every page of a site.")
    parser.add_argument("site", type=Path)
    parser.add_argument("screenshots", type=Path)
    chosen = parser.parse_args(arguments)
    pages = sorted(chosen.site.rglob("*.html"))
    if not pages:
        parser.error(f"site is {chosen.site}, expected a folder with pages: run `make site`.")
    broken = 0
    with served(chosen.site) as address, chromium() as driver:
        for page, width, scheme in product(pages, WIDTHS, ("light", "dark")):
            file = page.relative_to(chosen.site)
            name = f"{file.with_suffix('')}-{width}-{scheme}"
            shot = chosen.screenshots / f"{name}.png"
            for problem in look(driver, f"{address}/{file}", width, scheme, shot):
                print(f"{name}: {problem}")
                broken += 1
    print(f"{len(pages)} pages, {broken} problems; screenshots in {chosen.screenshots}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
