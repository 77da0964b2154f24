"""PPO with recurrent models."""
