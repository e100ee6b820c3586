"""Storage: what a uri names, whole writes, moves that can be repeated, errors by type."""

import errno
import hashlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from nightshift.common import storage
from nightshift.common.errors import BadInput, DeleteRefused, Permanent, StorageUnavailable
from nightshift.common.storage import local, objects


class FaultyStore(MemoryFileSystem):
    """An object store in memory that raises what a test tells it to."""

    protocol = "s3"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    cachable = False
    faults: ClassVar[dict] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("s3://", "memory://", 1))

    def _maybe_fail(self, name):
        if name in self.faults:
            raise self.faults[name]

    def info(self, path, **kwargs):
        self._maybe_fail("info")
        return {**super().info(path, **kwargs), "ETag": '"abc"'}

    def cp_file(self, path1, path2, **kwargs):
        self._maybe_fail("cp_file")
        return super().cp_file(path1, path2, **kwargs)

    def rm_file(self, path):
        self._maybe_fail("rm_file")
        return super().rm_file(path)

    def put_file(self, lpath, rpath, **kwargs):
        self._maybe_fail("put_file")
        return super().put_file(lpath, rpath, **kwargs)

    def _open(self, path, mode="rb", **kwargs):
        self._maybe_fail("open")
        return super()._open(path, mode, **kwargs)


@pytest.fixture
def s3():
    """An s3:// that lives in memory; its `faults` maps a method to what it raises."""
    before = dict(_registry)
    fsspec.register_implementation("s3", FaultyStore, clobber=True)
    FaultyStore.store, FaultyStore.pseudo_dirs, FaultyStore.faults = {}, [""], {}
    yield FaultyStore
    objects.DRIVERS.pop("s3", None)
    _registry.clear()
    _registry.update(before)


@pytest.fixture(params=["local", "s3"])
def root(request, tmp_path, s3):
    """A directory on local disk, and one on an object store."""
    return str(tmp_path / "data") if request.param == "local" else "s3://bucket/data"


def put(uri: str, data: bytes = b"x") -> str:
    storage.write_bytes(uri, data)
    return uri


def named(uris) -> list[str]:
    return [info.uri for info in storage.expand([uris] if isinstance(uris, str) else uris)]


# ---------------------------------------------------------------- names


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.resolve("a/../b.parquet") == f"{tmp_path}/b.parquet"
    assert storage.resolve(f"{tmp_path}/b/") == f"{tmp_path}/b"


def test_a_file_uri_is_a_local_path():
    assert storage.resolve("file:///data/a%20b.jsonl") == "/data/a b.jsonl"
    assert storage.resolve("file://localhost/data") == "/data"


def test_object_store_names_are_one_spelling():
    assert storage.resolve("s3a://bucket/x/") == "s3://bucket/x"
    assert storage.resolve("gcs://bucket") == "gs://bucket"


@pytest.mark.parametrize("uri", ["ftp://host/x", "file://host/x", "s3://b/x::zip://y"])
def test_a_scheme_that_is_not_supported_is_bad_input(uri):
    with pytest.raises(BadInput):
        storage.resolve(uri)


def test_a_missing_driver_names_the_package():
    with pytest.raises(BadInput, match="pip install adlfs"):
        storage.expand(["abfs://container/x.parquet"])


# ---------------------------------------------------------------- expand


def test_a_directory_is_walked_sorted_and_hidden_names_are_left_out(root):
    for name in ("b.jsonl", "a/z.jsonl", "_SUCCESS", ".crc", "_attempts/p.jsonl", "a/.x/y.jsonl"):
        put(f"{root}/{name}")
    assert named(root) == [f"{root}/a/z.jsonl", f"{root}/b.jsonl"]


def test_a_glob_takes_files_and_whole_directories(root):
    for name in ("a1.jsonl", "a2.txt", "d1/x.jsonl", "d1/deep/y.jsonl", "e/x.jsonl"):
        put(f"{root}/{name}")
    assert named(f"{root}/*.jsonl") == [f"{root}/a1.jsonl"]
    assert named(f"{root}/d*") == [f"{root}/d1/deep/y.jsonl", f"{root}/d1/x.jsonl"]
    assert named(f"{root}/**/*.jsonl") == [
        f"{root}/{name}" for name in ("a1.jsonl", "d1/deep/y.jsonl", "d1/x.jsonl", "e/x.jsonl")
    ]


