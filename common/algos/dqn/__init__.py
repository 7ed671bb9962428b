"""DQN (Mnih et al. 2015) and what was added to it: double, dueling, prioritised, over n steps."""
