"""The solver without card limits: every server takes its best candidate. Pure: any thread."""

from optimizer.solver import Problem, Solution, SolverChoice


class UnlimitedSolver:
    """A `Solver` that ignores capacity."""

    def solve(self, problem: Problem) -> Solution:
        choices = {
            contender.server: (
                SolverChoice(contender.candidates[0], contender.candidates[0].replicas),
            )
            for contender in problem.contenders
        }
        return Solution(choices, solver="unlimited")
