"""Build environments, check the site, and count: called by the Makefile and ``.ci/run``."""
