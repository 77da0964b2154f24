"""Texts of a run's configs that name code: a run's folder may come from anybody.

rsl_rl imports what a text names: ``module:object.attribute``, ``module.object``, or a simple name
of its own. So the commands follow an allow rule: a text may name a class of rsl_rl or of this
package, or it has no form that anything could import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

PACKAGES = ("rsl_rl", "rsl_tbptt")
"""Packages whose classes a file may name; others need the user's trust."""
TRAINED_WITH = ("rsl_rl", "rsl_tbptt.algorithms", "rsl_tbptt.models", "rsl_tbptt.runners")
"""Where classes that a training's config names are defined."""
CLASS = "class_name"
"""Key of such names. rsl_rl looks for a simple name, too, and finds more than classes."""

WORDS = re.compile(r"(?!-)(?:[\w ,+=@~'()-]*|\.{1,2}(?=/))(?:/[\w ,+=@~'()./-]*)?")
"""Texts that nothing imports, as no dot or colon comes before the first slash. A command line takes
them as they are: a minus in front starts an option, a dollar is a reference in Hydra."""


def is_allowed(key: Any, text: str) -> bool:
    """Return whether a text of a config imports nothing but a class to train with.

    Args:
        key: The last key of its place in the config.
        text: The text.
    """
    return (key != CLASS and WORDS.fullmatch(text) is not None) or names_known_class(text)


def names_known_class(name: str) -> bool:
    """Return whether a name is that of a class in :data:`TRAINED_WITH`, or simple and nowhere.

    The name is resolved only if its module belongs to :data:`PACKAGES`, and the class has to be
    defined there, too: ``rsl_rl.utils:torch.hub.load`` is not.
    """
    path = name.replace(":", ".")
    if not is_dotted(path) or ("." in path and not is_within(path, PACKAGES)):
        return False
    from rsl_tbptt.compat.versions import resolve_callable  # torch, which platforms do not need

    try:
        found: Any = resolve_callable(name)
    except (ImportError, AttributeError, TypeError, ValueError):
        return "." not in path
    return isinstance(found, type) and is_within(f"{found.__module__}.", TRAINED_WITH)


def is_dotted(path: str) -> bool:
    """Return whether a text is identifiers with dots between them."""
    return all(word.isidentifier() for word in path.split("."))


def is_within(path: str, packages: Sequence[str]) -> bool:
    """Return whether a dotted path leads into one of some packages or modules."""
    return any(path.startswith(f"{package}.") for package in packages)
