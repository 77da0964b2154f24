"""What the checkout offers beside the package: ``python -m scripts.<name>`` from its root."""
