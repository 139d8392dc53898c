"""Checks this client against the protocol's vectors, files of wire/testdata: python3 vectors.py frames|session FILE

frames: each frame is read, and written again as it is. session: a session does with the frames what the vector says.
"""

import socket
import sys
import time

import session as sessions
from frames import END, ERROR, FLUSH, HEADER, REPLY, Lane, Lost
from msgpack import pack, unpack

PATIENCE = 10.0
LAST = 99  # the id of the flush that is sent behind each vector
NO_VALUE = 33  # data: the one kind whose body is no msgpack


def vectors(path):
    """The name and the frames, as header and body, of each vector."""
    with open(path, encoding="utf-8") as f:
        for paragraph in f.read().split("\n\n"):
            title, *frames = [line for line in paragraph.split("\n") if line and not line.startswith("#")] or [""]
            if title:
                yield title, [tuple(map(bytes.fromhex, frame.split(" "))) for frame in frames]


def check_frames(_, frames):
    for header, body in frames:
        version, kind, files, flags, id, length = HEADER.unpack(header)
        assert version == 1 and length == len(body)
        assert HEADER.pack(version, kind, files, flags, id, length) == header
        if body and kind != NO_VALUE:
            assert pack(unpack(body)) == body  # the protocol asks for the same value only


def check_session(title, frames):
    """The vectors' session serves echo, this client nothing: what that replies to, or answers with an error, this answers with unknown_method."""
    outcome = title.split(": ")[1]
    ours, theirs = socket.socketpair()
    session, peer, seen = sessions.Session(Lane(ours), {}, {}, [], None), Lane(theirs), []
    for header, body in frames:
        theirs.sendall(header + body)
    peer.put(FLUSH, LAST)
    peer.write()
    until = time.monotonic() + PATIENCE
    while session.ended is None and (LAST, None) not in seen and time.monotonic() < until:
        session.wait(0.01)
        seen += received(peer)
    seen += received(peer)
    end = session.ended
    session.close()
    theirs.close()
    if outcome == "end":
        assert end.code == "interrupted" and seen == [], (end, seen)
    elif outcome.startswith("fatal "):
        code = outcome.split(" ")[1]
        assert end.code == code and seen == ([] if end.origin == "peer" else [(0, code)]), (end, seen)
    else:
        answer = []
        if outcome != "ignored":
            answer = [(7, None if frames[0][0][1] == FLUSH else "unknown_method")]
        assert end is None and seen == answer + [(LAST, None)], (end, seen)


def received(peer):
    """The replies and the end that the peer has received: of each its id, and the code if it has one."""
    seen = []
    try:
        while True:
            frame = peer.turn(0)
            if frame is not None and frame.kind in (REPLY, END):
                seen.append((frame.id, unpack(frame.body)["c"] if frame.kind == END or frame.flags & ERROR else None))
    except (TimeoutError, Lost):
        return seen


def main(what, path):
    sessions.GOODBYE = 0  # nobody here lets go of a session that has ended
    check = {"frames": check_frames, "session": check_session}[what]
    checked = failed = 0
    for title, frames in vectors(path):
        try:
            check(title, frames)
        except Exception as e:
            print(f"{title}: {type(e).__name__}: {e}", file=sys.stderr)
            failed += 1
        checked += 1
    print(f"{checked - failed} of {checked}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
