#!/usr/bin/env python3
"""Makes a token file for `spillway train --data` from text, with a Hugging Face tokenizer.

The output is raw little-endian tokens, without a header: uint16 where the vocabulary has up to 65,536 entries, uint32
where it has more. Every document is encoded whole, because cutting text anywhere else can change its tokens, and so
is held in memory while it is encoded; cut a large .txt file with --separator or --lines. A special token that is
spelled out in the text becomes that token, as it does in transformers.
Needs the Python package `tokenizers`.
"""

import argparse
import array
import codecs
import contextlib
import gzip
import json
import os
import pathlib
import sys

UINT16_VOCABULARY = 1 << 16
KINDS = (".txt", ".md", ".jsonl")
BATCH_CHARS = 1 << 22  # text that is handed to the tokenizer at once, for its threads to share
PROGRESS_TOKENS = 10_000_000


class InputError(Exception):
    """Something from outside is wrong; the message says what, where, and what would make it right."""


# --- The tokenizer ---------------------------------------------------------------------------------------------------


def load_tokenizer(path):
    try:
        import tokenizers
    except ImportError:
        raise InputError("the Python package 'tokenizers' is missing; pip install tokenizers brings it") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file; --tokenizer takes a tokenizer.json or a folder that holds one")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises Exception itself for files that it cannot read
        raise InputError(f"{file}: not a tokenizer that the tokenizers package {tokenizers.__version__} reads: {error}"
                         ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_size(tokenizer, path, stated):
    """The model's, which decides the width of a token and may be padded beyond the tokenizer's."""
    if stated is not None:
        return stated
    config = path / "config.json" if path.is_dir() else path.with_name("config.json")
    if not config.is_file():
        return tokenizer.get_vocab_size(with_added_tokens=True)
    try:
        size = json.loads(config.read_text(encoding="utf-8"))["vocab_size"]
    except (ValueError, KeyError, TypeError):
        size = None
    if type(size) is not int or not 0 < size <= 1 << 32:
        raise InputError(f"{config}: no usable vocab_size; give the model's vocabulary with --vocab")
    return size


def special_token(tokenizer, text):
    if text is None:
        return None
    token = tokenizer.token_to_id(text)
    if token is None:
        raise InputError(f"--eos: the tokenizer has no token {text!r}; GPT-2's, for one, is <|endoftext|>")
    return token


# --- The documents ---------------------------------------------------------------------------------------------------


def kind(path):
    """The ending of a file, or of what is packed in it."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def files(paths):
    """The files among the paths, and those of the kinds below the folders among them, by name."""
    for path in paths:
        if path.is_dir():
            yield from sorted(below for below in path.rglob("*") if below.is_file() and kind(below) in KINDS)
        else:
            yield path


def decoded_lines(path):
    """(number, line) of a UTF-8 file, line ends as they are, without a byte order mark."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if line.endswith(b"\r\n") and kind(path) != ".jsonl":
                    print(f"{path}: lines end in CR LF, and both are kept", file=sys.stderr)
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: not UTF-8 text ({error.reason} at byte {error.start} of the line)"
                                 ) from None


def text_documents(path, lines, separator):
    """A .txt file's documents: its non-empty lines, or the parts between separator lines, or the whole."""
    if lines:
        stripped = (line.rstrip("\r\n") for _, line in decoded_lines(path))
        yield from (line for line in stripped if line)
        return
    part = []
    for _, line in decoded_lines(path):
        if separator is not None and line.rstrip("\r\n") == separator:
            yield "".join(part)
            part = []
        else:
            part.append(line)
    yield "".join(part)


def json_documents(path, field):
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            raise InputError(f"{path}:{number}: no string {field!r} in this line; --field names the text's")
        yield record[field]


def documents(arguments):
    """The non-empty documents of all inputs, in order."""
    for path in arguments.input:
        if kind(path) == ".jsonl":
            found = json_documents(path, arguments.field)
        else:
            found = text_documents(path, arguments.lines, arguments.separator)
        yield from (document for document in found if document)


def batches(texts):
    batch, chars = [], 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


# --- The output ------------------------------------------------------------------------------------------------------


class Output:
    """A file that appears under its name only when it is whole."""

    def __init__(self, path, type_codes, item_bytes):
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.type_code = next(code for code in type_codes if array.array(code).itemsize == item_bytes)
        self.file = open(self.partial, "wb")

    def write(self, values):
        items = array.array(self.type_code, values)
        if sys.byteorder == "big":
            items.byteswap()
        items.tofile(self.file)

    def publish(self):
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.partial, self.path)

    def discard(self):
        self.file.close()
        self.partial.unlink(missing_ok=True)


