"""Packages that only some installations have, and the extra that installs each."""

EXTRAS = {
    "torch": "torch",
    "tensorboard": "learner",
    "zstandard": "learner",
    "gymnasium": "envserver",
    "ale_py": "envserver",
    "minatar": "minatar",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
    "envpool": "envpool",
    "rich": "cli",
    "psutil": "cli",
    "matplotlib": "plot",
    "av": "video",
    "PIL": "video",
    "scipy": "cli",
    "safetensors": "export",
    "onnx": "export",
    "onnxscript": "export",
    "onnx_ir": "export",
    "onnxruntime": "export",
    "trackio": "trackio",
    "wandb": "wandb",
}


def how_to_install(error: ModuleNotFoundError) -> str:
    """A sentence with what is missing and how to install it.

    Raises:
      ModuleNotFoundError: `error` itself, if no extra installs the package: the installation is broken.
    """
    if error.name not in EXTRAS:
        raise error
    return f"{error.name} is not installed: pip install 'zerobeast[{EXTRAS[error.name]}]'"
