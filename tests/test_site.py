"""The site that ``make site`` builds: links, short paths, and Markdown next to every page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[1]


def build(docs, site):
    """Build as ``make site`` does."""
    options = ["--fresh-env", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, "-d", f"{site}-doctrees", docs, site]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    built = build(ROOT / "docs", folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_every_page_has_markdown_next_to_it_and_is_in_the_list_for_programs(site):
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert Path("reference/api.md") in pages
    assert {page.relative_to(site) for page in site.rglob("*.md")} == pages
    assert all((site / page).with_suffix(".html").is_file() for page in pages)
    listing = (site / "llms.txt").read_text()
    assert listing.startswith("# rsl_tbptt\n\n> rsl_tbptt trains robot policies with memory")
    folders = {page for page in pages if page.parent != Path()}
    assert {Path(link) for link in re.findall(r"^- \[.*?\]\((.+?)\)", listing, re.M)} >= folders


@pytest.mark.slow
def test_markdown_and_page_of_the_api_have_docstrings(site):
    for suffix in (".md", ".html"):
        page = (site / "reference" / "api").with_suffix(suffix).read_text()
        assert "one window, clearing an environment" in page  # of recurrent_scan
        assert "One robot" in page  # of Policy
        assert "autofunction" not in page


BROKEN = """# Title

[page](gone.md), [heading](#gone_heading), [file](../gone.py), ![image](gone.svg)
"""


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path):
    docs = tmp_path / "docs"
    (docs / "_static").mkdir(parents=True)
    (docs / "_static" / "site.css").touch()
    (docs / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text())
    (docs / "index.md").write_text(BROKEN)
    built = build(docs, tmp_path / "site")
    assert built.returncode == 1
    for target in ("gone.md", "gone_heading", "gone.py", "gone.svg"):
        assert target in built.stderr, built.stderr
