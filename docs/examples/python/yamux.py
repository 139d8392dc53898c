"""The streams that a peer opens, as far as large values need them. All others are reset."""

from frames import HEADER, Violation

DATA, WINDOW, PING = 0, 1, 2
SYN, ACK, FIN, RST = 1, 2, 4, 8

LARGE_VALUE = 35  # the kind of the one frame of a large value's stream
REPLY = 4
MOST_STREAMS = 1024
MAX_LARGE = 4 << 20
MAX_UNREAD = 16 << 20


class Streams:
    """The streams that the peer has opened and that are read."""

    def __init__(self, lane):
        self._lane = lane
        self._data = {}  # id of a stream: what came on it

    def take(self, frame):
        """Takes a frame of yamux. It returns the id and the bytes of the large reply that it has completed, if it has."""
        kind, flags, stream = frame.kind, frame.flags, frame.id
        if kind == PING and flags & SYN:
            self._lane.put_yamux(PING, ACK, 0, frame.length)
        if kind not in (DATA, WINDOW):
            return None
        if flags & SYN:
            if stream % 2 == 1 or stream == 0 or stream in self._data:
                raise Violation("malformed", f"stream {stream} is not the peer's to open")
            if len(self._data) == MOST_STREAMS:
                raise Violation("over_quota", f"more than {MOST_STREAMS} streams")
            self._data[stream] = bytearray()
            self._lane.put_yamux(WINDOW, ACK, stream, 0)
        whole = None
        if stream in self._data and kind == DATA and frame.body:
            whole = self._add(stream, frame.body)
        if flags & (FIN | RST):  # a value that is not whole never will be
            self._data.pop(stream, None)
        return whole

    def _add(self, stream, body):
        """Adds to what came on a stream. Nothing else is on a large reply's stream than its frame."""
        data = self._data[stream]
        data += body
        if len(data) < HEADER.size:
            return None
        version, kind, _, flags, id, length = HEADER.unpack_from(data)
        if (version, kind, flags) != (1, LARGE_VALUE, REPLY) or length > MAX_LARGE or len(data) > HEADER.size + length:
            return self._close(stream, RST)
        if sum(map(len, self._data.values())) > MAX_UNREAD:
            raise Violation("over_quota", f"more than {MAX_UNREAD} bytes on streams")
        if len(data) < HEADER.size + length:
            self._lane.put_yamux(WINDOW, 0, stream, len(body))  # the peer may send as much again
            return None
        self._close(stream, FIN)
        return id, bytes(data[HEADER.size:])

    def _close(self, stream, flag):
        del self._data[stream]
        self._lane.put_yamux(WINDOW, flag, stream, 0)
