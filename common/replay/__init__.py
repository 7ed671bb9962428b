"""Replay: rollouts in a file of the run folder, and samples of them to learn from again and again."""
