"""Fairlead from Python. The broker's socket is FAIRLEAD_SOCKET's, or this user's default.

Exit codes: 0 it was done, 1 it failed, 2 it was called wrongly, 69 the lease was lost.
"""

import argparse
import signal
import sys

import fairlead

PATIENCE = 10.0  # seconds for each step


def text(reply):
    """The text of a reply, which may be of any shape: it is what the service made of it."""
    if isinstance(reply, dict) and isinstance(reply.get("text"), str):
        return reply["text"]
    raise fairlead.FairleadError("malformed", f"the reply is no map with a text: {reply!r:.200}")


def echo(args):
    """has a service say TEXT"""
    with fairlead.connect(args.endpoint, timeout=PATIENCE, title="demo.py echo") as session:
        print(text(session.call("echo", {"text": args.text}, timeout=PATIENCE)))


def lease(args):
    """leases an address, and holds it until SIGINT or SIGTERM"""
    with fairlead.connect("fairlead.network", timeout=PATIENCE, title="demo.py lease") as session:
        leased = session.call("allocate", {"h": args.hostname}, timeout=PATIENCE)
        print(leased["a"][0], flush=True)
        lost = session.wait()
        print(f"demo.py: the lease is lost: {lost}", file=sys.stderr)
        return 69


def descriptor(args):
    """passes PATH, opened, to a service, and prints what it read there"""
    with open(args.path, "rb") as file, fairlead.connect(args.endpoint, timeout=PATIENCE, title="demo.py descriptor") as session:
        print(text(session.call("cat", {"file": fairlead.Descriptor(file)}, timeout=PATIENCE)), end="")


def main():
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, arguments in ((echo, ("endpoint", "text")), (lease, ()), (descriptor, ("endpoint", "path"))):
        sub = commands.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        sub.set_defaults(run=command)
        for argument in arguments:
            sub.add_argument(argument, metavar=argument.upper())
        if command is lease:
            sub.add_argument("hostname", metavar="HOSTNAME", nargs="?", default="")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return args.run(args) or 0
    except KeyboardInterrupt:
        return 0 if args.run is lease else 130
    except fairlead.FairleadError as e:
        holder = e.holder and f" (held by process {e.holder.get('p')}, uid {e.holder.get('u', 0)})"
        print(f"demo.py: {e}{holder or ''}", file=sys.stderr)
    except OSError as e:
        print(f"demo.py: {e}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
