"""Settings of the site that `make site` builds from these pages."""

import os
import sys
from importlib import metadata
from pathlib import Path

from sphinx.ext.autodoc.mock import MockFinder, _MockObject

sys.path.insert(0, str(Path(__file__).parents[1]))

# Stand-ins for frameworks: the site needs neither torch nor a simulator and builds in seconds.
# They stay for the whole build, as autodoc would look for sources in the real ones.
sys.meta_path.insert(
    0,
    MockFinder(
        [
            "isaaclab",
            "isaaclab_rl",
            "jax",
            "mjlab",
            "mujoco_playground",
            "onnxruntime",
            "rsl_rl",
            "tensordict",
            "torch",
            "triton",
        ]
    ),
)
_MockObject.__or__ = _MockObject.__ror__ = lambda self, _: self  # Tensor | None
del _MockObject.__new__  # or signatures of subclasses would be its
_MockObject.__wrapped__ = None  # or typing would unwrap stand-ins without end

import isaaclab.utils  # noqa: E402

import rsl_tbptt.compat  # noqa: E402

isaaclab.utils.configclass = lambda cls: cls
rsl_tbptt.compat.rsl_rl_release = lambda: (5, 5, 1)

project = html_title = "rsl_tbptt"
release = metadata.version("rsl-tbptt")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "scripts.docs_site",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autoclass_content = "both"
autodoc_member_order = "bysource"
maximum_signature_line_length = 80

html_theme = "furo"
html_use_index = html_domain_indices = False
pygments_style = "default"
html_math_renderer = "mathml"
html_baseurl = os.environ.get("SITE_URL", "")
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_last_updated_fmt = "%Y-%m-%d"
html_copy_source = html_show_copyright = False