def test_a_wildcard_does_not_match_hidden_names_unless_it_says_so(root):
    for name in ("_a.jsonl", "b.jsonl", ".c.jsonl"):
        put(f"{root}/{name}")
    assert named(f"{root}/*.jsonl") == [f"{root}/b.jsonl"]
    assert named(f"{root}/_*.jsonl") == [f"{root}/_a.jsonl"]


def test_a_file_with_a_wildcard_in_its_name_is_that_file(root):
    put(f"{root}/a[1].jsonl")
    put(f"{root}/a1.jsonl")
    assert named(f"{root}/a[1].jsonl") == [f"{root}/a[1].jsonl"]


def test_a_list_is_sorted_over_all_of_it(root):
    put(f"{root}/b.jsonl")
    put(f"{root}/a.jsonl")
    assert named([f"{root}/b.jsonl", f"{root}/a.jsonl"]) == [f"{root}/a.jsonl", f"{root}/b.jsonl"]


def test_a_file_named_twice_is_refused(root):
    put(f"{root}/a.jsonl")
    with pytest.raises(BadInput, match="named twice"):
        named([root, f"{root}/a.jsonl"])


def test_what_is_missing_or_empty_is_bad_input(root):
    put(f"{root}/only/_hidden")
    with pytest.raises(BadInput, match="no such file"):
        named(f"{root}/nothing.jsonl")
    with pytest.raises(BadInput, match="matches no file"):
        named(f"{root}/*.csv")
    with pytest.raises(BadInput, match="no files"):
        named(f"{root}/only")


def test_a_dangling_link_is_an_error_and_not_left_out(tmp_path):
    put(f"{tmp_path}/a.jsonl")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(BadInput, match=r"b\.jsonl"):
        named(str(tmp_path))


def test_linked_folders_are_followed(tmp_path):
    put(f"{tmp_path}/real/a.jsonl")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "real")
    assert named(f"{tmp_path}/data") == [f"{tmp_path}/data/link/a.jsonl"]


def test_a_folder_is_walked_once_however_links_loop(tmp_path):
    put(f"{tmp_path}/d/a.jsonl")
    put(f"{tmp_path}/d/deep/b.jsonl")
    (tmp_path / "d" / "loop").symlink_to(".")
    (tmp_path / "d" / "deep" / "up").symlink_to(tmp_path / "d")
    once = [f"{tmp_path}/d/a.jsonl", f"{tmp_path}/d/deep/b.jsonl"]
    for uri in ("d", "d/**/*.jsonl", "d/**", "*", "**/*.jsonl"):
        assert named(f"{tmp_path}/{uri}") == once, uri
    assert storage.listing([f"{tmp_path}/d"]).again == {
        f"{tmp_path}/d/loop": f"{tmp_path}/d",
        f"{tmp_path}/d/deep/up": f"{tmp_path}/d",
    }


def test_a_link_to_itself_is_no_file_and_keeps_no_other_back(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "loop").symlink_to("loop")
    assert named(f"{tmp_path}/**/*.jsonl") == [f"{tmp_path}/a.jsonl"]
    with pytest.raises(StorageUnavailable, match="loop"):
        named(str(tmp_path))


def test_a_file_that_links_reach_twice_counts_once_and_both_paths_are_named(tmp_path):
    put(f"{tmp_path}/d/real/a.jsonl")
    put(f"{tmp_path}/e/b.jsonl")
    (tmp_path / "d" / "also").symlink_to("real")
    (tmp_path / "d" / "a.jsonl").symlink_to("real/a.jsonl")
    (tmp_path / "d" / "b1.jsonl").symlink_to(tmp_path / "e" / "b.jsonl")
    (tmp_path / "d" / "b2.jsonl").symlink_to("b1.jsonl")
    found = storage.listing([f"{tmp_path}/d"])
    assert [info.uri for info in found.files] == [
        f"{tmp_path}/d/b1.jsonl",
        f"{tmp_path}/d/real/a.jsonl",
    ]
    assert found.again == {
        f"{tmp_path}/d/a.jsonl": f"{tmp_path}/d/real/a.jsonl",
        f"{tmp_path}/d/also": f"{tmp_path}/d/real",
        f"{tmp_path}/d/b2.jsonl": f"{tmp_path}/d/b1.jsonl",
    }
    assert f"{tmp_path}/d/also is {tmp_path}/d/real" in found.remark
    both = storage.listing([f"{tmp_path}/d/b1.jsonl", f"{tmp_path}/e/b.jsonl"])
    assert [info.uri for info in both.files] == [f"{tmp_path}/e/b.jsonl"]
    assert named([f"{tmp_path}/d/a*", f"{tmp_path}/d/real"]) == [f"{tmp_path}/d/real/a.jsonl"]


