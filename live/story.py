"""What happens to a request, and the record that this becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..envs.trace import SLO_CLASSES
from .request import Request, Status
from .router import Decision, LiveRouter


@dataclass(slots=True)
class Story:
    """What has happened to a request so far; becomes its record."""

    request: Request
    status: Status = "failed"
    http_status: int = 0
    error: str | None = None
    attempts: int = 0
    decision: Decision | None = None
    prefill: str | None = None
    decode: str | None = None
    predicted: int = -1
    prefill_start: int = -1
    prefill_end: int = -1
    decode_start: int = -1
    first_token: int = -1
    last_token: int = -1
    end: int = -1
    max_stall: int = -1
    generated: int = -1
    prefill_again: int = 0
    faults: list[str] = field(default_factory=list)
    shadow: list[str] | None = None


def record(story: Story, router: LiveRouter, keep_prompt: bool = False) -> dict[str, Any]:
    """A request's record: times in ps of the router's clock, −1 where it did not come so far or nobody could see."""
    request, decision = story.request, story.decision
    ttft, tpot = router.targets_of(request.slo, request.ttft_target_s, request.tpot_target_s)
    kept: dict[str, Any] = {}
    if keep_prompt:
        kept["prompt_content"] = request.body.get("messages" if request.chat else "prompt")
    return {
        "id": request.id,
        "status": story.status,
        "http_status": story.http_status,
        "error": story.error,
        "arrival": request.arrival,
        "prefill_start": story.prefill_start,
        "prefill_end": story.prefill_end,
        "decode_start": story.decode_start,
        "first_token": story.first_token,
        "last_token": story.last_token,
        "end": story.end,
        "max_stall": story.max_stall,
        "prompt": request.prompt,
        "predicted": story.predicted,
        "generated": story.generated,
        "slo": SLO_CLASSES[request.slo],
        "ttft_target": ttft,
        "tpot_target": tpot,
        "streamed": request.stream,
        "prefill": story.prefill,
        "decode": story.decode,
        "attempts": story.attempts,
        "faults": story.faults,
        "policy": decision.policy if decision else None,
        "probability": decision.probability if decision else None,
        "fallback": decision.fallback_reason if decision else None,
        "shadow": story.shadow,
        "decision_s": decision.seconds if decision else None,
        **(_seen(decision) if decision else {}),
        **kept,
    }


def _seen(decision: Decision) -> dict[str, Any]:
    """What the router saw of the last pair that it chose (`envs/records.py`, DECISION); times in ps of its clock."""
    admission = decision.admission
    return {
        "decided": admission.now,
        "polled": admission.poll_time,
        "seen_prefill": admission.prefill[decision.prefill].tolist(),
        "seen_decode": admission.decode[decision.decode].tolist(),
    }
