"""Policies for robots: export, bundles, programs that run them, and checks of both."""
