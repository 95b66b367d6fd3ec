"""How many replicas each engine role runs now: the written count, or its scaler's as far as that may be followed.

A scaler's wish is held back in two cases, and never forgotten: it goes on standing in the scaler.
- A role is not made smaller in the middle of a rollout.
- The band of `spec.scaling.ratio` holds what would leave it. docs/adr/0008-scalers.md has the rule.
In both, a role runs a count between the one that it runs already and the one that it is asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

from disagg_operator.api.names import (
    API_VERSION,
    ENGINE_ROLES,
    SCALER_KIND,
    SCALER_SHORT_NAME,
    WORKLOADS,
    Component,
    child_name,
)
from disagg_operator.api.resource import DisaggregatedInference, Ratio
from disagg_operator.build.inputs import Counts
from disagg_operator.build.roles import derive_replicas, role_spec, spans_nodes
from disagg_operator.plan.ownership import is_ours
from disagg_operator.status.conditions import Limit
from disagg_operator.status.observation import observe_part
from disagg_operator.status.reasons import Reason

Manifest = dict[str, Any]
Children = dict[tuple[str, str], Manifest]


@dataclass(frozen=True)
class CountDecision:
    """The counts to run, the count that a new scaler of each name begins with, and what is held back."""

    counts: Counts
    seeds: dict[str, int]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class _Wish:
    """One role: what is wished, and what its workload runs by our own hand. 0 where another hand was there last."""

    wished: int
    present: int
    is_scaled: bool
    is_rolling: bool

    @property
    def permitted(self) -> int:
        """The wish, but nothing less than what runs while a rollout is under way."""
        return max(self.wished, self.present) if self.is_rolling else self.wished


def decide_counts(resource: DisaggregatedInference, there: Iterable[Manifest]) -> CountDecision:
    """Decide from the resource and its own live children."""
    children = {(child["kind"], child["metadata"]["name"]): child for child in there}
    seeds = {role: _derive_seed(resource, role, children) for role in ENGINE_ROLES}
    wishes = {role: _read_wish(resource, role, children, seeds[role]) for role in ENGINE_ROLES}
    permitted = Counts(*(wishes[role].permitted for role in ENGINE_ROLES))
    present = Counts(*(wishes[role].present for role in ENGINE_ROLES))
    scaled = frozenset(role for role in ENGINE_ROLES if wishes[role].is_scaled)
    ratio = resource.spec.scaling.ratio if resource.spec.scaling is not None else None
    counts = permitted if ratio is None else hold_in_band(permitted, present, ratio, scaled)
    limits = [_find_limit(resource, role, wishes[role], counts, ratio) for role in ENGINE_ROLES if role in scaled]
    return CountDecision(
        counts,
        {child_name(resource.metadata.name, role): seeds[role] for role in ENGINE_ROLES if role in scaled},
        tuple(limit for limit in limits if limit is not None),
    )


def list_count_holders(resource: DisaggregatedInference) -> list[Manifest]:
    """References to the objects that hold the counts of scaled roles: found by name, should their labels be gone."""
    holders = []
    for role in ENGINE_ROLES:
        wish = role_spec(resource.spec, role)
        if wish.scaling is not None:
            workload = "LeaderWorkerSet" if spans_nodes(wish) else "Deployment"
            kinds = {SCALER_KIND: API_VERSION, workload: WORKLOADS[workload]}
            name = child_name(resource.metadata.name, role)
            metadata = {"name": name, "namespace": resource.metadata.namespace}
            holders += [{"apiVersion": version, "kind": kind, "metadata": metadata} for kind, version in kinds.items()]
    return holders


def hold_in_band(wished: Counts, present: Counts, ratio: Ratio, scaled: frozenset[Component]) -> Counts:
    """The wished counts, held where the band of prefill to decode ends. A wish of zero is free.

    Who would shrink out of the band stays as large as the band needs, at most as large as present. Then who would grow
    out of it stays as small as the band needs, never smaller than present. Only `scaled` roles are held. So what runs
    outside the band, as when the band is new, stays until somebody scales it, and may go nowhere but towards it.
    """
    prefill, decode = wished.prefill, wished.decode
    if prefill == 0 or decode == 0:
        return wished
    least, most = _exact(ratio.min), _exact(ratio.max)
    if most is not None and prefill > most * decode:
        if Component.DECODE in scaled and decode < present.decode:
            decode = min(present.decode, ceil(prefill / most))
        if Component.PREFILL in scaled and prefill > most * decode:
            prefill = max(1, floor(most * decode), min(prefill, present.prefill))
    elif least is not None and prefill < least * decode:
        if Component.PREFILL in scaled and prefill < present.prefill:
            prefill = min(present.prefill, ceil(least * decode))
        if Component.DECODE in scaled and prefill < least * decode:
            decode = max(1, floor(prefill / least), min(decode, present.decode))
    return Counts(prefill, decode)


def _exact(bound: float | None) -> Fraction | None:
    """The number as it was written: 0.1 is a tenth."""
    return None if bound is None else Fraction(str(bound))


def _derive_seed(resource: DisaggregatedInference, role: Component, children: Children) -> int:
    """What a new scaler begins with: the present count, so that no replica is lost. Zero stays only where it is legal.

    An autoscaler does nothing at zero, so a role would sleep for ever without `minReplicas: 0`.
    """
    wish, live = role_spec(resource.spec, role), _workload_of(resource, role, children)
    if live is None:
        return derive_replicas(wish)
    least = 0 if wish.scaling is not None and wish.scaling.min_replicas == 0 else 1
    return max(least, int(live["spec"].get("replicas", 1)))


def _read_wish(resource: DisaggregatedInference, role: Component, children: Children, seed: int) -> _Wish:
    wish, live = role_spec(resource.spec, role), _workload_of(resource, role, children)
    has_own_count = live is not None and is_ours(live, "spec", "replicas")
    present = int(live["spec"]["replicas"]) if live is not None and has_own_count else 0
    if wish.scaling is None:
        return _Wish(derive_replicas(wish), present, is_scaled=False, is_rolling=False)
    scaler = children.get((SCALER_KIND, child_name(resource.metadata.name, role)), {})
    wished = int(scaler.get("spec", {}).get("replicas", seed))
    part = observe_part(role, None, live, []) if live is not None else None
    # A rollout that the user has paused may stand for days; its Deployment scales both revisions in proportion.
    is_rolling = part is not None and part.is_rolling and not resource.spec.paused
    return _Wish(wished, present, is_scaled=True, is_rolling=is_rolling)


def _workload_of(resource: DisaggregatedInference, role: Component, children: Children) -> Manifest | None:
    name = child_name(resource.metadata.name, role)
    return next((children[kind, name] for kind in WORKLOADS if (kind, name) in children), None)


def _find_limit(
    resource: DisaggregatedInference, role: Component, wish: _Wish, counts: Counts, ratio: Ratio | None
) -> Limit | None:
    """Why a scaled role does not run what its scaler says, or will not leave zero by itself."""
    target, count = f"{SCALER_SHORT_NAME}/{child_name(resource.metadata.name, role)}", counts.of(role)
    held = f"{target} asks for {wish.wished} and {count} are run: "
    if ratio is not None and count != wish.permitted:
        band = ", ".join(f"{end} {bound:g}" for end, bound in (("min", ratio.min), ("max", ratio.max)) if bound)
        return Limit(Reason.RATIO_GUARD, f"{held}prefill to decode has to stay within spec.scaling.ratio ({band})")
    if count != wish.wished:
        return Limit(Reason.ROLLOUT_IN_PROGRESS, f"{held}a role is not made smaller in the middle of a rollout")
    scaling = role_spec(resource.spec, role).scaling
    if count == 0 and scaling is not None and scaling.metrics and scaling.min_replicas > 0:
        return Limit(
            Reason.CANNOT_WAKE,
            f"{target} stands at 0, where an autoscaler with minReplicas {scaling.min_replicas} does nothing: scale it "
            f"to 1, or set spec.{role}.scaling.minReplicas to 0 with a metric of type External or Object",
        )
    return None
