"""One folder per algorithm, the same files in each: config, network, policy, loss, README."""
