"""The same as train_with_rllib.py, with the same settings under ZeroBeast's names."""

import zerobeast as zb

if __name__ == "__main__":
    run = zb.train(
        "CartPole-v1",
        "ppo",
        total_steps=200_000,
        name="cartpole-like-rllib",
        seed=1,
        actor={"env_groups": 1, "envs_per_group": 16},
        learner={"unroll_length": 250, "batch_size": 16, "device": "cpu"},
        net={"hidden_sizes": "32"},
        ppo={
            "minibatches": 31,
            "epochs": 6,
            "discount": 0.99,
            "trace_decay": 0.95,
            "entropy_cost": 0.0,
            "baseline_cost": 0.01,
            "max_grad_norm": 1000.0,
            "learning_rate": 3e-4,
            "schedule": "constant",
            "clip": 0.3,
            "vtrace": False,
            "normalize_returns": False,
        },
    )
    print(f"mean greedy return {zb.evaluate(run, episodes=20).mean:.1f}")
