"""The solver without card limits: every server takes its best candidate. Pure: any thread."""

from optimizer.solver import Problem, Solution, SolverChoice


def solve_unlimited(problem: Problem) -> Solution:
    best = {contender.server: contender.candidates[0] for contender in problem.contenders}
    choices = {server: (SolverChoice(each, each.replicas),) for server, each in best.items()}
    return Solution(choices, solver="unlimited")
