"""Rollouts as an algorithm sees them: rows, batches, and the pace at which they are used."""
