"""Two Deployments as Kubernetes' controller rolls them, in numbers: what the planner of rollouts is tried against.

The controller acts at once on whatever it may do, before the planner looks again. That is the planner's worst case.
"""

from dataclasses import dataclass, field, replace

from disagg_operator.api.names import ENGINE_ROLES, Component
from disagg_operator.plan.rollout import Progress, plan_holds


@dataclass(frozen=True)
class Role:
    """Pods of one role in a rollout: old ones that serve, new ones on their way, new ones that are ready."""

    wished: int
    surge: int = 1
    unavailable: int = 0
    old: int = -1
    starting: int = 0
    ready: int = 0
    broken: bool = False
    """New pods never become ready."""

    @property
    def pods(self) -> int:
        return self.old + self.starting + self.ready

    @property
    def serving(self) -> int:
        return self.old + self.ready

    @property
    def progress(self) -> Progress:
        return Progress(self.wished, self.starting + self.ready, self.ready, self.old)

    @property
    def is_done(self) -> bool:
        return (self.old, self.starting, self.ready) == (0, 0, self.wished)

    def roll(self) -> "Role":
        """What the controller does until it has to wait for a pod."""
        role = self
        while True:
            room = role.wished + role.surge - role.pods
            more = min(max(0, room), role.wished - role.starting - role.ready)
            spare = min(role.old, max(0, role.serving - (role.wished - role.unavailable)))
            if not more and not spare:
                return role
            role = replace(role, starting=role.starting + more, old=role.old - spare)

    def become_ready(self) -> "Role":
        return replace(self, starting=self.starting - 1, ready=self.ready + 1)


@dataclass
class Fleet:
    """Both roles, from the moment on that KV has changed."""

    roles: dict[Component, Role]
    steps: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, prefill: Role, decode: Role) -> "Fleet":
        pair = zip(ENGINE_ROLES, (prefill, decode), strict=True)
        return cls({name: replace(role, old=role.wished if role.old < 0 else role.old) for name, role in pair})

    def settle(self) -> None:
        """Planner and controllers take turns until nothing moves but by a pod that becomes ready."""
        while True:
            held = plan_holds({name: role.progress for name, role in self.roles.items()})
            moved = {name: role if name in held else role.roll() for name, role in self.roles.items()}
            if moved == self.roles:
                self.steps.append(" ".join(self._show(name, held) for name in ENGINE_ROLES))
                return
            self.roles = moved

    def _show(self, name: Component, held: frozenset[Component]) -> str:
        role = self.roles[name]
        mark = "*" if name in held else ""
        return f"{role.old}/{role.starting}/{role.ready}{mark}"

    def can_become_ready(self) -> list[Component]:
        return [name for name, role in self.roles.items() if role.starting and not role.broken]

    def become_ready(self, name: Component) -> None:
        """One new pod of a role is ready. The controllers were not told to wait yet, so the role goes on at once."""
        held = plan_holds({each: role.progress for each, role in self.roles.items()})
        role = self.roles[name].become_ready()
        self.roles[name] = role if name in held else role.roll()

    @property
    def is_done(self) -> bool:
        return all(role.is_done for role in self.roles.values())
