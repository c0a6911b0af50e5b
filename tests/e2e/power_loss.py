"""The records that recorder.c made of a program's calls below a folder, and the states of that folder that a failing power may
leave: those which a POSIX file system allows without further promises.

Bytes that were not flushed are there, missing or torn between sectors, in any order. Names that were not flushed with
their folder are there or not: in any order that respects what they need (`STRICT`), or in the order of the calls on
each drive, where a flushed file brings the names of before with it (`JOURNAL`). Nothing is lost where only the process
died (`KILLED`)."""

import hashlib
import os
import re
import shutil
import struct

HEAD = struct.Struct("<IIQQQ")
SECTOR = 512
KILLED, JOURNAL, STRICT = "killed", "journal", "strict"
# The fields of a superblock (io/store/format.h).
COMMIT_MAGIC, COMMIT_STEP = b"SWCOMMIT", struct.Struct("<56xq")
RANK_FOLDER = re.compile(r"rank-\d+-of-(\d+)(?:-tensor-(\d+))?(-8bit)?")
STORE, STORE_ID = "store.spillway", slice(32, 48)


class Node:
    """A file or a folder, whatever its names are."""

    def __init__(self, path, folder, content=b"", since=-1):
        self.path, self.folder, self.content, self.since = path, folder, content, since
        self.calls = []  # of a file: indices of writes and of changes of its size
        self.flushes = []  # when a flush that ended began, and when it ended


class Change:
    """A change of some of a folder's names: the node under each from then on, None for nothing."""

    def __init__(self, at, folder, names, drive):
        self.at, self.folder, self.names, self.drive = at, folder, names, drive
        self.needs = []


