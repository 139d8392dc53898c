"""A session: calls, one-way messages, and what the peer sends meanwhile."""

import collections
import math
import os
import time

from frames import CANCEL, END, ERROR, FLUSH, LARGE, NOTICE, ONE_WAY, REPLY, REQUEST
from frames import MAX_BODY, MAX_FILES, Lost, Violation, close_all
from messages import FairleadError, get, read, read_error, read_map, read_message
from msgpack import pack
from yamux import Streams

LOST = ("invalid", "interrupted", "terminating")  # codes of an end that read as a lost peer
GOODBYE = 2.0  # how long close waits for the peer to let go


class Descriptor:
    """Stands in a value for an open file, or for the number of one. The peer gets a duplicate."""

    def __init__(self, file):
        self._file = file

    def fileno(self):
        return self._file if isinstance(self._file, int) else self._file.fileno()


class _Credit:
    """What the peer accepts of requests, or of one-way messages, and what of it is in use: their number, bytes and descriptors."""

    def __init__(self, *limits):
        self._limits, self._used = limits, (0, 0, 0)

    def spend(self, cost):
        """Takes what a message costs, and says whether there was enough."""
        used = tuple(map(sum, zip(self._used, cost)))
        if any(u > most for u, most in zip(used, self._limits)):
            if self._used == (0, 0, 0):
                raise FairleadError("over_quota", f"{cost[1]} bytes and {cost[2]} descriptors are more than the peer ever accepts")
            return False
        self._used = used
        return True

    def give_back(self, cost):
        self._used = tuple(u - c for u, c in zip(self._used, cost))


class _Request:
    """One that was sent. Its reply may come in two pieces, the frame and a large value, in either order."""

    def __init__(self, cost):
        self.cost, self.waited, self.reply, self.large = cost, True, None, None


