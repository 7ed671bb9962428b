"""The RL library: algorithms, networks, replay and acting, in torch. It knows no socket; services run it."""
