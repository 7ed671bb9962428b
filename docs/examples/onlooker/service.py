"""How long the learner takes from one version of the weights to the next, on a health page."""

import logging
from typing import Any

from zerobeast.common.config.process import Instance
from zerobeast.common.service.base import Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import NEWS_TOPIC, Poller, WeightsSubscriber
from zerobeast.common.wire.messages import Kind

log = logging.getLogger(__name__)


class Onlooker(Service):
    """Hears the news of the weights plane."""

    role = "onlooker"
    work = ("versions",)

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__()
        self._config = config
        self._version = self._versions = 0
        self._heard_at = self._gap_s = 0.0

    def open(self) -> None:
        context = self.open_context(self._config.security)
        self._news = WeightsSubscriber(context, self._config.learner.endpoint, NEWS_TOPIC)
        self.resources.callback(self._news.close)
        self.poller = Poller([self._news])

    def take(self) -> None:
        while (heard := self._news.receive()) is not None:
            if heard.header.kind is Kind.NEWS:
                now = self.clock()
                self._gap_s, self._heard_at = now - (self._heard_at or now), now
                self._version, self._versions = heard.header.seq, self._versions + 1

    def idle(self) -> bool:
        return True  # it is not behind with anything

    def drain(self) -> None:
        log.info("heard of %d versions", self._versions)

    def report(self) -> dict[str, Any]:
        return {"policy_version": self._version, "versions": self._versions, "gap_s": self._gap_s}
