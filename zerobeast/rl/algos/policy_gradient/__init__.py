"""Actor-critics: the network, acting, and the losses that they share."""
