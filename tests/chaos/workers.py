"""A run of two workers, and a check that all of it takes part."""

from tests.chaos.runs import TO_SEE_S
from zerobeast.tools.throwaway_run import ThrowawayRun

FUSED = (
    *("--local.placement", "fused", "--local.workers", "2", "--actor.env_groups", "1", "--env", "CartPole-v1"),
    *("--net.hidden_size", "8", "--learner.checkpoint_every_s", "0.5"),
)


def all_take_part(run: ThrowawayRun, workers: tuple[int, ...] = (0, 1)) -> None:
    """Wait until each of these workers has made more steps, with newer weights, and the learner has learned more."""

    def page(role: str, index: int) -> dict:
        return run.child(f"worker {index}").page(role)

    def counts() -> list[int]:
        return [int(page("actor", index).get("agent_steps", 0)) for index in workers] + [run.agent_steps()]

    def versions() -> list[int]:
        return [int(page("broker", index).get("policy_version", -1)) for index in workers]

    run.wait_for(lambda: min(counts()) > 0, "not all are there", TO_SEE_S)
    before, acted = counts(), versions()
    run.wait_for(lambda: all(a > b for a, b in zip(counts(), before, strict=True)), "not all go on", TO_SEE_S)
    run.wait_for(lambda: all(a != b for a, b in zip(versions(), acted, strict=True)), "no newer weights", TO_SEE_S)
