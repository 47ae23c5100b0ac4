"""Become a program that the system kills when its supervisor dies: PARENT REPORT COMMAND…

`ChildProcess` runs this file as a script, in an interpreter of its own without Django: where a
process has threads, no Python code may run between fork and exec. PARENT is the process id of the
supervisor. If the program cannot be run, the error number is written to the descriptor REPORT,
which the program does not inherit.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
_IGNORED = ("SIGPIPE", "SIGXFSZ")  # by Python itself, and a program would inherit that


def main(parent: str, report: str, *command: str) -> int:
    """Run the program in this process; return only if it cannot be run."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback at Ctrl-C
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    _die_with(int(parent))
    os.set_inheritable(int(report), False)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(int(report), b"%d" % (error.errno or errno.EINVAL))
    except ValueError:  # of a program without a name, as of a variable that is not set
        os.write(int(report), b"%d" % errno.ENOENT)
    return 1


def _die_with(parent: int) -> None:
    """Make the system kill this process when the thread of its parent ends that has started it.

    Linux keeps this across exec, except for programs that are set-user-ID. Elsewhere there is no
    such call, and none where Python was built without ctypes.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes
    except ImportError:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has died before the call
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
