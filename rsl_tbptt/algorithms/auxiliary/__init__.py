"""Auxiliary heads: networks beside a model that predict targets from its latent."""
