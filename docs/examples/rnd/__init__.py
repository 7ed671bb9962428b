"""An intrinsic bonus for what is new, added to PPO: random network distillation."""