class Recording:
    def __init__(self, root, log, apart):
        """apart: a folder whose stores are another run's."""
        self.apart = apart
        self.root, self.log, self.nodes, self.all, self.names = root, log, {}, [], {}
        self.root_node = self._read_base(root)
        self.base = {node: dict(names) for node, names in self.names.items()}
        self.calls, self.changes = [], []
        self.begins, self.commands = [], []  # of the commands: where in the log, and at which call
        open(log, "wb").close()

    def environment(self, library):
        """Returns the environment of the next command, and notes where its records begin."""
        self.begins.append(os.path.getsize(self.log))
        return {**os.environ, "LD_PRELOAD": library, "SW_RECORD_TO": self.log, "SW_RECORD_BELOW": self.root}

    def _read_base(self, path):
        node = Node(path, os.path.isdir(path))
        self._know(os.stat(path).st_ino, node)
        if not node.folder:
            with open(path, "rb") as file:
                node.content = file.read()
            return node
        self.names[node] = {name: self._read_base(os.path.join(path, name)) for name in sorted(os.listdir(path))}
        return node

    def _know(self, inode, node):
        """By its inode, until another file gets that."""
        self.nodes[inode] = node
        self.all.append(node)

    def _find(self, path):
        """The folder of a path, and its name in it; None where the folder was not recorded."""
        at = self.root_node
        *folders, name = os.path.relpath(path, self.root).split("/")
        for folder in folders:
            at = self.names.get(at, {}).get(folder)
        return at, name

    def read(self):
        with open(self.log, "rb") as file:
            data = file.read()
        at, begun, last = 0, {}, {}
        while at < len(data):
            while self.begins and self.begins[0] <= at:
                self.begins.pop(0)
                self.commands.append(len(self.calls))
            kind, count, call, inode, offset = HEAD.unpack_from(data, at)
            payload = data[at + HEAD.size:at + HEAD.size + count]
            at += HEAD.size + count
            self._take(chr(kind), call, inode, offset, payload, begun, last)
        return self

    def _take(self, kind, call, inode, offset, payload, begun, last):
        now = len(self.calls)
        if kind in "cmdur":
            paths = [self._find(path) for path in payload.decode().split("\0")]
            self._change(kind, now, inode, paths, payload.decode(), last)
        elif kind == "e":
            began = begun.pop(call, None)
            if began is not None and self.calls[began][0] == "f":
                self.calls[began][1].flushes.append((began, now))
            elif began is not None:
                self.calls[began][4] = now
        elif inode in self.nodes:
            node = self.nodes[inode]
            if kind in "wta":
                node.calls.append(now)
            if call:
                begun[call] = now
            # A call has ended only when its end is recorded.
            self.calls.append([kind, node, offset, payload, None if call else now])
            return
        self.calls.append([kind, None, 0, payload, now])

    def _change(self, kind, now, inode, paths, path, last):
        (folder, name), names = paths[0], {}
        if folder is None:
            return
        if kind in "cm":
            node = Node(path, kind == "m", since=now)
            self._know(inode, node)
            names[name] = node
            if node.folder:
                self.names[node] = {}
        elif kind == "r":
            names[name], names[paths[1][1]] = None, self.names[folder].get(name)
        else:
            names[name] = None
        drive = os.path.relpath(paths[0][0].path, self.root).split("/")[0]
        change = Change(now, folder, names, drive)
        gone = self.names[folder].get(name)
        change.needs = [last[folder, each] for each in names if (folder, each) in last]
        if kind == "d":
            change.needs += [earlier for earlier in self.changes if earlier.folder is gone]
        last.update({(folder, each): change for each in names})
        self.changes.append(change)
        self._apply(self.names, change)

    @staticmethod
    def _apply(tree, change):
        for name, node in change.names.items():
            if node is None:
                tree[change.folder].pop(name, None)
            else:
                tree.setdefault(change.folder, {})[name] = node

    @staticmethod
    def _flushed(node, now):
        """Before which call all of a file, or all names of a folder, had been flushed at this one."""
        return max((began for began, ended in node.flushes if ended <= now), default=-1)

    def _lasting(self, now, mode):
        """The changes of names that cannot be lost any more."""
        found = set()

        def add(change):
            if change not in found:
                found.add(change)
                for need in change.needs:
                    add(need)

        before = {}
        if mode == JOURNAL:
            for node in self.all:
                drive = os.path.relpath(node.path, self.root).split("/")[0]
                before[drive] = max(before.get(drive, -1), self._flushed(node, now))
        for change in self.changes:
            if change.at <= now and (mode == KILLED or change.at < self._flushed(change.folder, now)
                                     or change.at < before.get(change.drive, -1)):
                add(change)
        return found

    def _chosen(self, now, mode, draw):
        done = [change for change in self.changes if change.at <= now]
        lasting = self._lasting(now, mode)
        if mode == JOURNAL:
            chosen = set()
            for drive in {change.drive for change in done}:
                there = [change for change in done if change.drive == drive]
                least = max((i + 1 for i, change in enumerate(there) if change in lasting), default=0)
                chosen.update(there[:draw.randint(least, len(there))])
            return [change for change in done if change in chosen]
        chosen, share = set(lasting), draw.choice([0.0, 0.3, 0.7, 1.0])
        for change in done:
            if draw.random() < share and all(need in chosen for need in change.needs):
                chosen.add(change)
        return [change for change in done if change in chosen]

    @staticmethod
    def _resize(content, size):
        if size < len(content):
            del content[size:]
        else:
            content.extend(bytes(size - len(content)))

    def _size(self, content, call):
        kind, _, offset, payload, _ = call
        if kind == "t":
            self._resize(content, offset)
        elif kind == "a" or offset + len(payload) > len(content):
            self._resize(content, max(len(content), offset + len(payload)))

    def _content(self, node, now, mode, draw):
        content = bytearray(node.content)
        calls = [self.calls[i] for i in node.calls if i <= now]
        flushed = now + 1 if mode == KILLED else self._flushed(node, now)
        lasting = [call[4] is not None and call[4] < flushed for call in calls]
        for call, lasts in zip(calls, lasting):
            if lasts:
                self._size(content, call)
                if call[0] == "w":
                    content[call[2]:call[2] + len(call[3])] = call[3]
        loose = [call for call, lasts in zip(calls, lasting) if not lasts]
        for call in loose[:draw.randint(0, len(loose))]:
            self._size(content, call)
        writes = [call for call in loose if call[0] == "w"]
        if draw.random() < 0.3:
            draw.shuffle(writes)
        for call in writes:
            self._tear(content, call[2], call[3], draw)
        return bytes(content)

    @staticmethod
    def _tear(content, offset, payload, draw):
        """Some of the sectors of a write, as far as the file reaches."""
        end = min(offset + len(payload), len(content))
        how = draw.choice(["all", "none", "first", "some"])
        if how == "none" or end <= offset:
            return
        if how == "first":
            end = offset + draw.randint(0, end - offset) // SECTOR * SECTOR
        at = offset
        while at < end:
            until = min(end, (at // SECTOR + 1) * SECTOR) if how == "some" else end
            if how != "some" or draw.random() < 0.5:
                content[at:until] = payload[at - offset:until - offset]
            at = until

    def state(self, now, mode, draw):
        """Relative paths with their bytes, None for folders, as a death after a call may leave them."""
        tree, found = {node: dict(names) for node, names in self.base.items()}, {}
        for change in self._chosen(now, mode, draw):
            self._apply(tree, change)

        def walk(node, path):
            for name, child in sorted(tree.get(node, {}).items()):
                below = os.path.join(path, name)
                found[below] = None if child.folder else self._content(child, now, mode, draw)
                if child.folder:
                    walk(child, below)

        walk(self.root_node, "")
        return found

    def moments(self):
        """The last calls of crashes: all, and those beside which names change or something is flushed."""
        near = {max(0, change.at + by) for change in self.changes for by in (-1, 0)}
        near |= {i for i, call in enumerate(self.calls) if call[0] in "ef"}
        return range(len(self.calls)), sorted(near)

    def command_at(self, call):
        return sum(begin <= call for begin in self.commands)

    @staticmethod
    def _record_offsets(content):
        """Where a store's file has commit records."""
        found, at = set(), content.find(COMMIT_MAGIC)
        while at >= 0:
            found.add(at)
            at = content.find(COMMIT_MAGIC, at + 1)
        return found

    def _steps_of(self, node, now, before):
        """Returns, for a store's file: its identity, the step that lasts (or None), all that it may show, and whether its last
        commit is being taken back or has been (`--durability none`)."""
        lasting, steps = (None, []) if node.since >= 0 else (before[0], [step for step in before if step is not None])
        identity, withdrawn = node.content[STORE_ID] if node.since < 0 else None, False
        records = self._record_offsets(node.content)
        for i in node.calls:
            kind, _, offset, payload, ended = self.calls[i]
            if i > now or kind != "w":
                continue
            lasts = ended is not None and any(ended < began and done <= now for began, done in node.flushes)
            if payload[:len(COMMIT_MAGIC)] == COMMIT_MAGIC:
                records.add(offset)
                identity, step = payload[STORE_ID], COMMIT_STEP.unpack_from(payload)[0]
                lasting, steps = (step, [step]) if lasts else (lasting, [*steps, step])
                withdrawn = withdrawn and not lasts
            elif offset in records and not any(payload):
                lasting, steps, withdrawn = None, [] if lasts else steps, True
        return identity, lasting, steps, withdrawn

    def commits(self, now, before, own=None):
        """The oldest and the newest step that a run may stand at, as the newest stores of all its ranks that have a
        commit say; None: none lasts. before: the same of stores of before the recording. own: of how many ranks, of tensor
        groups of which size and with which form in their folder's name the run's own were then, as others may be left of
        a change; None: not known."""
        sets = {}
        for node in self.all:
            if os.path.basename(node.path) != STORE or node.since > now or node.path.startswith(self.apart):
                continue
            identity, lasting, steps, withdrawn = self._steps_of(node, now, before)
            named = RANK_FOLDER.match(os.path.basename(os.path.dirname(node.path)))
            layout = (int(named[1]), int(named[2] or 1), named[3] or "") if named else (1, 1, "")
            if node.since < 0 and own not in (None, layout):
                continue
            key = (layout, self.command_at(node.since)) if layout[0] > 1 else (layout, identity)
            if steps or withdrawn:
                sets.setdefault(key, []).append((node.since, lasting, steps, withdrawn))
        found = (None, None)
        for ((ranks, *_), _), files in sorted(sets.items(), key=lambda each: min(file[0] for file in each[1])):
            if len(files) < ranks:
                continue
            newest = min(max(steps, default=-1) for _, _, steps, _ in files)
            if any(withdrawn for *_, withdrawn in files):
                # The run's own: what was before these stores is gone.
                found = (None, newest if newest >= 0 else None)
            elif all(lasting is not None for _, lasting, _, _ in files):
                found = (min(min(steps) for _, _, steps, _ in files), newest)
            else:
                found = (found[0], newest if found[1] is None else max(found[1], newest))
        return found


def write(root, state):
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    for path, content in state.items():
        whole = os.path.join(root, path)
        if content is None:
            os.makedirs(whole, mode=0o700)
        else:
            with open(whole, "wb") as file:
                file.write(content)


def digest(state):
    found = hashlib.sha256()
    for path, content in sorted(state.items()):
        found.update(f"{path}\0{None if content is None else len(content)}\0".encode())
        found.update(content or b"")
    return found.hexdigest()
