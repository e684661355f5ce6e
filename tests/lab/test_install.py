"""What uv is told of pip's configuration; `make test` itself has installed by it."""

import pytest

from lab.install import uv_variables

LISTED = """\
:env:.disable-pip-version-check='1'
:env:.find-links='/opt/wheels /srv/wheels'
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
global.cert='/etc/ssl/certs/all.crt'
install.trusted-host='two.example'
"""


def test_indexes_and_certificates_are_told_to_uv() -> None:
    assert uv_variables(LISTED) == {
        "SSL_CERT_FILE": "/etc/ssl/certs/all.crt",
        "UV_FIND_LINKS": "/opt/wheels,/srv/wheels",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_INSECURE_HOST": "two.example",
    }
    assert uv_variables("") == {}


def test_the_last_place_that_names_a_setting_counts() -> None:
    listed = "global.index-url='https://one.example'\n:env:.index-url='https://two.example'\n"
    assert uv_variables(listed) == {"UV_DEFAULT_INDEX": "https://two.example"}


@pytest.mark.parametrize("name", ["no-binary", "target", "client-cert", "keyring-provider"])
def test_pip_installs_where_uv_cannot_be_told(name: str) -> None:
    assert uv_variables(f"{LISTED}global.{name}='x'\n") is None
