"""The same as train_with_sample_factory.py: asynchronous PPO, with the same settings under ZeroBeast's names."""

import zerobeast as zb

if __name__ == "__main__":
    run = zb.train(
        "CartPole-v1",
        "ppo",
        total_steps=1_000_000,
        name="cartpole-like-sample-factory",
        seed=1,
        actor={"env_groups": 2, "envs_per_group": 8, "collect_ahead": True},
        learner={"unroll_length": 32, "batch_size": 16, "device": "cpu"},
        ppo={
            "minibatches": 1,
            "epochs": 4,
            "discount": 0.99,
            "learning_rate": 5e-4,
            "schedule": "constant",
            "entropy_cost": 0.01,
            "reward_scale": 0.1,
            "clip": 0.1,
            "normalize_returns": False,
        },
    )
    print(f"mean greedy return {zb.evaluate(run, episodes=20).mean:.1f}")
