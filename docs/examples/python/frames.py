"""Frames of Fairlead's version 1, and their descriptors, on a Unix socket."""

import array
import collections
import math
import os
import select
import socket
import struct
import time

HEADER = struct.Struct(">BBBBII")  # version, kind, files, flags, id, length. yamux: version, type, flags (two bytes), stream, length
MAX_BODY = 65536
MAX_FILES = 16
YAMUX_DATA = 0  # the one type of yamux's frames whose length counts bytes that follow
MAX_YAMUX_DATA = 384 << 10

OPEN, ROUTED, ACCEPTED, REFUSED = 1, 2, 3, 4
REQUEST, REPLY, CANCEL, ONE_WAY, NOTICE, END, FLUSH = range(16, 23)
ERROR, LARGE, FLAGS = 1, 2, 7
KINDS = (ROUTED, ACCEPTED, REFUSED, REQUEST, REPLY, CANCEL, ONE_WAY, NOTICE, END, FLUSH)  # that come to a client

_UNSENT = 64  # with so many frames unsent nothing more is read
_ROOM = socket.CMSG_SPACE(253 * array.array("i").itemsize)  # for all the descriptors that one sendmsg can have


class Lost(Exception):
    """The peer is gone: its socket is closed."""


class Violation(Exception):
    """What the peer did is fatal to the session."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


Frame = collections.namedtuple("Frame", "version kind count flags id length body files cut")
Frame.__doc__ = "A frame that was read. Its reader owns the descriptors in files; cut says that they did not all come."


class Lane:
    """The frames on a socket, both ways. Only turn waits. It fails with Lost and Violation."""

    def __init__(self, sock):
        sock.setblocking(False)
        self._sock = sock
        self._poll = select.poll()
        self._bytes, self._files, self._cut = bytearray(), [], False  # of the frame that is being read
        self._unsent = collections.deque()  # of each frame the bytes, and the descriptors to go with the first of them

    def put(self, kind, id=0, flags=0, body=b"", files=()):
        """Queues a frame. Its descriptors are closed when they have left."""
        self._unsent.append((memoryview(HEADER.pack(1, kind, len(files), flags, id, len(body)) + body), files))

    def put_yamux(self, kind, flags, stream, length):
        """Queues a frame of yamux, without data."""
        self._unsent.append((memoryview(HEADER.pack(0, kind, 0, flags, stream, length)), ()))

    def unsent(self):
        return len(self._unsent) > 0

    def turn(self, deadline):
        """Waits until the socket can be used, and uses it. Returns the frame that it has read the last of, or None. TimeoutError after the deadline."""
        left = 3600 if deadline is None else min(3600, max(0, deadline - time.monotonic()))
        self._poll.register(self._sock, (select.POLLIN if len(self._unsent) < _UNSENT else 0) | (select.POLLOUT if self._unsent else 0))
        events = self._poll.poll(math.ceil(left * 1000))
        if not events:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError
            return None
        try:
            if events[0][1] & select.POLLOUT:
                self.write()
            return self._read() if events[0][1] & ~select.POLLOUT else None
        except (Lost, Violation, OSError):
            raise
        except BaseException:  # a signal's handler has raised, and nobody knows what was sent or read
            self._sock.shutdown(socket.SHUT_RDWR)
            raise

    def write(self):
        """Writes as much as the socket takes at once."""
        while self._unsent:
            data, files = self._unsent[0]
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
            try:
                n = self._sock.sendmsg([data], control)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):  # nobody reads it; what the peer wrote before, as its end, is still to be read
                self._drop_unsent()
                return
            close_all(files)
            self._unsent[0] = (data[n:], ())
            if n == len(data):
                self._unsent.popleft()

    def _read(self):
        """Reads what is still missing of a header, or of a body, and not a byte more. So descriptors come with the first byte of their own frame."""
        missing = HEADER.size - len(self._bytes)
        if missing <= 0:
            missing += self._length()
        try:
            data, control, flags, _ = self._sock.recvmsg(missing, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except OSError as e:
            raise Lost from e
        if not data:
            raise Lost
        files, cut = array.array("i"), flags & socket.MSG_CTRUNC != 0
        for level, kind, content in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(content[:len(content) - len(content) % files.itemsize])
        if self._bytes and (files or cut):
            close_all(files)
            raise Violation("malformed", "descriptors within a frame")
        if files or cut:
            self._files, self._cut = list(files), cut
        self._bytes += data
        if len(self._bytes) < HEADER.size or len(self._bytes) < HEADER.size + self._length():
            return None
        return self._whole()

    def _length(self):
        """The length of the body, whose header is there and is checked."""
        version, kind, count, flags, _, length = HEADER.unpack_from(self._bytes)
        if version == 0:
            if kind == YAMUX_DATA and length > MAX_YAMUX_DATA:
                raise Violation("malformed", f"{length} bytes of data at once")
            return length if kind == YAMUX_DATA else 0
        if version != 1:
            raise Violation("unsupported", f"version {version}")
        if kind not in KINDS or flags & ~FLAGS or count > MAX_FILES or length > MAX_BODY:
            raise Violation("malformed", f"a frame of kind {kind} with flags {flags}, {count} descriptors and {length} bytes")
        return length

    def _whole(self):
        version, kind, count, flags, id, length = HEADER.unpack_from(self._bytes)
        said = count if version == 1 else 0
        if said != len(self._files) and not (said and self._cut):
            raise Violation("malformed", f"{len(self._files)} descriptors with a frame that says {said}")
        if self._cut:
            close_all(self._files)
            self._files = []
        frame = Frame(version, kind, count, flags, id, length, bytes(self._bytes[HEADER.size:]), self._files, self._cut)
        self._bytes, self._files, self._cut = bytearray(), [], False
        return frame

    def end_writing(self):
        self._sock.shutdown(socket.SHUT_WR)

    def close(self):
        self._drop_unsent()
        close_all(self._files)
        self._files = []
        self._sock.close()

    def _drop_unsent(self):
        for _, files in self._unsent:
            close_all(files)
        self._unsent.clear()


def close_all(files):
    for fd in files:
        os.close(fd)
