"""Algorithms: one folder each, with a config, an algorithm and a README, plus the code they share.

    protocol.py          the interface between an algorithm and the services
    factory.py           creates the algorithm that a run's settings name
    settings.py          settings that several algorithms share
    actor_critic.py      network, acting, and a three-term loss
    vtrace_loss.py       the loss of IMPALA and A2C
    q_network.py         the action-value network
    q_acting.py          acting by action values
    q_values.py          what an action value is: a number, or a distribution over returns
    q_learning.py        learning action values from a replay: DQN, C51, Rainbow
    replay_learning.py   learning from a replay, at its own pace
    returns.py           rewards, discounts, targets and advantages, the scale of returns
    gradient_descent.py  one optimiser step
    one_batch.py         learning on policy, from one batch at a time
    one_step.py          the same, with one optimiser step per batch
    exploration.py       how much each environment explores
    pace.py              samples per insert, for algorithms with a replay
    target.py            a network that follows another, by periodic copies or gradually
    dual.py              a Lagrange multiplier that keeps a quantity below a limit
    circular.py          learning from each batch more than once

A new algorithm is a folder with an `AlgorithmSpec` in its config, which an entry point in pyproject.toml names; one of
another package is the same: docs/examples/awr. Presets are found in the folder. No loop has to change.
"""
