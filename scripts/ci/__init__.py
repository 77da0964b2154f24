"""What builds environments, runs all tests, and counts: called by the Makefile and ``.ci/run``."""
