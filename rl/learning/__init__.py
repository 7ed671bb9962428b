"""What kinds of algorithms share when they learn: targets, the optimiser step, and when a batch is learned from."""
