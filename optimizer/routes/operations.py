"""What each route takes and answers, as plain data for the API's description.

"VERB /rule" -> `summary`, `body`, `query`, `headers`, and `answers` by status; types are pydantic
models or JSON schemas, a string is text of that media type, a tuple lists several.
"""

from collections.abc import Mapping
from typing import Any

from optimizer.questions.queries import AnalyzeQuery, SizeQuery
from optimizer.questions.whatif import WhatIfQuery
from optimizer.routes.answers import (
    Analyzed,
    Explanation,
    NotSized,
    PlanAnswer,
    Problem,
    Sized,
    Solution,
    Sweep,
)
from optimizer.spec import (
    AcceleratorData,
    AcceleratorSpec,
    CapacityData,
    CapacitySpec,
    ModelData,
    ModelTarget,
    OptimizerData,
    OptimizerSpec,
    PerfData,
    ServerData,
    ServerSpec,
    ServiceClassData,
    ServiceClassSpec,
    SystemData,
)
from optimizer.state import StateData

NO_ROUTE = "text/plain"  # a path with one name where there should be two
ACCELERATORS_FORMAT = {"type": "string", "enum": ["list"]}
IF_MATCH = {"type": "string", "pattern": r'^(\*|"[0-9a-f]{64}")$'}

Operation = Mapping[str, Any]


def _read(summary: str, answer: Any, *missing: Any) -> Operation:
    return {"summary": summary, "answers": {200: answer, **({404: missing} if missing else {})}}


def _ask(summary: str, body: Any, answer: Any) -> Operation:
    answers = {200: answer, 400: Problem, 404: Problem, 413: Problem}
    return {"summary": summary, "body": body, "answers": answers}


def _set(summary: str, body: Any) -> Operation:
    """An edit that echoes what it took."""
    answers = {200: body, 400: Problem, 413: Problem, 503: Problem}
    return {"summary": summary, "body": body, "answers": answers}


def _edit(summary: str, answer: Any, **statuses: Any) -> Operation:
    """An edit that its path alone tells."""
    given = {int(name.removeprefix("on_")): held for name, held in statuses.items()}
    return {"summary": summary, "answers": {200: answer, 503: Problem, **given}}


def _solve(summary: str, body: Any) -> Operation:
    answers = {200: Solution, 400: Problem, 413: Problem, 503: Problem}
    return {"summary": summary, "body": body, "answers": answers}


READS: Mapping[str, Operation] = {
    "GET /getAccelerators": {
        "summary": "All accelerators.",
        "query": {"format": ACCELERATORS_FORMAT},
        "answers": {200: (AcceleratorData, list[AcceleratorSpec])},
    },
    "GET /getAccelerator/<path:name>": _read("One accelerator.", AcceleratorSpec, Problem),
    "GET /getCapacities": _read("Cards by type.", CapacityData),
    "GET /getCapacity/<path:name>": _read("Cards of one type.", CapacitySpec, Problem),
    "GET /getModels": _read("The names of all models.", list[str]),
    "GET /getModel/<path:name>": _read("Performance data of a model.", ModelData, Problem),
    "GET /getServiceClasses": _read("All service classes.", ServiceClassData),
    "GET /getServiceClass/<path:name>": _read("One class.", ServiceClassSpec, Problem),
    "GET /getServers": _read("All servers.", ServerData),
    "GET /getServer/<path:name>": _read("One server.", ServerSpec, Problem),
    "GET /getServiceClassModelTarget/<path:names>": _read(
        "Targets of class/model.", ModelTarget, Problem, NO_ROUTE
    ),
    "GET /getModelAcceleratorPerf/<path:names>": _read(
        "Performance data of model/accelerator.", PerfData, Problem, NO_ROUTE
    ),
}

QUESTIONS: Mapping[str, Operation] = {
    "GET /explain/<path:name>": _read("Why a server got what it got.", Explanation, Problem),
    "GET /plan": _read("Ordered steps from what runs to what is desired.", PlanAnswer),
    "GET /state": _read("The whole state; its ETag is for PUT.", StateData),
    "POST /analyze": _ask("Latencies of a replica at a rate.", AnalyzeQuery, Analyzed),
    "POST /size": _ask("The highest rate within targets.", SizeQuery, (Sized, NotSized)),
    "POST /whatif": _ask("Solve with other load, cost or cards.", WhatIfQuery, Sweep),
}

SOLVES: Mapping[str, Operation] = {
    "POST /optimizeOne": _solve("Solve the system in the body.", SystemData),
    "POST /optimize": _solve("Solve the system that is kept.", (OptimizerSpec, OptimizerData)),
    "GET /applyAllocation": _edit("Let what was allocated be what runs.", str),
    "PUT /state": {
        "summary": "Put a whole state in place.",
        "headers": {"If-Match": IF_MATCH},
        "body": StateData,
        "answers": {200: StateData, 400: Problem, 412: Problem, 413: Problem, 503: Problem},
    },
}

EDITS: Mapping[str, Operation] = {
    "POST /setAccelerators": _set("Merge accelerators.", AcceleratorData),
    "POST /addAccelerator": _set("Add or replace an accelerator.", AcceleratorSpec),
    "GET /removeAccelerator/<path:name>": _edit("Remove it.", AcceleratorSpec, on_404=Problem),
    "POST /setCapacities": _set("Merge capacities.", CapacityData),
    "POST /setCapacity": _set("Set the cards of a type.", CapacitySpec),
    "GET /removeCapacity/<path:name>": _edit("Remove it.", CapacitySpec, on_404=Problem),
    "POST /setModels": _set("Merge performance data.", ModelData),
    "GET /addModel/<path:name>": _edit("Add a model without data.", str),
    "GET /removeModel/<path:name>": _edit("Remove it.", str, on_404=Problem),
    "POST /addModelAcceleratorPerf": {
        "summary": "Add data to a model that exists.",
        "body": PerfData,
        "answers": {200: PerfData, 400: Problem, 404: Problem, 413: Problem, 503: Problem},
    },
    "GET /removeModelAcceleratorPerf/<path:names>": _edit(
        "Remove the data of model/accelerator.", PerfData, on_404=(Problem, NO_ROUTE)
    ),
    "POST /setServiceClasses": _set("Merge service classes.", ServiceClassData),
    "GET /addServiceClass/<path:names>": _edit(
        "Add class/priority.", ServiceClassSpec, on_400=Problem, on_404=NO_ROUTE
    ),
    "GET /removeServiceClass/<path:name>": _edit("Remove it.", ServiceClassSpec, on_404=Problem),
    "POST /addServiceClassModelTargets": {
        "summary": "Merge targets into a class that exists.",
        "body": ServiceClassSpec,
        "answers": {
            200: ServiceClassSpec,
            400: (Problem, str),
            404: str,
            413: Problem,
            503: Problem,
        },
    },
    "GET /removeServiceClassModelTarget/<path:names>": _edit(
        "Remove the targets of class/model.", ModelTarget, on_404=(Problem, NO_ROUTE)
    ),
    "POST /setServers": _set("Merge servers.", ServerData),
    "POST /addServer": _set("Add or replace a server.", ServerSpec),
    "GET /removeServer/<path:name>": _edit("Remove it.", ServerSpec, on_404=Problem),
}

OPERATIONS: Mapping[str, Operation] = {**READS, **QUESTIONS, **SOLVES, **EDITS}