class Encoder:
    """Writes documents as tokens, and where each of them starts."""

    def __init__(self, tokenizer, vocabulary, eos, tokens, starts):
        self.tokenizer, self.vocabulary, self.eos = tokenizer, vocabulary, eos
        self.tokens, self.starts = tokens, starts
        self.token_count = self.document_count = self.reported = 0

    def write(self, batch):
        for encoding in self.tokenizer.encode_batch(batch, add_special_tokens=False):
            ids = encoding.ids if self.eos is None else [*encoding.ids, self.eos]
            if not ids:
                continue  # a document that the tokenizer leaves nothing of has no start either
            if max(ids) >= self.vocabulary:
                raise InputError(f"document {self.document_count + 1}: token {max(ids)} lies outside the vocabulary of "
                                 f"{self.vocabulary}; the tokenizer and the model do not belong together")
            if self.starts:
                self.starts.write([self.token_count])
            self.tokens.write(ids)
            self.token_count += len(ids)
            self.document_count += 1

    def report(self, end=False):
        if end or (sys.stderr.isatty() and self.token_count - self.reported >= PROGRESS_TOKENS):
            self.reported = self.token_count
            print(f"{self.document_count:,} documents, {self.token_count:,} tokens", file=sys.stderr)


def run(arguments):
    tokenizer = load_tokenizer(arguments.tokenizer)
    vocabulary = vocabulary_size(tokenizer, arguments.tokenizer, arguments.vocab)
    eos = special_token(tokenizer, arguments.eos)
    arguments.input = list(files(arguments.input))
    if not arguments.input:
        raise InputError("the folders hold no file that ends in .txt, .md or .jsonl, or these with .gz")
    for path in arguments.input:
        if kind(path) not in KINDS:
            raise InputError(f"{path}: what kind of file is this? Inputs end in .txt, .md or .jsonl, or these with .gz")
        if not path.is_file():
            raise InputError(f"{path}: no such file")
    doc = arguments.out.with_name(arguments.out.name + ".doc")
    if doc.exists() and not arguments.doc:
        raise InputError(f"{doc}: has the documents of other tokens; remove it, or give --doc to replace it")
    token_bytes = 2 if vocabulary <= UINT16_VOCABULARY else 4
    with contextlib.ExitStack() as on_error:
        tokens = Output(arguments.out, "HIL", token_bytes)
        on_error.callback(tokens.discard)
        starts = Output(doc, "QL", 8) if arguments.doc else None
        if starts:
            on_error.callback(starts.discard)
        encoder = Encoder(tokenizer, vocabulary, eos, tokens, starts)
        for batch in batches(documents(arguments)):
            encoder.write(batch)
            encoder.report()
        if encoder.token_count == 0:
            raise InputError("the inputs hold no text, so there is nothing to write")
        for output in filter(None, (starts, tokens)):
            output.publish()
        on_error.pop_all()
    encoder.report(end=True)
    print(f"{arguments.out}: uint{8 * token_bytes} tokens, for a vocabulary of {vocabulary:,}", file=sys.stderr)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tokenize.py", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    parser.add_argument("input", nargs="+", type=pathlib.Path, metavar="FILE", help="text: .txt, .md or .jsonl, UTF-8, also with .gz; or folders of them")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="PATH",
                        help="a tokenizer.json, or a Hugging Face folder that holds one")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="F.bin", help="the token file to write")
    parser.add_argument("--eos", metavar="TOKEN", help="token after every document, such as '<|endoftext|>' (none)")
    parser.add_argument("--doc", action="store_true", help="also write F.bin.doc, each document's start as uint64: then "
                        "attention stays inside documents")
    parser.add_argument("--field", default="text", metavar="NAME", help="the text's name in a .jsonl line (text)")
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--lines", action="store_true", help="each non-empty line of a .txt file is a document")
    cut.add_argument("--separator", metavar="LINE", help="lines that are just this divide a .txt file into documents; "
                     "without either, the file is one document")
    parser.add_argument("--vocab", type=int, metavar="N", help="the model's vocabulary, which decides a token's width "
                        "(vocab_size in the config.json beside the tokenizer, else the tokenizer's own)")
    arguments = parser.parse_args()
    if arguments.vocab is not None and not 0 < arguments.vocab <= 1 << 32:
        parser.error("--vocab must lie between 1 and 4294967296")
    if arguments.out.suffix != ".bin":
        parser.error("--out must end in .bin, by which spillway knows token files")
    return arguments


def main():
    arguments = parse_arguments()
    try:
        run(arguments)
    except InputError as error:
        print(f"tokenize.py: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"tokenize.py: {error.filename or arguments.out}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
