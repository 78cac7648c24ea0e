"""Runs inside the sandbox: imports sources from memory and calls what is named ``test_*``. Not a test itself."""

import importlib.machinery
import sys
from importlib.util import module_from_spec, spec_from_loader


class FromMemory:
    """Finds and loads modules in a mapping of paths to sources."""

    def __init__(self, files):
        self.files = files

    def find_spec(self, name, path=None, target=None):
        for file in (name.replace(".", "/") + ".py", name.replace(".", "/") + "/__init__.py"):
            if file in self.files:
                return spec_from_loader(name, self, origin=file, is_package=file.endswith("__init__.py"))
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        file = module.__spec__.origin
        exec(compile(self.files[file], file, "exec"), module.__dict__)  # noqa: S102  # what the sandbox is for


def run(files):
    """By test, what went wrong, or an empty text."""
    sys.meta_path.insert(0, FromMemory(files))
    found = {}
    for path in sorted(files):
        stem = path.rpartition("/")[2].removesuffix(".py")
        if stem.startswith("test_"):
            found.update({f"{stem}::{name}": wrong for name, wrong in suite(path, files[path]).items()})
    return found


def suite(path, text):
    """The tests of one file."""
    names = [line[4 : line.index("(")] for line in text.splitlines() if line.startswith("def test_")]
    module = module_from_spec(importlib.machinery.ModuleSpec(path, None))
    try:
        exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
    except Exception as error:
        return dict.fromkeys(names, f"{type(error).__name__}: {error}")
    return {name: outcome(module.__dict__[name], path, text.splitlines()) for name in names}


def outcome(test, path, lines):
    try:
        test()
    except Exception as error:
        at, trace = "", error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == path:
                at = lines[trace.tb_lineno - 1].strip()
            trace = trace.tb_next
        return f"{at} raised {type(error).__name__} {error}".strip()
    return ""
