"""A client of Fairlead: what docs/protocol.md says, with nothing but the standard library.

    with fairlead.connect("com.example.echo", timeout=5) as session:
        print(session.call("echo", {"text": "hi"}, timeout=2))

A session is used by one thread. It reads and writes its socket only inside its methods: who has nothing to do calls wait. Times are in seconds, None is
without an end. Whatever fails between the two sides is a FairleadError.

It needs the feature lane, and opens no streams: of those that its peer opens it reads large replies, and resets the others. What it sends has at most
64 KiB.
"""

import os
import socket as sockets
import tempfile
import time

from frames import ACCEPTED, OPEN, REFUSED, ROUTED, Lane, Lost, Violation, close_all
from messages import FairleadError, get, read_error, read_map
from msgpack import pack
from session import Descriptor, Session, deadline_in, left_until, milliseconds_until

__all__ = ["Descriptor", "FairleadError", "Session", "connect", "default_socket"]


def default_socket():
    """The path of the broker's socket for this user."""
    if os.environ.get("FAIRLEAD_SOCKET"):
        return os.environ["FAIRLEAD_SOCKET"]
    if os.geteuid() == 0:
        return "/run/fairlead/broker.sock"
    if os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(os.environ["XDG_RUNTIME_DIR"], "fairlead", "broker.sock")
    return os.path.join(tempfile.gettempdir(), f"fairlead-{os.geteuid()}", "broker.sock")


def connect(endpoint, socket=None, timeout=30.0, title="", on_message=None):
    """Opens a session to an endpoint; the broker starts its service if need be. socket is the path of the broker's.

    on_message(method, value, files) is called with each one-way message of the peer, by whatever method of the session reads it. It must not use the
    session. files has the message's descriptors; it closes those that it removes from there, the others are closed after it.
    """
    deadline = deadline_in(timeout)
    while True:
        try:
            return _open(socket or default_socket(), endpoint, deadline, title, on_message)
        except FairleadError as e:
            if e.code != "terminating" or left_until(deadline) == 0:
                raise
        time.sleep(min(0.05, left_until(deadline)))  # nothing was executed, and another may serve by then


def _open(path, endpoint, deadline, title, on_message):
    sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as e:
        sock.close()
        raise FairleadError("unavailable", f"connect to the broker at {path}: {e.strerror}") from None
    lane, pidfd = Lane(sock), []
    try:
        lane.put(OPEN, body=pack({"e": endpoint, "w": milliseconds_until(deadline), "t": title, "f": ["lane"]}))
        routed, accepted = _answers(lane, deadline, pidfd)
        if "lane" not in get(accepted, "f", []):
            raise FairleadError("unsupported", f"{endpoint} does not have the feature lane")
        return Session(lane, routed, accepted, pidfd, on_message)
    except BaseException as e:
        close_all(pidfd)
        lane.close()
        if isinstance(e, TimeoutError):
            raise FairleadError("deadline_exceeded", f"open {endpoint}: no answer in time") from None
        if isinstance(e, Lost):
            raise FairleadError("terminating", f"open {endpoint}: the connection was closed before an answer came") from None
        if isinstance(e, Violation):
            raise FairleadError(e.code, f"open {endpoint}: {e.text}") from None
        raise


def _answers(lane, deadline, pidfd):
    """Returns what routed and accepted say; the instance's pidfd, if there is one, is then in the list given. A refusal is raised."""
    routed = {}
    while True:
        frame = lane.turn(deadline)
        if frame is None:
            continue
        if frame.version != 1 or frame.kind not in (ROUTED, ACCEPTED, REFUSED) or frame.count > (frame.kind == ROUTED):
            close_all(frame.files)
            raise Violation("malformed", f"a frame of kind {frame.kind} while the session opens")
        if frame.kind == ROUTED:
            close_all(pidfd)
            pidfd[:] = frame.files
            routed = read_map(frame.body)
        elif frame.kind == ACCEPTED:
            return routed, read_map(frame.body)
        else:
            raise read_error(frame.body)
