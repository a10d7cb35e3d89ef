"""A real Alertmanager on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from monitor.stack.http import HttpService
from monitor.stack.process import find_binary


class Alertmanager(HttpService):
    """One Alertmanager, with the configuration given, or one that sends every alert to a webhook.

    ``with WebhookReceiver() as receiver, Alertmanager(receiver_url=receiver.url) as alertmanager: ...``
    """

    name: ClassVar[str] = "alertmanager"
    start_timeout: ClassVar[float] = 20.0

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        receiver_url: str | None = None,
        config: str | None = None,
        port: int | None = None,
    ) -> None:
        """Give one of `config` (the text of an alertmanager.yml) and `receiver_url`."""
        if (config is None) == (receiver_url is None):
            raise ValueError(
                "Alertmanager needs either config, the text of its configuration, or receiver_url, "
                f"the webhook that gets every alert; got config={config!r}, "
                f"receiver_url={receiver_url!r}"
            )
        self._binary = find_binary("alertmanager")
        super().__init__(data_dir, port)
        self._config = config if config is not None else webhook_config(str(receiver_url))

    def _prepare(self) -> Sequence[str | Path]:
        config = self.data_dir / "alertmanager.yml"
        config.write_text(self._config, encoding="utf-8")
        return (
            self._binary,
            f"--config.file={config}",
            f"--storage.path={self.data_dir / 'data'}",
            f"--web.listen-address={self._address}",
            # No gossip: one instance has no peers, and the gossip port would be a fixed one.
            "--cluster.listen-address=",
        )


def webhook_config(receiver_url: str) -> str:
    """Sends each alert to the URL as soon as it fires and again when it resolves."""
    config = {
        "route": {
            "receiver": "webhook",
            # Each alert its own group: none waits for another's interval.
            "group_by": ["..."],
            # By default the first notification of a group waits 30 s for more alerts to join it, and
            # the next ones 5 min. Here there are none to wait for.
            "group_wait": "0s",
            "group_interval": "1s",
            # Beyond any demo or test, so that a repetition never counts as a second page.
            "repeat_interval": "24h",
        },
        "receivers": [
            {
                "name": "webhook",
                "webhook_configs": [{"url": receiver_url, "send_resolved": True}],
            }
        ],
    }
    return json.dumps(config, indent=2)  # JSON is YAML
