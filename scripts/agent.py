"""`hearth agent NAME` prints how to start a program so that it uses the running server."""

import json
import re
from collections.abc import Sequence

import click

from common.fetch import PROBE, fetch
from inference_api.agents import agents

URLS = ("http://127.0.0.1:1223", "http://127.0.0.1:7000")  # proxy and API of `hearth serve`
NO_TOKEN = "none"  # the API needs no token, unlike the proxy
FENCE = re.compile(r"^```.*\n", re.MULTILINE)


@click.command()
@click.argument("name", required=False, type=click.Choice(list(agents())))
@click.option("--url", help=f"The server; else the first that answers of {', '.join(URLS)}.")
@click.option("--model", help="One that it serves; else its first.")
@click.option("--token", envvar="HEARTH_TOKEN", default=NO_TOKEN, help="Else HEARTH_TOKEN.")
def main(name: str | None, url: str | None, model: str | None, token: str) -> None:
    """Print what to type so that the program NAME uses a server; without NAME, list them."""
    if name is None:
        for name, agent in agents().items():
            click.echo(f"{name:<12}{agent.title}, by {agent.route}")
        return
    url, contexts = first_server((url.rstrip("/").removesuffix("/v1"),) if url else URLS, token)
    model = model or next(iter(contexts))
    if model not in contexts:
        raise click.ClickException(f"{url} does not serve {model!r}; it serves {[*contexts]}.")
    agent, context_tokens = agents()[name], contexts[model]
    if agent.first_prompt_tokens >= context_tokens:
        click.echo(
            f"{agent.title} begins with some {agent.first_prompt_tokens} tokens, and the model's "
            f"context holds {context_tokens}: raise MAX_SEQ_LEN, or serve another model.\n",
            err=True,
        )
    if token == NO_TOKEN:
        click.echo(f"In a shell, as this server wants no token:\n\nexport HEARTH_TOKEN={token}\n")
    click.echo(FENCE.sub("", agent.filled_in(url, model, context_tokens)), nl=False)


def first_server(urls: Sequence[str], token: str) -> tuple[str, dict[str, int]]:
    """Returns the first server that serves a model, and each of its models' context in tokens."""
    faults = []
    for url in urls:
        try:
            listed = fetch(f"{url}/v1/models", PROBE, {"Authorization": f"Bearer {token}"})
            cards = [card for card in json.loads(listed)["data"] if "max_model_len" in card]
            contexts = {str(card["id"]): int(card["max_model_len"]) for card in cards}
            "".join(contexts).encode()  # raises if a name has half of a surrogate pair
            if contexts:
                return url, contexts
            faults.append(f"{url}: no model of it is ready")
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            faults.append(str(error))
    raise click.ClickException(
        f"No server lists its models ({'; '.join(faults)}). Start one with `hearth serve`, or give "
        "--url. A proxy wants a token in HEARTH_TOKEN; `hearth token add agents` makes one."
    )
