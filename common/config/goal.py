"""Whether a run has reached the return at which it ends."""

from zerobeast.common.files import evaluations
from zerobeast.common.settings import Run


def reached(config: Run, mean_return: float | None) -> bool:
    """Whether `stop_at_return` is reached: by any evaluation, if there are any to be, or else by `mean_return`.

    Args:
      config: of the run.
      mean_return: of the last 100 episodes; None if there were not as many.
    """
    if config.stop_at_return is None:
        return False
    if config.evaluates:
        mean_return = max(evaluations.scores(evaluations.read(config.folder)).values(), default=None)
    return mean_return is not None and mean_return >= config.stop_at_return
