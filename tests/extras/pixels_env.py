"""A robot of MuJoCo's seen as a picture, for one who starts the run with MUJOCO_GL."""

import gymnasium
from gymnasium.wrappers import AddRenderObservation


def cheetah() -> gymnasium.Env:
    made = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=84, height=84)
    return AddRenderObservation(made)
