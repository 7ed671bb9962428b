"""Action values: the network, acting and learning that DQN and its descendants share."""
