"""The worker: env-server, actor and broker in one process, which act without a message leaving it."""
