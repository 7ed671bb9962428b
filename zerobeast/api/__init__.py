"""What a script or a notebook calls.

>>> import zerobeast as zb
>>> run = zb.train("CartPole-v1", total_steps=1000, root=root, net={"hidden_size": 16}, progress=False)
>>> run.status().agent_steps, len(run.episodes()) > 0
(1000, True)
>>> policy = run.policy()
>>> obs = [[0.0, 0.0, 0.0, 0.0]] * 2  # of two environments
>>> actions, state = policy.predict(obs)
>>> actions, state = policy.predict(obs, state, episode_start=[False, True])
>>> actions.shape, policy.value(obs).shape, policy.distribution(obs).entropy().shape
((2,), torch.Size([2]), torch.Size([2]))
>>> played = zb.evaluate(policy, episodes=3)
>>> len(played.returns), played.mean == sum(played.returns) / 3
(3, True)
>>> policy.predict([0.0])
Traceback (most recent call last):
zerobeast.common.errors.ConfigError: obs has shape [1], expected [4], or [N, 4]
"""
