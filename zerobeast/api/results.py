"""What runs have come to, as the commands of the same names show it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerobeast.api.policies import find_policy, open_policy
from zerobeast.common.config.request import Request
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.links_outside import refuse_links_outside
from zerobeast.common.plugins import refuse_imported
from zerobeast.results.data_frame import to_data_frame
from zerobeast.results.reports import Names, compare_groups, ignore_remark, select_runs

if TYPE_CHECKING:
    from zerobeast.playing.policy import Policy
    from zerobeast.playing.video import Recording, Watch


def compare(
    *runs: Names,
    of: str | None = None,
    env: str = "",
    by_env: bool = False,
    each: bool = False,
    at: int | None = None,
    threshold: float | None = None,
    root: Names | None = None,
) -> Any:
    """Compare runs, as `beast compare` does: a row for all that differ in their seed alone.

    Args:
      runs, of, env, by_env, root: as for `zerobeast.plot`.
      each: a row for each run.
      at: values after so many agent steps; None: the last ones.
      threshold: also how many reached this, and when.

    Returns:
      a pandas.DataFrame if pandas is installed, or else a list of dicts: `group`, `n`, `mean`, `mean_low`, `mean_high`,
      `iqm`, ..., with 95 % bootstrap intervals.

    Raises:
      ConfigError: there is no such run, or there is nothing to compare.

    Examples:
      >>> import zerobeast as zb
      >>> rows = zb.compare("cart", of="training")
      >>> len(rows)
      1
    """
    found, of = select_runs(runs, root, of, env, ignore_remark)
    return to_data_frame(
        compare_groups(found, of, env=env, by_env=by_env, each=each, at=at, threshold=threshold, say=ignore_remark)
    )


def record(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    episodes: int = 1,
    deterministic: bool | None = None,  # noqa: FBT001 - as for `evaluate`
    **settings: Any,
) -> Path:
    """Record episodes of the policy of a run as a video, as `beast record` does.

    Args:
      run: as for `zerobeast.load`: "x", "x:best" or "x:50000".
      out: an .mp4, or a .gif of at most 2 MB; None: in the folder of the run.
      episodes: of each of its environments.
      deterministic: as for `zerobeast.evaluate`.
      settings: as for `zerobeast.load`, such as `evaluate={"seed": 3, "max_steps": 500, "levels": "rare"}`.

    Returns:
      The video.

    Raises:
      BeastError: the policy cannot be loaded, or the environment does not draw itself.

    Examples:
      >>> import zerobeast as zb
      >>> zb.record("cart", "cart.gif").name
      'cart.gif'
    """
    refuse_imported("records a policy")
    if not isinstance(out, str | os.PathLike | None):
        raise ConfigError(argument="out", value=out, expected="a file: .mp4 or .gif")
    actions = None if deterministic is None else "greedy" if deterministic else "sampled"
    request = Request.of_values({**settings, "evaluate.actions": actions}, os.environ)
    policy = open_policy(find_policy(run, request.value("root")), request)
    return record_policy(policy, out, episodes, lambda _episode, _steps: None)[0]


def record_policy(
    policy: Policy, out: str | os.PathLike[str] | None, episodes: int, watch: Watch
) -> tuple[Path, Recording]:
    """As `record`, of a policy that is loaded, in the environments of its settings."""
    own = evaluations.video_path(policy.agent_steps, policy.config.evaluate.actions)
    if out:
        path = Path(out).expanduser()
    elif folder := run_files.saver_of(policy.checkpoint):
        refuse_links_outside(folder)
        path = folder / own
    else:
        path = policy.checkpoint.with_name(f"{policy.checkpoint.stem}-{own.name}")
    from zerobeast.playing.video import record_video as play_and_record

    return path, play_and_record(policy, policy.config, path, episodes=episodes, watch=watch)
