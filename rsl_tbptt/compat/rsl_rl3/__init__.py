"""rsl_rl 3.1.2 as rsl_rl 5: its one ``policy`` seen as models, its storage and checkpoints."""