def test_links_that_lead_anywhere_else_count_as_before(tmp_path):
    put(f"{tmp_path}/real/a.jsonl")
    os.link(tmp_path / "real" / "a.jsonl", tmp_path / "real" / "hard.jsonl")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "real")
    found = storage.listing([f"{tmp_path}/data"])
    assert [info.uri for info in found.files] == [
        f"{tmp_path}/data/link/a.jsonl",
        f"{tmp_path}/data/link/hard.jsonl",
    ]
    assert (found.again, found.remark) == ({}, None)


def test_a_pattern_goes_through_every_link_that_it_names(tmp_path):
    put(f"{tmp_path}/d/e/a.jsonl")
    (tmp_path / "d" / "loop").symlink_to(".")
    (tmp_path / "d" / "x").symlink_to("e")
    assert named(f"{tmp_path}/d/**/loop/e/*.jsonl") == [f"{tmp_path}/d/loop/e/a.jsonl"]
    assert named(f"{tmp_path}/d/**/x/*.jsonl") == [f"{tmp_path}/d/x/a.jsonl"]
    assert named(f"{tmp_path}/d/l*/x/*") == [f"{tmp_path}/d/loop/x/a.jsonl"]


def test_files_keep_the_paths_by_which_they_were_planned(tmp_path):
    """A release that counted a file by each path has stored each: nothing has changed for its job."""
    put(f"{tmp_path}/d/a.jsonl")
    put(f"{tmp_path}/e/b.jsonl")
    (tmp_path / "d" / "loop").symlink_to(".")
    (tmp_path / "d" / "z").symlink_to(tmp_path / "e")
    (tmp_path / "d" / "y").symlink_to(tmp_path / "e")
    found = storage.listing([f"{tmp_path}/d"])
    y, z = (f"{tmp_path}/d/{name}/b.jsonl" for name in "yz")
    a = [f"{tmp_path}/d/{'loop/' * times}a.jsonl" for times in range(41)]
    assert [info.uri for info in found.files] == [a[0], y]
    assert [info.uri for info in found.as_planned({*a, z})] == sorted([*a, z])
    assert [info.uri for info in found.as_planned({*a, y, z})] == sorted([*a, y, z])
    assert [info.uri for info in found.as_planned({y})] == [a[0], y]
    gone = f"{tmp_path}/d/loop/gone.jsonl"
    assert [info.uri for info in found.as_planned({gone})] == [a[0], y]


