"""Requests that wait. Clients take turns; the requests of one client keep their order."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class RequestQueue(Generic[_Item]):
    """A queue that is fair to clients: one with many requests delays another by one at most.

    `limit` is kept by whoever pushes; see `Engine.place`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_client: OrderedDict[str, deque[_Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[_Item]:
        """Go through what waits now, client by client."""
        return iter([item for items in self._by_client.values() for item in items])

    def push(self, client: str, item: _Item) -> None:
        """Add a client's request behind its others."""
        self._by_client.setdefault(client, deque()).append(item)

    def pop(self) -> _Item | None:
        """Take the next request, whose client then is the last in turn; None if all is empty."""
        if not self._by_client:
            return None
        client, items = self._by_client.popitem(last=False)
        item = items.popleft()
        if items:
            self._by_client[client] = items
        return item

    def remove(self, client: str, item: _Item) -> bool:
        """Take a request out, and say whether it was there."""
        items = self._by_client.get(client, deque())
        if item not in items:
            return False
        items.remove(item)
        if not items:
            del self._by_client[client]
        return True
