"""Errors of the operating system in words of ours: what is wrong, and where that helps, what to do."""

import errno

SAID = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a file lies where its path has a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EEXIST: "something of this name is there already",
    errno.ENOTEMPTY: "the folder is not empty",
    errno.EACCES: "this user has no permission",
    errno.EPERM: "this user has no permission",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "this user's share of the disk is used up",
    errno.EFBIG: "the file is larger than the file system or the limits of this user allow",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its links lead in a circle",
    errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "the machine has no memory left",
    errno.EAGAIN: "the machine or this user has no room for a further process or thread",
    errno.EIO: "the disk or its network does not answer as it should",
    errno.ESTALE: "the network file system has lost the file: mount it again",
    errno.ETXTBSY: "a process runs the file",
    errno.EBUSY: "another process uses it",
    errno.ENOEXEC: "it is no program",
    errno.EXDEV: "it lies on another disk",
    errno.EADDRINUSE: "another process has this port",
    errno.EADDRNOTAVAIL: "this machine does not have this address",
    errno.ECONNREFUSED: "nothing listens there",
    errno.ECONNRESET: "the other side has closed the connection",
    errno.EPIPE: "the other side has closed the connection",
    errno.EHOSTUNREACH: "no way leads to the host",
    errno.ENETUNREACH: "no way leads to the network",
    errno.ETIMEDOUT: "no answer came in time",
}
"""By number, as Linux and macOS have them."""


def told(error: BaseException) -> str:
    """Why a call failed, as a phrase without number and path. An error that is not of the operating system
    keeps its own words, on one line.

    So does an OSError of a library: the number of an ssl.SSLError is OpenSSL's, that of a socket.gaierror is the
    resolver's, and errors of HTTP clients take over either.
    """
    is_of_python = type(error).__module__ == OSError.__module__
    if is_of_python and isinstance(error, OSError) and error.errno in SAID:
        return SAID[error.errno]
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()) or type(error).__name__
