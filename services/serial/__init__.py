"""The worker: env-server, actor and broker in one process, so that acting sends no message out of it."""
