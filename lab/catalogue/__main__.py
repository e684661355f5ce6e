"""`python -m lab.catalogue`: fits the calibration, and prints how far off its estimates are."""

import click

from common.files import write_whole
from lab.catalogue.fit import MIN_POINTS, calibrate
from lab.catalogue.observations import published
from lab.kit.servers import ROOT
from optimizer.catalogue.calibration import Calibration
from optimizer.catalogue.facts import shipped_facts
from optimizer.catalogue.roofline import IN_MS, PARTS

SHIPPED = ROOT / "optimizer/catalogue/data/calibration.json"


@click.command()
@click.option("--write", is_flag=True, help="Ship this calibration.")
def main(write: bool) -> None:
    """Fit the catalogue's calibration to the published measurements."""
    calibration = calibrate(shipped_facts(), published())
    if write:
        write_whole(SHIPPED, calibration.model_dump_json(indent=1) + "\n")
    print("What a part of a step takes")
    for part, value in zip(PARTS, calibration.efficiency, strict=True):
        unit = "ms" if part in IN_MS else "times the datasheet's time"
        print(f"  {part:8} {value:6.3f} {unit}")
    _print_left_out(calibration)
    _print_fits(calibration)


def _print_left_out(calibration: Calibration) -> None:
    print("\nPairs left out in turn, and predicted by the others")
    print(f"  {'model':15} {'accelerator':12} points  predicted/measured  error")
    for each in calibration.left_out:
        print(
            f"  {each.model:15} {each.accelerator:12} {each.num_points:6}  {each.ratio:18.2f}  "
            f"{each.error:5.0%}"
        )
    print(
        f"  root mean square of those with {MIN_POINTS} points and more: "
        f"{calibration.dense_error:.0%} of models without experts, "
        f"{calibration.experts_error:.0%} with"
    )


def _print_fits(calibration: Calibration) -> None:
    print("\nFactors on steps and prompts, fitted to each pair's own measurements")
    print(
        f"  {'model':15} {'accelerator':12} {'weights':7} points  {'steps':11}  "
        f"{'prompts':11}  residual"
    )
    for fit in calibration.fitted:
        model, accelerator, precision = fit.key
        print(
            f"  {model:15} {accelerator:12} {precision:7} {fit.num_points:6}  "
            f"{fit.steps:4.2f} ± {fit.steps_error:4.2f}  {fit.prompts:4.2f} ± "
            f"{fit.prompts_error:4.2f}  {fit.residual:8.0%}"
        )


if __name__ == "__main__":
    main()
