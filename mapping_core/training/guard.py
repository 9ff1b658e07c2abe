"""The guard: a proposed jump is kept only if probes say that it lowers the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve
from torch import Tensor

from mapping_core.errors import PluginError
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.phase_policy import JumpOutcome, Verdict
from mapping_core.training.agreement import summed
from mapping_core.training.ledgers import Backoff, ComputeLedger, LossLedger, ledger_state, load_ledgers
from mapping_core.training.probes import ProbeBatches, Prober, compare
from mapping_core.training.trajectory import Trajectory

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.config import GuardConfig

Judged = tuple[JumpOutcome, Proposal | None]


class Guard:
    """Judges proposals by paired differences of losses: on identical samples, under identical noise.

    One probe chooses among the horizons, another one accepts: a proposal that was chosen for its luck on the first
    has no luck on the second. The losses are compared around the average of what trains, since
    around a single position a jump gains by removing noise alone, which lasts for no step.

    Certain is what probes may cost, and that a rejection leaves everything as it was. That an accepted jump
    does not raise the loss holds as surely as `deviations` says, over the data that is probed.
    """

    def __init__(
        self, config: GuardConfig, *, fabric: Fabric, prober: Prober, source: ProbeBatches, batch_size: int | None
    ) -> None:
        self.config = config
        self._fabric, self._prober, self._source = fabric, prober, source
        #: Batches a probe: of `samples` samples where batches have a size, else as if they had 32.
        self.batches = max(1, math.ceil(config.samples / ((batch_size or 32) * fabric.world_size)))
        self.compute = ComputeLedger(share=config.share)
        self.risk = LossLedger(most=config.risk)
        self.backoff = Backoff(wait=config.wait)
        self.attempts = 0

    def may_try(self, step: int, horizons: int) -> Verdict | None:
        """Why nothing may be tried now, None if it may: then the compute of the probes is reserved."""
        if self.backoff.waits(step):
            return Verdict.WAITING
        if not self.compute.reserve(self._cost(horizons)):
            return Verdict.NO_COMPUTE
        return None

    def judge(
        self, proposals: Sequence[Proposal], *, horizons: int, step: int, trajectory: Trajectory, average: Tensor
    ) -> Judged:
        """The outcome, and the proposal that is kept; what trains is where it was, but for its memory.

        `horizons` is what was reserved for. Draws random numbers and leaves buffers as they were: the caller
        puts the generators back.
        """
        sound = [each for each in proposals if _is_sound(each, trajectory.size)]
        count = int(summed(self._fabric, [float(len(sound))])[0]) // self._fabric.world_size
        if not proposals or count != len(sound) or not sound:
            self.compute.refund(self._cost(horizons))
            if not proposals:
                return JumpOutcome(verdict=Verdict.NO_PROPOSAL), None
            self.backoff.reject(step)
            return JumpOutcome(verdict=Verdict.NON_FINITE), None
        self.compute.refund(self._cost(horizons) - self._cost(len(sound)))
        here = trajectory.read()
        try:
            outcome, kept = self._probed(sound, trajectory, average)
        finally:
            trajectory.write(here)
        if kept is not None:
            self.backoff.accept()
        else:
            self.backoff.reject(step)
        return outcome, kept

    def undo(self, step: int) -> None:
        """Note that an accepted jump was undone."""
        self.backoff.reject(step)

    def _cost(self, proposals: int) -> int:
        choosing = proposals + 1 if proposals > 1 else 0
        return self.batches * (choosing + 2)

    def _probed(self, proposals: Sequence[Proposal], trajectory: Trajectory, average: Tensor) -> Judged:
        places = [_to(trajectory, average), *(_to(trajectory, average + each.delta) for each in proposals)]
        chosen = 0
        if len(proposals) > 1:
            before, *after = self._prober.losses(self._draw(), places)
            means = [compare(self._fabric, before, each).difference for each in after]
            finite = [index for index, mean in enumerate(means) if math.isfinite(mean)]
            if not finite:
                return JumpOutcome(verdict=Verdict.NON_FINITE), None
            chosen = min(finite, key=lambda index: means[index])
        proposal = proposals[chosen]
        first, second = self._prober.losses(self._draw(), [places[0], places[chosen + 1]])
        found = compare(self._fabric, first, second)
        bound = found.difference + self.config.deviations * found.error
        outcome = JumpOutcome(
            verdict=Verdict.ACCEPTED,
            horizon=proposal.horizon,
            before=found.before,
            after=found.after,
            bound=bound,
            forecast=proposal.forecast,
        )
        if not math.isfinite(bound):
            return evolve(outcome, verdict=Verdict.NON_FINITE), None
        if bound > self.config.tau or not self.risk.accept(bound):
            return evolve(outcome, verdict=Verdict.REJECTED), None
        return outcome, proposal

    def _draw(self) -> list[Any]:
        self.attempts += 1
        return self._source.draw(self.batches, self.attempts)

    def state_dict(self) -> dict[str, Any]:
        """The ledgers, and which samples come next."""
        return {"attempts": self.attempts, "ledgers": ledger_state(self.compute, self.risk, self.backoff)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.attempts = state["attempts"]
        load_ledgers(state["ledgers"], self.compute, self.risk, self.backoff)


def _to(trajectory: Trajectory, place: Tensor) -> Callable[[], None]:
    return lambda: trajectory.write(place)


def _is_sound(proposal: Proposal, size: int) -> bool:
    """Whether a proposal is finite and goes anywhere; raises `PluginError` for one of another size."""
    if tuple(proposal.delta.shape) != (size,):
        raise PluginError(
            f"a dynamics model proposed a displacement of shape {list(proposal.delta.shape)} for {size} trained "
            "numbers: delta is [size], as what it observes"
        )
    return bool(proposal.delta.isfinite().all()) and bool(proposal.delta.any())
