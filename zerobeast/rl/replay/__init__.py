"""Replay: rollouts in a file in the run folder, and samples of them to learn from again and again."""
