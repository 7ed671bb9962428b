"""The same as train_with_sb3.py, with the same settings under ZeroBeast's names."""

import zerobeast as zb

if __name__ == "__main__":  # services are other processes, which import this file if it defines the environment
    run = zb.train(
        "CartPole-v1",
        "ppo",
        total_steps=100_000,
        name="cartpole-like-sb3",
        seed=1,
        actor={"env_groups": 1, "envs_per_group": 8},
        learner={"unroll_length": 32, "batch_size": 8, "device": "cpu"},
        ppo={
            "minibatches": 1,
            "epochs": 20,
            "discount": 0.98,
            "trace_decay": 0.8,
            "entropy_cost": 0.0,
            "learning_rate": 1e-3,
            "schedule": "linear",
            "clip": "linear 0.2 0.001",
            "vtrace": False,
            "normalize_returns": False,
        },
    )
    policy = zb.load("cartpole-like-sb3")
    print(f"mean greedy return {zb.evaluate(policy, episodes=20).mean:.1f}")
