"""Open every page of a built site in headless Chromium and fail if one looks broken.

    python -m scripts.ci.site_looks build/site build/screenshots [PATTERN]

Each page is opened as wide as a phone and as a laptop, light and dark. An error is a message in the
browser's console, a page wider than its window, or an image that does not load. Images of other
sites are left to ``make site-links``, because this machine may be offline. On Debian, ``apt-get
install chromium chromium-driver`` installs the programs.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver

WIDTHS = (375, 1280)
"""CSS pixels."""
HEIGHT = 900
QUIET = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"
    " --disable-background-networking --disable-component-update --disable-sync"
)
"""Options that keep Chromium from using the network on its own."""
LOOK = """
const root = document.documentElement;
const found = [];
if (root.scrollWidth > innerWidth) {
  const wide = [...document.querySelectorAll("main *")].filter(
    each => each.getBoundingClientRect().right > innerWidth);
  found.push(`is ${root.scrollWidth} pixels wide: ${wide[0]?.outerHTML.slice(0, 120)}`);
}
for (const image of document.images) {
  const here = !image.src.startsWith("http");
  if (here && image.complete && !image.naturalWidth) found.push(`misses ${image.src}`);
}
return found;
"""


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


def look(driver: webdriver.Chrome, page: Path, width: int, scheme: str, shot: Path) -> list[str]:
    """Open a page and return the problems found.

    Args:
        driver: The browser.
        page: The HTML file.
        width: Width of the window, in CSS pixels.
        scheme: Preferred colour scheme, ``light`` or ``dark``.
        shot: File of the screenshot.
    """
    # Not "mobile": a phone would shrink a page that is too wide, and innerWidth with it.
    metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.resolve().as_uri())
    found = driver.execute_script(LOOK)
    logged = [entry["message"] for entry in driver.get_log("browser")]
    found += [f"logs {message}" for message in logged if not message.startswith("http")]
    shot.parent.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(shot))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Look at every page; return 1 if one is broken."""
    parser = argparse.ArgumentParser(description="Open every page of a site.")
    parser.add_argument("site", type=Path)
    parser.add_argument("screenshots", type=Path)
    parser.add_argument("pattern", nargs="?", default="**/*.html")
    chosen = parser.parse_args(arguments)
    pages = sorted(chosen.site.glob(chosen.pattern))
    if not pages:
        parser.error(f"site is {chosen.site}, expected a folder with pages: run `make site`.")
    broken = 0
    with chromium() as driver:
        for page in pages:
            name = page.relative_to(chosen.site).with_suffix("")
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    shot = chosen.screenshots / f"{name}-{width}-{scheme}.png"
                    for problem in look(driver, page, width, scheme, shot):
                        print(f"{name}, {width} pixels, {scheme}: {problem}")
                        broken += 1
    print(f"{len(pages)} pages, {broken} problems; screenshots in {chosen.screenshots}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