def test_a_file_without_permission_is_bad_input(tmp_path, monkeypatch, s3):
    put(f"{tmp_path}/a.jsonl")

    def denied(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(local, "open_file", denied)
        with pytest.raises(BadInput, match="no permission"):
            named(f"{tmp_path}/a.jsonl")
    s3.faults["info"] = PermissionError("denied")
    with pytest.raises(BadInput, match="no permission"):
        named("s3://bucket/a.jsonl")


def test_a_pipe_is_no_input(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="no regular file"):
        named(f"{tmp_path}/pipe")


@pytest.mark.parametrize("swapped", ["pipe", "socket", "device"])
def test_what_took_the_place_of_a_file_after_the_look_at_it_holds_up_nobody(tmp_path, swapped):
    path = tmp_path / "a.jsonl"
    if swapped == "pipe":
        os.mkfifo(path)
    elif swapped == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.symlink_to("/dev/null")
    for opened in (local.open_file, lambda path: local.write(path, lambda sink: None, False)):
        with pytest.raises(BadInput, match="is no regular file"):
            opened(path)


def test_the_fingerprint_is_the_etag_or_the_mtime(tmp_path, s3):
    put(f"{tmp_path}/a")
    put("s3://bucket/a")
    put("memory://fingerprint/a")
    mtime = (tmp_path / "a").stat().st_mtime_ns
    assert storage.stat(f"{tmp_path}/a") == storage.FileInfo(f"{tmp_path}/a", 1, str(mtime))
    assert storage.stat("s3://bucket/a").fingerprint == "abc"
    assert storage.stat("memory://fingerprint/a").fingerprint.isdigit()
    assert named("memory://fingerprint") == ["memory://fingerprint/a"]
    storage.delete("memory://fingerprint/a")


# ---------------------------------------------------------------- read and write


def test_a_written_file_is_read_back_with_its_facts(root):
    data = bytes(range(256)) * 9000
    written = storage.write_whole(f"{root}/new/part", lambda sink: sink.write(data))
    assert written == storage.Written(len(data), hashlib.sha256(data).hexdigest())
    assert storage.checksum(f"{root}/new/part") == written.checksum
    assert storage.stat(f"{root}/new/part").size == len(data)
    with storage.open_input(f"{root}/new/part", sequential=True) as handle:
        assert handle.read() == data
    with storage.open_input(f"{root}/new/part") as handle:
        assert handle.seek(-3, 2) == len(data) - 3
        assert handle.read() == data[-3:]


def test_a_range_ends_where_the_file_ends(root):
    put(f"{root}/a", b"0123456789")
    assert storage.read_range(f"{root}/a", 2, 3) == b"234"
    assert storage.read_range(f"{root}/a", 8, 100) == b"89"
    assert storage.read_range(f"{root}/a", 3, 0) == b""


def test_a_write_that_fails_leaves_no_file(root):
    def write(sink):
        sink.write(b"half")
        raise KeyError("no more")

    with pytest.raises(KeyError):
        storage.write_whole(f"{root}/part", write)
    assert not storage.exists(f"{root}/part")
    assert storage.list_names(root) == []


def test_a_replacing_write_that_fails_leaves_the_old_file(root):
    put(f"{root}/m", b"old")

    def write(sink):
        sink.write(b"new")
        raise KeyError("no more")

    with pytest.raises(KeyError):
        storage.write_whole(f"{root}/m", write, replace=True)
    assert storage.read_range(f"{root}/m", 0, 9) == b"old"
    assert storage.list_names(root) == ["m"]


def test_an_error_of_the_writer_is_its_own(tmp_path):
    def write(sink):
        raise FileNotFoundError("some input")

    with pytest.raises(FileNotFoundError, match="some input"):
        storage.write_whole(f"{tmp_path}/part", write)


def test_a_full_disk_is_an_outage_and_leaves_no_file(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageUnavailable, match="no space") as caught:
        storage.write_whole(f"{tmp_path}/part", lambda sink: sink.write(b"x" * 10))
    assert isinstance(caught.value.__cause__, OSError)
    assert storage.list_names(str(tmp_path)) == []


@pytest.mark.parametrize("replace", [True, False])
def test_only_regular_files_are_written_over(tmp_path, replace):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(BadInput, match="no regular file"):
            storage.write_whole(
                f"{tmp_path}/{name}", lambda sink: sink.write(b"x"), replace=replace
            )
    assert storage.list_names(str(tmp_path)) == ["folder", "pipe"]


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.EIO, "Input/output error"),
        TimeoutError("slow"),
        ConnectionResetError("reset"),
        PermissionError(errno.EACCES, "denied"),
    ],
)
def test_errors_of_a_store_are_outages_with_their_cause(s3, fault):
    put("s3://bucket/a")
    s3.faults = dict.fromkeys(["info", "put_file", "open", "rm_file"], fault)
    for call in (
        lambda: storage.stat("s3://bucket/a"),
        lambda: storage.exists("s3://bucket/a"),
        lambda: storage.open_input("s3://bucket/a"),
        lambda: storage.write_bytes("s3://bucket/a", b"x"),
        lambda: storage.delete("s3://bucket/a"),
    ):
        with pytest.raises(StorageUnavailable) as caught:
            call()
        assert caught.value.__cause__ is fault


def test_a_missing_file_is_the_callers_choice(root):
    for call in (
        storage.stat,
        storage.open_input,
        storage.checksum,
        lambda uri: storage.read_range(uri, 0, 1),
    ):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/nothing")


def test_a_path_below_a_file_is_missing(tmp_path):
    put(f"{tmp_path}/a")
    assert not storage.exists(f"{tmp_path}/a/b")
    with pytest.raises(BadInput):
        put(f"{tmp_path}/a/b/c")
    with pytest.raises(BadInput):
        storage.list_names(f"{tmp_path}/a")


# ---------------------------------------------------------------- names in a directory


