"""APPO on CartPole-v1 with Sample Factory, then its policy played greedily."""

import sys

import gymnasium
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.enjoy import enjoy
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

COMMON = ["--env=CartPole-v1", "--experiment=cartpole-sf", "--device=cpu"]
TRAINING = """
    --seed=1 --algo=APPO --use_rnn=False --num_workers=2 --num_envs_per_worker=8 --rollout=32 --batch_size=512
    --num_epochs=4 --with_vtrace=False --gamma=0.99 --learning_rate=0.0005 --exploration_loss_coeff=0.01
    --reward_scale=0.1 --train_for_env_steps=1000000
"""
PLAYING = ["--no_render", "--eval_deterministic=True", "--max_num_episodes=20", "--load_checkpoint_kind=latest"]


def make_env(_name, _cfg, _env_config, render_mode=None):
    return gymnasium.make("CartPole-v1", render_mode=render_mode)


def parse(flags, *, evaluation):
    return parse_full_cfg(parse_sf_args([*COMMON, *flags], evaluation=evaluation)[0], [*COMMON, *flags])


if __name__ == "__main__":
    register_env("CartPole-v1", make_env)
    if run_rl(parse(TRAINING.split(), evaluation=False)):
        sys.exit("training failed")
    _, mean = enjoy(parse(PLAYING, evaluation=True))
    print(f"mean greedy return {mean:.1f}")
