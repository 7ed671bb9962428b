"""The same as train_with_cleanrl.py, with the script's default settings under ZeroBeast's names."""

import zerobeast as zb

if __name__ == "__main__":
    run = zb.train(
        "CartPole-v1",
        "ppo",
        total_steps=500_000,
        name="cartpole-like-cleanrl",
        seed=1,
        actor={"env_groups": 1, "envs_per_group": 4},
        learner={"unroll_length": 128, "batch_size": 4, "device": "cpu"},
        ppo={
            "minibatches": 4,
            "epochs": 4,
            "discount": 0.99,
            "trace_decay": 0.95,
            "entropy_cost": 0.01,
            "baseline_cost": 0.5,
            "learning_rate": 2.5e-4,
            "schedule": "linear",
            "clip": 0.2,
            "value_clip": 0.2,
            "max_grad_norm": 0.5,
            "vtrace": False,
            "normalize_returns": False,
        },
    )
    print(f"mean greedy return {zb.evaluate(run, episodes=20).mean:.1f}")
