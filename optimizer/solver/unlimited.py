"""Without bounds on cards every server takes its best candidate. Pure: any thread."""

from optimizer.solver import Choice, Problem, Solution


class UnlimitedSolver:
    """A `Solver` that ignores capacity."""

    def solve(self, problem: Problem) -> Solution:
        choices = {
            contender.server: (Choice(contender.candidates[0], contender.candidates[0].replicas),)
            for contender in problem.contenders
        }
        return Solution(choices, solver="unlimited")
