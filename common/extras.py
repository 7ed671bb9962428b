"""Packages that only some installations have, and the extra that installs each."""

#: by extra
PACKAGES = {
    "torch": ["torch"],
    "learner": ["tensorboard", "zstandard"],
    "envserver": ["gymnasium", "ale_py"],
    "cli": ["rich", "psutil", "scipy"],
    "plot": ["matplotlib"],
    "video": ["av", "PIL"],
    "export": ["safetensors", "onnx", "onnxscript", "onnx_ir", "onnxruntime"],
    **{name: [name] for name in ("minatar", "minigrid", "pettingzoo", "envpool", "trackio", "wandb")},
}
EXTRAS = {package: extra for extra, packages in PACKAGES.items() for package in packages}


def how_to_install(error: ModuleNotFoundError) -> str:
    """A sentence with what is missing and how to install it.

    Raises:
      ModuleNotFoundError: `error` itself, if no extra installs the package: the installation is broken.
    """
    if error.name not in EXTRAS:
        raise error
    return f"{error.name} is not installed: pip install 'zerobeast[{EXTRAS[error.name]}]'"
