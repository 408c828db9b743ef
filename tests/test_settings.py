"""Settings of a process: what the environment may say, and what it may not."""

import pytest

from stream_app.errors import ConfigurationError
from stream_app.settings import load_settings


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("SHUFFLEBANDIT_LIMITS_MAX_EPSILN", "SHUFFLEBANDIT_LIMITS_MAX_EPSILON"),
        ("SHUFFLEBANDIT_MAX_EPSILON", "SHUFFLEBANDIT_LIMITS_MAX_EPSILON"),
        ("SHUFFLEBANDIT_KAFKA_BOOTSTRAPS", "SHUFFLEBANDIT_KAFKA_BOOTSTRAP"),
        ("SHUFFLEBANDIT_CONFG", "SHUFFLEBANDIT_CONFIG"),
    ],
)
def test_a_mistyped_variable_is_refused(variable: str, nearest: str) -> None:
    """A limit that is mistyped must not silently be none."""
    with pytest.raises(ConfigurationError) as refused:
        load_settings(None, {variable: "0.5"})

    assert (
        f"{variable}: names no setting; the nearest is {nearest}; correct it, or unset it"
        == str(refused.value)
    )


def test_a_refusal_does_not_show_the_value() -> None:
    """It may be a password."""
    with pytest.raises(ConfigurationError) as refused:
        load_settings(None, {"SHUFFLEBANDIT_KAFKA_SASL_PASSWRD": "tiger"})

    assert "tiger" not in str(refused.value)


def test_variables_of_others_are_ignored() -> None:
    """Those that the project itself names, those without the prefix, and Kubernetes' links."""
    links = {
        "SHUFFLEBANDIT_GATEWAY_PORT": "tcp://10.0.0.7:6067",
        "SHUFFLEBANDIT_GATEWAY_SERVICE_HOST": "10.0.0.7",
        "SHUFFLEBANDIT_GATEWAY_SERVICE_PORT": "6067",
        "SHUFFLEBANDIT_GATEWAY_SERVICE_PORT_HTTP": "6067",
        "SHUFFLEBANDIT_GATEWAY_PORT_6067_TCP": "tcp://10.0.0.7:6067",
        "SHUFFLEBANDIT_GATEWAY_PORT_6067_TCP_PROTO": "tcp",
        "SHUFFLEBANDIT_GATEWAY_PORT_6067_TCP_PORT": "6067",
        "SHUFFLEBANDIT_GATEWAY_PORT_6067_TCP_ADDR": "10.0.0.7",
        "SHUFFLEBANDIT_CONFIG": "settings.toml",
        "SHUFFLEBANDIT_CACHE": "/var/cache",
        "SHUFFLE_MAX": "1",
    }

    assert load_settings(None, {}) == load_settings(None, links)


def test_a_port_is_a_port() -> None:
    """The same name with a number is the setting."""
    found = load_settings(None, {"SHUFFLEBANDIT_GATEWAY_PORT": "7000"})

    assert 7000 == found.gateway.port
