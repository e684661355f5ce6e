"""Replicas on Kubernetes: a group is a Deployment, a replica one of its pods.

Deployments are the operator's (deploy/kubernetes): here they are found by their labels and scaled,
and Kubernetes does the rest. A pod that is to go leaves its Services first, so that the proxy sends
it nothing more, sleeps in its preStop hook, drains on SIGTERM and ends.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from cluster.actuators.kubernetes_calls import Calls, Refused
from cluster.actuators.workloads import (
    ACCELERATOR_LABEL,
    ROWS_VARIABLE,
    SERVER_LABEL,
    Deployment,
)
from cluster.replicas import Group, Outcome, Replica, State

log = logging.getLogger(__name__)

MAX_TRIES = 5  # of a change, where somebody else changes the Deployment meanwhile
CONFLICT = 409

T = TypeVar("T")


class Deployments:
    """The Actuator. In an Outcome a Deployment's name stands for each of its pods, which have no
    names yet; pods that cannot run for another reason, such as their image, are `unplaced` too.

    A group with other rows than its Deployment is a change of the Deployment's template, which
    Kubernetes rolls out: pods with the former rows go as those with the new ones become ready.
    """

    def __init__(
        self, namespace: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Raises ConfigFaulty where there is no account of an API server."""
        self._calls = Calls(namespace)
        self._clock = clock
        self._sees_autoscalers = True

    def replicas(self) -> Sequence[Replica]:
        now = self._clock()
        found = (pod.replica(now) for pod in self._calls.pods())
        return sorted((each for each in found if each is not None), key=lambda each: each.name)

    def start(self, group: Group, count: int) -> Outcome:
        if count <= 0:
            return Outcome()

        def grow(deployment: Deployment) -> Outcome:
            num_more = max(0, count - deployment.spec.replicas)
            if deployment.user_rows != group.user_rows:
                self._check_owner(deployment)
                self._roll_out(deployment, group.user_rows, deployment.spec.replicas + num_more)
            elif num_more:
                self._scale(deployment, count)
            unplaced, why = self._unplaced(deployment, group, count)
            return Outcome(started=(deployment.name,) * num_more, unplaced=unplaced, why=why)

        try:
            return self._adjusted(group, grow)
        except Refused as error:
            return Outcome(unplaced=count, why=str(error))

    def stop(self, group: Group, count: int) -> Outcome:
        count = max(0, count)

        def shrink(deployment: Deployment) -> Outcome:
            surplus = max(0, deployment.spec.replicas - count)
            # Pods with other rows than the template's are being replaced already.
            if not surplus or deployment.user_rows != group.user_rows:
                return Outcome()
            self._scale(deployment, count)
            return Outcome(stopped=(deployment.name,) * surplus)

        try:
            return self._adjusted(group, shrink)
        except Refused as error:
            return Outcome(why=str(error))

    def close(self) -> None:
        self._calls.close()

    def _adjusted(self, group: Group, change: Callable[[Deployment], T]) -> T:
        """What `change` makes of the Deployment, read anew where somebody else was faster."""
        for _ in range(MAX_TRIES):
            try:
                return change(self._found(group))
            except Refused as error:
                if error.status != CONFLICT:
                    raise
        raise Refused(f"the Deployment of {group} was changed {MAX_TRIES} times meanwhile")

    def _found(self, group: Group) -> Deployment:
        found = [each for each in self._calls.deployments() if each.is_of(group)]
        if len(found) == 1:
            return found[0]
        wanted = f"{SERVER_LABEL}={group.server} and {ACCELERATOR_LABEL}={group.accelerator}"
        place = f"in the namespace {self._calls.namespace!r}"
        if not found:
            raise Refused(f"no Deployment {place} has the labels {wanted}; apply one")
        names = ", ".join(each.name for each in found)
        raise Refused(f"several Deployments {place} have the labels {wanted}: {names}; keep one")

    def _scale(self, deployment: Deployment, count: int) -> None:
        self._check_owner(deployment)
        self._calls.patch_scale(deployment, count)
        log.info("scaled %s from %d to %d", deployment.name, deployment.spec.replicas, count)

    def _roll_out(self, deployment: Deployment, user_rows: int, count: int) -> None:
        rows = {"name": ROWS_VARIABLE, "value": str(user_rows)}
        container = {"name": deployment.spec.template.spec.containers[0].name, "env": [rows]}
        template = {"spec": {"containers": [container]}}
        self._calls.patch(deployment, {"replicas": count, "template": template})
        log.info("rolling out %s with %d user rows", deployment.name, user_rows)

    def _check_owner(self, deployment: Deployment) -> None:
        """Raises Refused where an autoscaler would undo what we do. KEDA has one for each of its
        ScaledObjects."""
        if not self._sees_autoscalers:
            return
        try:
            autoscalers = self._calls.autoscalers()
        except Refused as error:
            self._sees_autoscalers = False
            log.warning("cannot see whether autoscalers own the Deployments: %s", error)
            return
        for each in autoscalers:
            target = each.spec.scale_target_ref
            if (target.kind, target.name) == ("Deployment", deployment.name):
                raise Refused(
                    f"the HorizontalPodAutoscaler {each.metadata.name} owns {deployment.name}; "
                    "delete it (KEDA: its ScaledObject), or leave scaling to it (dry_run: true)"
                )

    def _unplaced(self, deployment: Deployment, group: Group, count: int) -> tuple[int, str]:
        """How many of `count` are not going to run as things are, and why."""
        here = [
            each
            for each in self.replicas()
            if each.group == group and each.state is not State.DRAINING
        ]
        failed = [each for each in here if each.state is State.FAILED]
        num_unmade = max(0, count - len(here)) if deployment.why_no_pods else 0
        reasons = [deployment.why_no_pods] * num_unmade + [each.why for each in failed]
        return min(count, len(reasons)), reasons[0] if reasons else ""
