"""The RL library: algorithms, networks, replay and acting, in torch. It has no sockets; services run it."""
