"""msgpack, as far as Fairlead needs it: nil, bool, int, float, str, bin, list and dict. What is read is not trusted.

Of the ext types a timestamp, as Go's time.Time is, is read as an int: Unix time in nanoseconds. None is written.
"""

import struct

DEEPEST = 32  # lists and dicts within each other

_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
_SHORT = {dict: (0x80, 16), list: (0x90, 16), str: (0xA0, 32), bytes: (0, 0)}  # the code of length 0, and the first length without such a code
_SIZED = {
    0xC4: (bytes, "B"), 0xC5: (bytes, "H"), 0xC6: (bytes, "I"), 0xD9: (str, "B"), 0xDA: (str, "H"), 0xDB: (str, "I"),
    0xDC: (list, "H"), 0xDD: (list, "I"), 0xDE: (dict, "H"), 0xDF: (dict, "I"),
}

_TIMESTAMPS = {0xD6: 4, 0xD7: 8}  # codes of ext types of a fixed length
_EXT8 = 0xC7
_TIMESTAMP = -1  # msgpack's own ext type


def pack(value, other=None, depth=0):
    """The bytes of value. What has no type of msgpack's is given to other, which returns what stands for it."""
    if value is None or isinstance(value, bool):
        return bytes([{None: 0xC0, False: 0xC2, True: 0xC3}[value]])
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack("b", value)
        return _shortest(range(0xD0, 0xD4) if value < 0 else range(0xCC, 0xD0), _NUMBERS, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        data = value.encode()
        return _head(str, len(data)) + data
    if isinstance(value, (bytes, bytearray)):
        return _head(bytes, len(value)) + value
    if not isinstance(value, (list, tuple, dict)):
        if other is None:
            raise TypeError(f"{type(value).__name__} is no type of msgpack's")
        return pack(other(value), None, depth)
    if depth == DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return _head(dict, len(value)) + b"".join(pack(part, other, depth + 1) for item in value.items() for part in item)
    return _head(list, len(value)) + b"".join(pack(item, other, depth + 1) for item in value)


def _head(kind, length):
    first, below = _SHORT[kind]
    if length < below:
        return bytes([first | length])
    sizes = {code: size for code, (what, size) in _SIZED.items() if what is kind}
    return _shortest(sizes, sizes, length)


def _shortest(codes, formats, n):
    for code in codes:
        try:
            return struct.pack(">B" + formats[code], code, n)
        except struct.error:
            pass
    raise ValueError(f"{n} is too much")


def unpack(data):
    """The one value that data is. Anything else is a ValueError."""
    value, end = unpack_from(data, 0)
    if end != len(data):
        raise ValueError("something follows the value")
    return value


def unpack_from(data, at, depth=0):
    """The value that begins at an index, and the index behind it."""
    code, at = _number("B", data, at)
    if code < 0x80 or code >= 0xE0:
        return code if code < 0x80 else code - 256, at
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        return _number(_NUMBERS[code], data, at)
    if code in _TIMESTAMPS or code == _EXT8:
        return _timestamp(code, data, at)
    if code < 0xC0:
        kind = dict if code < 0x90 else list if code < 0xA0 else str
        length = code - _SHORT[kind][0]
    elif code in _SIZED:
        kind, size = _SIZED[code]
        length, at = _number(size, data, at)
    else:
        raise ValueError(f"{code:#x} is no type that Fairlead uses")
    parts = 2 * length if kind is dict else length
    if parts > len(data) - at:
        raise ValueError("a length is beyond the end")
    if kind in (str, bytes):
        return (data[at:at + parts].decode() if kind is str else data[at:at + parts]), at + parts  # a UnicodeDecodeError is a ValueError
    if depth == DEEPEST:
        raise ValueError("nested too deeply")
    items = []
    for _ in range(parts):
        item, at = unpack_from(data, at, depth + 1)
        items.append(item)
    try:
        return (items if kind is list else dict(zip(items[::2], items[1::2]))), at
    except TypeError:
        raise ValueError("a key is a list or a map") from None


def _timestamp(code, data, at):
    """The Unix time in nanoseconds of a timestamp in one of its three forms, and the index behind it."""
    length, at = _number("B", data, at) if code == _EXT8 else (_TIMESTAMPS[code], at)
    kind, at = _number("b", data, at)
    if kind != _TIMESTAMP or length not in (4, 8, 12):
        raise ValueError(f"ext type {kind} of {length} bytes is none that Fairlead uses")
    if length == 12:
        nanoseconds, at = _number("I", data, at)
        seconds, at = _number("q", data, at)
    else:
        number, at = _number("I" if length == 4 else "Q", data, at)
        nanoseconds, seconds = (0, number) if length == 4 else divmod(number, 1 << 34)
    if nanoseconds >= 1_000_000_000:
        raise ValueError("a timestamp has more nanoseconds than a second")
    return seconds * 1_000_000_000 + nanoseconds, at


def _number(form, data, at):
    try:
        return struct.unpack_from(">" + form, data, at)[0], at + struct.calcsize(">" + form)
    except struct.error:
        raise ValueError("a length is beyond the end") from None


def parts(data):
    """The keys of the map that data is, each with the bytes of its value."""
    if not isinstance(unpack(data), dict):
        raise ValueError("no map")
    at, found = {0xDE: 3, 0xDF: 5}.get(data[0], 1), {}
    while at < len(data):
        key, start = unpack_from(data, at)
        _, at = unpack_from(data, start)
        found[key] = data[start:at]
    return found
