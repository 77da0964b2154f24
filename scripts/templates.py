"""Fill report templates: the text is in the template, the measured values come from scripts."""

from pathlib import Path

import jinja2


def fill(template: Path, **values: object) -> str:
    """Fill a template.

    Args:
        template: The file.
        **values: Values by name; a missing name is an error.

    Returns:
        Markdown.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)
