"""DQN (Mnih et al. 2015) and its extensions: double, dueling, prioritised and n-step learning."""