def test_listing_tells_names_and_a_missing_directory_is_empty(root):
    put(f"{root}/b")
    put(f"{root}/_sub/c")
    assert storage.list_names(f"{root}/") == ["_sub", "b"]
    assert storage.list_names(f"{root}/nothing") == []


def test_directories_come_and_go_as_often_as_one_likes(root):
    put(f"{root}/x/y/file")
    storage.remove_directory(f"{root}/x/y")
    assert storage.list_names(f"{root}/x/y") == ["file"]
    storage.delete(f"{root}/x/y/file")
    storage.delete(f"{root}/x/y/file")
    storage.remove_directory(f"{root}/x/y/")
    storage.remove_directory(f"{root}/x/y/")
    assert storage.list_names(f"{root}/x/y") == []


# ---------------------------------------------------------------- move


def test_a_move_can_be_repeated(root):
    put(f"{root}/_attempts/p", b"part")
    for _ in range(2):
        storage.move(f"{root}/_attempts/p", f"{root}/p")
    assert storage.list_names(root)[-1] == "p"
    assert storage.read_range(f"{root}/p", 0, 9) == b"part"
    assert storage.list_names(f"{root}/_attempts") == []


def test_a_move_of_nothing_is_a_missing_file(root):
    with pytest.raises(FileNotFoundError):
        storage.move(f"{root}/a", f"{root}/b")


def test_a_move_never_overwrites_something_else(root):
    put(f"{root}/a", b"one")
    put(f"{root}/b", b"two")
    with pytest.raises(Permanent, match="something else"):
        storage.move(f"{root}/a", f"{root}/b")
    assert storage.read_range(f"{root}/a", 0, 9) == b"one"
    assert storage.read_range(f"{root}/b", 0, 9) == b"two"


def test_a_copy_whose_delete_failed_is_finished(s3):
    put("s3://bucket/a", b"one")
    s3.faults["rm_file"] = TimeoutError()
    with pytest.raises(StorageUnavailable):
        storage.move("s3://bucket/a", "s3://bucket/b")
    assert storage.list_names("s3://bucket") == ["a", "b"]
    s3.faults.clear()
    storage.move("s3://bucket/a", "s3://bucket/b")
    assert storage.list_names("s3://bucket") == ["b"]


def test_a_delete_that_is_refused_says_so_and_stops_no_other(s3, tmp_path):
    for name in ("a", "b"):
        put(f"{tmp_path}/{name}")
    (tmp_path / "folder").mkdir()
    (said,) = storage.delete_all(f"{tmp_path}/{name}" for name in ("a", "folder", "gone", "b"))
    assert f"{tmp_path}/folder cannot be deleted" in said
    assert storage.list_names(str(tmp_path)) == ["folder"]
    put("s3://bucket/a")
    s3.faults["rm_file"] = PermissionError("Access Denied")
    with pytest.raises(DeleteRefused):
        storage.move("s3://bucket/a", "s3://bucket/b")
    s3.faults["rm_file"] = TimeoutError()
    with pytest.raises(StorageUnavailable) as caught:
        storage.delete_all(["s3://bucket/a"])
    assert not isinstance(caught.value, DeleteRefused)


def test_many_movers_of_one_file_all_succeed(root):
    for number in range(20):
        put(f"{root}/_attempts/{number}", b"part")
        with ThreadPoolExecutor(4) as pool:
            moves = [
                pool.submit(storage.move, f"{root}/_attempts/{number}", f"{root}/{number}")
                for _ in range(4)
            ]
        for move in moves:
            move.result()
        assert storage.read_range(f"{root}/{number}", 0, 9) == b"part"


def test_syncs_sync_a_directory_once_and_only_for_their_caller(tmp_path, monkeypatch):
    synced: list[str] = []

    def note(path, wishes):
        synced.append(path.name)
        return [True] * len(wishes)

    monkeypatch.setattr(local, "synced", note)
    local.syncs_of.cache_clear()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    syncs = storage.Syncs()
    for name in "xyz":
        staged = str(tmp_path / "a" / name)
        storage.write_bytes(staged, b"1", replace=False, syncs=syncs)
        storage.move(staged, str(tmp_path / "b" / name), syncs=syncs)
    assert synced == []
    storage.write_bytes(str(tmp_path / "b" / "other"), b"x")
    assert synced == ["b"]
    syncs.finish()
    assert sorted(synced[1:]) == ["a", "b"]
    syncs.finish()
    assert len(synced) == 3
    local.syncs_of.cache_clear()
