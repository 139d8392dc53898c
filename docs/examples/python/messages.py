"""What is in the bodies of frames, which a peer wrote that is not trusted."""

from frames import LARGE, ONE_WAY, Violation
from msgpack import parts, unpack


class FairleadError(Exception):
    """A failure, with its code; docs/protocol.md lists the codes."""

    def __init__(self, code, text="", origin="local", holder=None, retry=0):
        super().__init__(f"{code}: {text}" if text else code)
        self.code, self.text = code, text
        self.origin = origin  # peer, broker, or local: this client
        self.holder = holder  # who has what was asked for: a dict of p pid, u uid, s service, l lease
        self.retry = retry  # when to try again, ns; 0: not said


def read(body):
    """The value that a body is."""
    try:
        return unpack(body)
    except ValueError as e:
        raise Violation("malformed", f"a body that cannot be read: {e}") from None


def read_map(body):
    """The map that a body is."""
    value = read(body)
    if not isinstance(value, dict):
        raise Violation("malformed", "a body that is no map")
    return value


def get(of, key, default):
    """The value of a key that may be missing, and has the type of default."""
    value = of.get(key)
    if value is not None and not isinstance(value, type(default)):
        raise Violation("malformed", f"a body whose {key} is a {type(value).__name__}")
    return default if value is None else value


def read_message(frame):
    """The method and the value of a request or a one-way message, and the value's length in bytes."""
    body = read_map(frame.body)
    method, left, length = get(body, "m", ""), get(body, "w", 0), get(body, "n", 0)
    if not 0 < len(method.encode()) <= 128 or left < 0 or (length != 0 and not frame.flags & LARGE):
        raise Violation("malformed", "a request whose method, time or length cannot be")
    if frame.kind == ONE_WAY and frame.flags & LARGE:
        raise Violation("unsupported", "a large one-way message")
    return method, body.get("v"), len(parts(frame.body).get("v", b""))


def read_error(body):
    """The FairleadError that an Error or an End is."""
    e = read_map(body)
    if not get(e, "c", ""):
        raise Violation("malformed", "an error without a code")
    return FairleadError(get(e, "c", ""), get(e, "t", ""), get(e, "o", "peer"), get(e, "h", {}) or None, get(e, "r", 0))
