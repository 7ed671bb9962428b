"""Algorithms: one folder each, with a config, an algorithm and a README in it, and what they share.

    protocol.py          what services ask of an algorithm
    registry.py          which algorithms there are, and their sections of the settings
    factory.py           the algorithm that a run's settings name
    settings.py          settings that several have
    actor_critic.py      network, acting, and a loss of three terms
    vtrace_loss.py       the loss of IMPALA and A2C
    q_network.py         the network of values of actions
    q_acting.py          acting by them
    q_values.py          what such a value is: a number, or a distribution over returns
    q_learning.py        learning them from a replay: DQN, C51, Rainbow
    replay_learning.py   learning from a replay, at a pace of its own
    returns.py           rewards, discounts, targets and advantages, the scale of returns
    gradient_descent.py  one step of the optimiser
    one_batch.py         learning on policy, from one batch at a time
    one_step.py          the same with one such step per batch
    exploration.py       how much each environment explores
    pace.py              how many samples are learned from for each that was inserted, of algorithms with a replay
    target.py            a network that follows another, in leaps or bit by bit
    dual.py              a multiplier that holds something below a limit
    circular.py          learning from each batch more than once

A new algorithm is a folder, and its import and its section in registry.py. Presets are found in the folder. No loop
changes. docs/examples/awr is such a folder.
"""
