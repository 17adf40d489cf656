"""The browser of a sandbox's desktop for programs: `sandbox.browser`."""

from __future__ import annotations

from .._http import Request, given, path
from ..models import BrowserInfo
from .client import AsyncClient

# A browser that is not running yet takes its time to start.
START_SECONDS = 90.0


class AsyncBrowser:
    """Chromium's DevTools protocol, for Playwright, Puppeteer and other clients of it.

        url = sandbox.browser.cdp_url()
        browser = playwright.chromium.connect_over_cdp(url)
    """

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client = client
        self._sandbox = sandbox

    async def start(self, url: str | None = None, *, expires_seconds: int | None = None) -> BrowserInfo:
        """Starts the browser if it does not run. url: a page to open."""
        body = given(url=url, expires_seconds=expires_seconds)
        request = Request.json("POST", path("sandboxes", self._sandbox, "browser"), body, timeout=START_SECONDS)
        return BrowserInfo.from_document(await self._client._json(request))

    async def cdp_url(self, url: str | None = None, *, expires_seconds: int | None = None) -> str:
        """As start: the address of the protocol, which needs no token until it expires."""
        return (await self.start(url, expires_seconds=expires_seconds)).cdp_url

    async def save_profile(self) -> bytes:
        """Its cookies, logins, history and settings, as a tar for load_profile of this or another sandbox. Ends the browser."""
        return await self._client._bytes(Request("GET", path("sandboxes", self._sandbox, "browser", "profile")))

    async def load_profile(self, profile: bytes) -> None:
        """Replaces its profile. Ends the browser; it starts again when it is next used."""
        url = path("sandboxes", self._sandbox, "browser", "profile")
        await self._client._done(Request("PUT", url, headers={"Content-Type": "application/x-tar"}, body=profile))
