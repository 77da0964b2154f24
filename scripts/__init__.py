"""Scripts of the checkout that are not in the package: ``python -m scripts.<name>`` at its root."""
