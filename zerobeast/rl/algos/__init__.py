"""Algorithms: one folder each, with settings, a README and what is its own; and what families of them share.

    policy_gradient/     IMPALA, A2C, PPO, V-MPO, IMPACT: network, acting, a three-term loss
    value/               DQN, C51, Rainbow, R2D2: network, acting, what an action value is, learning from a replay
    control/             DDPG, TD3, SAC: acting and learning of Q(s, a) for continuous actions

A new algorithm is a folder with an `AlgorithmSpec` in its config, which an entry point in pyproject.toml names; one of
another package is the same: docs/examples/awr. Presets are found in the folder. No loop has to change.
"""