class Session:
    """A session with a service. connect makes it."""

    def __init__(self, lane, routed, accepted, pidfd, on_message):
        self.id = get(routed, "s", "")
        self.service, self.instance = get(routed, "n", ""), get(routed, "i", 0)
        self.peer = get(routed, "p", {})  # p pid, u uid, g gid, r program
        self.facts = {}  # the peer's
        self.terminating = False  # the peer takes no new requests
        self.ended = None  # the FairleadError that the session ended with
        self.pidfd = pidfd[0] if pidfd else None  # the instance's; closed with the session
        self._lane, self._streams, self._on_message = lane, Streams(lane), on_message
        limits = get(accepted, "l", {})
        size, files = get(limits, "b", 0) or 4 << 20, get(limits, "f", 0) or 64
        told = min(get(limits, "w", 0) or 1 << 20, size)
        self._requests = _Credit(get(limits, "c", 0) or 256, size, files)
        self._one_ways = _Credit(get(limits, "o", 0) or 256, told, files)
        self._last = 0  # the id of the last request
        self._requested = {}  # id of each request whose reply has not come whole
        self._replies = {}  # id of a request that somebody waits for: its reply's frame
        self._unhandled = collections.deque()  # what the one-way messages cost that the peer has not handled, in their order

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, value=None, timeout=None, takes=()):
        """Calls a method of the peer and returns its reply's value. When the time is over, the peer is told that nobody waits any more.

        takes names keys of that value which are descriptors: they are then numbers of this process, which the caller closes. All others are closed.
        """
        return _value(self._ask(REQUEST, method, value, deadline_in(timeout)), takes)

    def flush(self, timeout=None):
        """Returns when the peer has handled all one-way messages that were sent before."""
        _value(self._ask(FLUSH, "flush", None, deadline_in(timeout)), ())

    def send(self, method, value=None, timeout=None):
        """Sends a one-way message and returns when it has left. It waits while the peer has too many to handle. Flush tells when it was handled."""
        deadline = deadline_in(timeout)
        try:
            self._unhandled.append(self._put(ONE_WAY, 0, method, value, self._one_ways, deadline))
            while self._lane.unsent():
                self._turn(deadline)
        except TimeoutError:
            raise FairleadError("deadline_exceeded", f"{method}: the peer does not take it in time") from None

    def wait(self, timeout=None):
        """Takes what the peer sends until the session ends, and returns the FairleadError that it ended with; None when the time is over."""
        deadline = deadline_in(timeout)
        while self.ended is None:
            try:
                self._turn(deadline)
            except TimeoutError:
                return None
            except FairleadError as e:
                if e is not self.ended:
                    raise
        return self.ended

    def close(self, text="closed"):
        """Ends the session, and returns when the peer has let go. It may be called twice."""
        if self.ended is None:
            self._end(FairleadError("invalid", text))

    def _ask(self, kind, method, value, deadline):
        """Sends a request, or a flush, and returns its reply's frame."""
        id = self._next_id()
        try:
            self._requested[id] = _Request(self._put(kind, id, method, value, self._requests, deadline))
            while id not in self._replies:
                self._turn(deadline)
            return self._replies.pop(id)
        except TimeoutError:
            raise FairleadError("deadline_exceeded", f"{method}: no reply in time") from None
        finally:
            if id in self._requested and self.ended is None:  # the reply still comes: until then it has its id and its credit
                self._requested[id].waited = False
                self._lane.put(CANCEL, id)
                self._lane.write()

    def _next_id(self):
        while True:
            self._last = self._last % 0xFFFFFFFF + 1
            if self._last not in self._requested:
                return self._last

    def _put(self, kind, id, method, value, credit, deadline):
        """Queues a message as soon as the peer's credit allows it, and returns what it costs."""
        files, body = [], b""

        def attach(v):
            if not isinstance(v, Descriptor):
                raise TypeError(f"a value cannot have a {type(v).__name__}")
            files.append(os.dup(v.fileno()))
            return len(files) - 1

        try:
            packed = pack(value, attach, 1)
            while True:
                if kind != FLUSH:
                    head = {"m": method} if kind == ONE_WAY else {"m": method, "w": milliseconds_until(deadline)}
                    body = bytes([0x81 + len(head)]) + pack(head)[1:] + pack("v") + packed
                if len(body) > MAX_BODY or len(files) > MAX_FILES:
                    raise FairleadError("unsupported", f"{method}: {len(body)} bytes and {len(files)} descriptors are too much for one message")
                cost = 1, len(body), len(files)
                if self.ended is None and credit.spend(cost):
                    break
                self._turn(deadline)
        except BaseException:
            close_all(files)
            raise
        self._lane.put(kind, id, 0, body, files)
        return cost

    def _turn(self, deadline):
        """Waits for the socket, and takes the frame that has come whole, if one has. It raises what the session ended with, and TimeoutError."""
        if self.ended is None:
            try:
                frame = self._lane.turn(deadline)
                if frame is not None:
                    try:
                        self._take(frame)
                    finally:
                        close_all(frame.files)  # whoever takes one removes it
            except Lost:
                self._let_go(FairleadError("interrupted", "the peer was lost"))
            except Violation as e:
                self._end(FairleadError(e.code, e.text))
        if self.ended is not None:
            raise self.ended

    def _take(self, frame):
        if frame.version == 0:
            large = self._streams.take(frame)
            return self._take_large(*large) if large else None
        if frame.count and (frame.kind not in (REQUEST, REPLY, ONE_WAY) or frame.flags & ERROR):
            raise Violation("malformed", f"descriptors with a frame of kind {frame.kind}")
        if frame.id == 0 and frame.kind in (REQUEST, REPLY, FLUSH):
            raise Violation("malformed", f"a frame of kind {frame.kind} with id 0")
        if frame.kind == REQUEST:
            self._refuse(frame)
        elif frame.kind == REPLY:
            self._take_reply(frame)
        elif frame.kind == ONE_WAY:
            self._take_one_way(frame)
        elif frame.kind == NOTICE:
            self._take_notice(read_map(frame.body))
        elif frame.kind == END:
            end = read_error(frame.body)
            self._let_go(FairleadError("interrupted", end.text, end.origin) if end.code in LOST else end)
        elif frame.kind == FLUSH:  # all that came before has been taken
            self._lane.put(REPLY, frame.id, 0, pack(None))
        elif frame.kind != CANCEL:  # what it cancels has been answered
            raise Violation("malformed", f"a frame of kind {frame.kind} in a session")

    def _refuse(self, frame):
        method, _, _ = read_message(frame)
        code, text = "unknown_method", f"this client has no method {method}"
        if frame.cut:
            code, text = "over_quota", "the descriptors did not all arrive"
        self._lane.put(REPLY, frame.id, ERROR, pack({"c": code, "t": text, "o": "peer"}))

    def _take_reply(self, frame):
        request = self._requested.get(frame.id)
        if request is None or request.reply is not None:
            raise Violation("malformed", f"a reply to {frame.id}, which is no request")
        self._requests.give_back(request.cost)
        request.reply = frame._replace(files=frame.files[:])
        frame.files.clear()
        self._settle(frame.id)

    def _take_large(self, id, body):
        if id in self._requested:  # its reply's frame has come, or comes
            self._requested[id].large = body
            self._settle(id)

    def _settle(self, id):
        """Hands a reply over that has come whole."""
        request = self._requested[id]
        reply = request.reply
        if reply is None or (reply.flags & LARGE and request.large is None):
            return
        del self._requested[id]
        if request.waited:
            self._replies[id] = reply._replace(body=request.large) if reply.flags & LARGE else reply
        else:
            close_all(reply.files)

    def _take_one_way(self, frame):
        method, value, size = read_message(frame)
        try:
            if self._on_message is not None and not frame.cut:
                self._on_message(method, value, frame.files)
        finally:
            self._lane.put(NOTICE, body=pack({"n": "handled", "c": 1, "b": size, "d": frame.count}))
            self._lane.write()

    def _take_notice(self, notice):
        name = get(notice, "n", "")
        if name == "terminating":
            self.terminating = True
        elif name == "facts":
            self.facts = get(notice, "f", {})
        elif name == "handled":
            if get(notice, "c", 0) > len(self._unhandled):
                raise Violation("malformed", "more messages were handled than were sent")
            for _ in range(get(notice, "c", 0)):  # in the order they were sent: how many is enough
                self._one_ways.give_back(self._unhandled.popleft())

    def _end(self, error):
        """Tells the peer that the session ends, and waits until it lets go."""
        until = time.monotonic() + GOODBYE
        self._lane.put(END, body=pack({"c": error.code, "o": "peer", "t": error.text[:256]}))
        try:
            said = False
            while True:
                if not said and not self._lane.unsent():
                    self._lane.end_writing()
                    said = True
                frame = self._lane.turn(until)
                if frame is not None:
                    close_all(frame.files)
        except (Lost, OSError, Violation):  # TimeoutError is an OSError
            self._let_go(error)

    def _let_go(self, error):
        self.ended = error
        self._lane.close()
        for reply in [*self._replies.values(), *(r.reply for r in self._requested.values() if r.reply)]:
            close_all(reply.files)
        self._replies.clear()
        self._requested.clear()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _value(reply, takes):
    """The value of a reply. The keys in takes are descriptors."""
    taken = {}
    try:
        if reply.flags & ERROR:
            raise read_error(reply.body)
        if reply.cut:
            raise FairleadError("over_quota", "the descriptors did not all arrive: too many files are open here")
        value = read(reply.body) if reply.body else None
        named = {key: value[key] for key in takes if value.get(key) is not None}
        if len(set(named.values())) < len(named) or any(i not in range(len(reply.files)) for i in named.values()):
            raise Violation("malformed", "the reply names a descriptor that did not come, or one twice")
        taken = {key: reply.files[i] for key, i in named.items()}
        return {**value, **taken} if taken else value
    except (Violation, AttributeError, TypeError) as e:
        raise FairleadError("malformed", str(e)) from None
    finally:
        close_all(fd for fd in reply.files if fd not in taken.values())


def deadline_in(timeout):
    return None if timeout is None else time.monotonic() + timeout


def left_until(deadline):
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def milliseconds_until(deadline):
    """The time that is left, as the protocol has it."""
    return 0 if deadline is None else max(1, int(left_until(deadline) * 1000))
