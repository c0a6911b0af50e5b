"""spillway.io: ranges of files to and from arrays, aligned and not, whole pages and a few bytes, past the page cache and through
it; errors as exceptions. Without torch and numpy."""

import array
import os
import random
import resource
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), os.path.join(ROOT, "python")]
os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(sys.argv[1])
import script_test  # noqa: E402
from spillway import StoreArgumentError, StoreError  # noqa: E402
from spillway import io  # noqa: E402

MIB, PAGE, SEED = 1 << 20, 4096, 3


def in_folder(check):
    def checked():
        with tempfile.TemporaryDirectory() as folder:
            return check(os.path.join(folder, "file"))
    checked.__name__ = check.__name__
    return checked


def view_at(count, shift):
    """`count` writable bytes, `shift` bytes behind a page's begin."""
    return memoryview(io.empty(count + shift + 1))[shift:shift + count]


@in_folder
def ranges_come_and_go(path):
    """The file is compared with one in memory after each transfer, and read by the system as well."""
    source, whole, problems = random.Random(SEED), bytearray(), []
    sizes = [1, 7, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, MIB, MIB + PAGE, 5 * MIB + 13, 40 * MIB]
    with io.File(path, write=True, depth=4, allow_buffered=True) as file:
        for count in sizes:
            for shift in (0, 1, 64):
                offset = source.choice([0, 1, PAGE, 3 * PAGE + 5, MIB])
                data = view_at(count, shift)
                data[:] = source.randbytes(count)
                whole.extend(bytes(max(0, offset + count - len(whole))))
                whole[offset:offset + count] = data
                file.write(data, offset)
                found = view_at(count, 64 - shift)
                file.read(found, offset)
                file.wait()
                problems += [] if found == data else [f"{count} bytes at {offset}, {shift} behind a page, came back wrong"]
        problems += [] if file.size() == len(whole) else [f"the file has {file.size()} bytes, not {len(whole)}"]
    with open(path, "rb") as file:
        problems += [] if file.read() == whole else ["the file differs"]
    return problems


@in_folder
def transfers_run_behind_the_program(path):
    """More of them than there is room for, in order: the last one of a range wins."""
    values = [bytes([number % 251]) * PAGE for number in range(200)]
    with io.File(path, write=True, allow_buffered=True) as file:
        numbers = [file.write(value, number % 3 * PAGE) for number, value in enumerate(values)]
        file.wait(numbers[50])
        file.flush()
        found = bytearray(3 * PAGE)
        file.read(found)
        file.wait()
    return [] if numbers == list(range(200)) and found == values[198] + values[199] + values[197] else ["the order is wrong"]


@in_folder
def transfers_that_share_bytes_keep_their_order(path):
    """Hundreds of transfers are under way, which share pages, memory, or neither; the file and the memory are those of doing one
    after the other. Some read what an earlier one of them has put behind the file's end."""
    source, span, file_bytes = random.Random(SEED), 96 * PAGE, 160 * PAGE
    memory = memoryview(io.empty(span))
    memory[:] = source.randbytes(span)
    model, whole = bytearray(memory), bytearray()
    with io.File(path, write=True, depth=8, allow_buffered=True) as file:
        for _ in range(600):
            unit = source.choice([1, 64, 512, PAGE])
            count = source.randrange(1, 24 * PAGE // unit) * unit
            begin, offset = source.randrange((span - count) // unit) * unit, source.randrange((file_bytes - count) // unit) * unit
            if source.random() < 0.5 or offset + count > len(whole):
                file.write(memory[begin:begin + count], offset)
                whole.extend(bytes(max(0, offset + count - len(whole))))
                whole[offset:offset + count] = model[begin:begin + count]
            else:
                file.read(memory[begin:begin + count], offset)
                model[begin:begin + count] = whole[offset:offset + count]
        file.flush()
        # A read before the place of a write that makes the file longer, and that waits for another one.
        far, hole = 64 * MIB, bytearray(b"x" * PAGE)
        waits = io.empty(16 * MIB)
        file.write(waits, 16 * MIB)
        file.read(waits, 16 * MIB)
        file.write(waits, far)
        file.read(hole, far - MIB)
        file.wait()
    with open(path, "rb") as file:
        problems = [] if file.read(len(whole)) == whole and hole == bytes(PAGE) else ["the file differs"]
    return problems + ([] if memory == model else ["the memory differs"])


@in_folder
def whole_arrays_are_written_and_read(path):
    data, found = array.array("d", range(1000)), array.array("d", [0.0] * 1000)
    io.write(path, data, allow_buffered=True)
    io.read(path, found, allow_buffered=True)
    io.write(path, b"abc", 8, allow_buffered=True)
    with open(path, "rb") as file:
        kept = file.read()
    return [] if found == data and kept == data.tobytes()[:8] + b"abc" + data.tobytes()[11:] else ["an array differs"]


@in_folder
def mistakes_are_refused_by_name(path):
    buffer = bytearray(2 * PAGE)
    problems = script_test.raised(StoreError, "No such file", io.read, path, buffer)
    problems += script_test.raised(StoreArgumentError, "is not a file", io.read, os.path.dirname(path), buffer)
    problems += script_test.raised(StoreArgumentError, "depth is 5000", io.write, path, buffer, depth=5000)
    io.write(path, buffer, allow_buffered=True)
    problems += script_test.raised(ValueError, "read-only", io.read, path, b"12", allow_buffered=True)
    problems += script_test.raised(ValueError, "not contiguous", io.read, path, memoryview(buffer)[::2], allow_buffered=True)
    problems += script_test.raised(StoreError, "ends at byte 8192, before byte 8193", io.read, path, buffer, 1, allow_buffered=True)
    problems += script_test.raised(StoreError, "ends at byte", io.read, path, buffer, 3 * PAGE, allow_buffered=True)
    with io.File(path, allow_buffered=True) as file:
        problems += script_test.raised(StoreArgumentError, "is open for reading", file.write, buffer)
        problems += script_test.raised(StoreArgumentError, "are no range", file.read, buffer, -1)
        problems += script_test.raised(ValueError, "has no bytes", file.read, bytearray())
        problems += script_test.raised(StoreArgumentError, "no transfer 7", file.wait, 7)
        grown = bytearray(PAGE)
        number = file.read(grown)
        problems += script_test.raised(BufferError, "re-sized", grown.extend, b"1")
        file.wait(number)
        grown.extend(b"1")
        child = os.fork()
        if child == 0:
            os._exit(0 if not script_test.raised(StoreArgumentError, "fork", file.wait) else 1)
        problems += [] if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else ["a forked wait was not refused"]
    return problems + script_test.raised(ValueError, "is closed", file.wait)


@in_folder
def checksums_are_those_of_the_bytes(path):
    """Sums that are made while blocks come back in any order are those of the whole, at any alignment. XXH3-64 of no known
    library is needed: the value of three bytes is that of its specification's reference."""
    source, problems = random.Random(SEED), []
    problems += [] if io.checksum(b"abc") == 0x78af5f94892f3950 else [f"the checksum of abc is {io.checksum(b'abc'):x}"]
    with io.File(path, write=True, allow_buffered=True) as file:
        for count in (1, PAGE, 3 * MIB + 5, 40 * MIB + 4000):
            for shift, offset in ((0, 0), (512, PAGE), (7, 5)):
                data, found = view_at(count, shift), view_at(count, 64 - shift if shift < 64 else shift)
                data[:] = source.randbytes(count)
                written = file.checksum(file.write(data, offset, checked=True))
                read = file.checksum(file.read(found, offset, checked=True))
                file.read(found, offset, expect=written)
                file.wait()
                if not written == read == io.checksum(data) or found != data:
                    problems.append(f"{count} bytes at {offset}: {written:x} was written, {read:x} read, {io.checksum(data):x} is right")
        problems += script_test.raised(ValueError, "no checksum of transfer 99", file.checksum, 99)
    return problems


@in_folder
def a_flipped_bit_is_found(path):
    data, found = random.Random(SEED).randbytes(3 * MIB + 9), bytearray(3 * MIB + 9)
    written = io.write(path, data, allow_buffered=True)
    io.read(path, found, expect=written, allow_buffered=True)
    problems = [] if found == data else ["the bytes differ"]
    for place in (0, MIB + 77, len(data) - 1):
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 16]))
        problems += script_test.raised(StoreError, f"{path}: the {len(data)} bytes from byte 0 on have the checksum", io.read, path,
                                       found, expect=written, allow_buffered=True)
        io.write(path, data[place:place + 1], place, allow_buffered=True)
    io.read(path, found, expect=written, allow_buffered=True)
    return problems


@in_folder
def a_full_disk_is_said(path):
    """The limit of a process on the size of files stands for a disk that is full. Later transfers are not tried."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with io.File(path, write=True, allow_buffered=True) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, before[1]))
        try:
            file.write(io.empty(16 * MIB))
            try:
                file.write(io.empty(MIB))
            except StoreError:
                pass  # the first one has failed already
            problems = script_test.raised(StoreError, f"{path} cannot be written at byte", file.wait)
            problems += script_test.raised(StoreError, "cannot be written at byte", file.write, bytearray(1))
            problems += script_test.raised(StoreError, "cannot be written at byte", file.flush)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return problems


script_test.run(ranges_come_and_go, transfers_run_behind_the_program,
                transfers_that_share_bytes_keep_their_order, whole_arrays_are_written_and_read, mistakes_are_refused_by_name,
                checksums_are_those_of_the_bytes, a_flipped_bit_is_found, a_full_disk_is_said)
