"""The backend that TorchDynamo calls: it hands over FX modules, which are captured by running them once."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import weakref
from typing import Any, Callable

import torch

from ._native import _C
from ._options import OPTIONS, Options
from ._regions import Region, differs_under_gradients, is_region, must_run_as_it_is, transforms_functions

log = logging.getLogger("broach")

# Everything compiled that is alive, for `reset`.
_functions: "weakref.WeakSet[_C.Callable]" = weakref.WeakSet()
_lock = threading.Lock()


def register(compiled: Any) -> None:
    with _lock:
        _functions.add(compiled)


class _Interpreter(torch.fx.Interpreter):
    """Runs an FX module node by node, telling the capture which line of the user's source each node comes from, and which calls
    it is not to look into."""

    def __init__(self, gm: torch.fx.GraphModule, regions: Regions):
        super().__init__(gm)
        self.regions = regions

    def run_node(self, n: torch.fx.Node) -> Any:
        trace = n.meta.get("stack_trace")
        if trace:
            _C.set_line(_last_line(trace))
        if n.op == "call_function":
            operands = self.fetch_args_kwargs_from_env(n)
            if is_region(n, operands):
                return self.regions.record(n, operands)
        return super().run_node(n)


class Regions:
    """What the programs compiled of one FX module hold of the calls that they take whole."""

    def __init__(self, options: dict[str, Any]):
        self.options = options
        self.kept: list[Region] = []
        self.programs: dict[torch.fx.GraphModule, Any] = {}

    def record(self, n: torch.fx.Node, operands: Any) -> Any:
        region = Region(n.target, operands, self.program)  # type: ignore[arg-type]
        self.kept.append(region)
        return region.record()

    def program(self, gm: torch.fx.GraphModule) -> Any:
        """A sub-graph as a program of its own."""
        if gm not in self.programs:
            self.programs[gm] = _program(gm, [], native_options(self.options), Regions(self.options))
        return self.programs[gm]


def _program(gm: torch.fx.GraphModule, constant: list[bool], options: dict[str, Any], regions: Regions) -> Any:
    program = _C.Callable(functools.partial(_run, gm, regions), None, constant, options, False)
    register(program)
    return program


def _run(gm: torch.fx.GraphModule, regions: Regions, *args: Any) -> Any:
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        # An interpreter holds the values of its run, so each run has one of its own: threads may run a module at once.
        return _Interpreter(gm, regions).run(*args) if _C.is_capturing() else gm(*args)
    except BaseException:  # the graph leaves the transforms of torch.func by calls of its own, which what was raised has skipped
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        raise


def _last_line(trace: str) -> str:
    lines = [line.strip() for line in trace.strip().splitlines()]
    at = max((i for i, line in enumerate(lines) if line.startswith("File ")), default=None)
    if at is None:
        return lines[-1] if lines else ""
    # File "model.py", line 12, in forward
    parts = lines[at].split(", ")
    code = lines[at + 1] if at + 1 < len(lines) else ""
    return f"{parts[0][6:-1]}:{parts[1][5:]} {code}"


def _progress(options: dict[str, Any]):
    wanted = options.get("progress")
    if wanted is None:
        wanted = sys.stderr.isatty()
    if not wanted:
        return None
    state = {"start": time.monotonic(), "shown": False}

    def show(done: int, total: int) -> None:
        # A line only for compilations long enough to wonder about.
        if not state["shown"] and time.monotonic() - state["start"] < 0.3:
            return
        state["shown"] = True
        end = "\r\033[K" if done == total else ""
        sys.stderr.write(f"\rbroach: kernel {done} of {total}{end}")
        sys.stderr.flush()

    return show


def native_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the native side reads."""
    return {"branches": OPTIONS["branches"].default, **{k: v for k, v in options.items() if k != "capture"}, "progress": _progress(options)}


def _is_constant(node: torch.fx.Node, example: Any) -> bool:
    """Parameters and buffers keep their elements from call to call, as a rule; a write to one is noticed."""
    if isinstance(example, torch.nn.Parameter):
        return True
    kind = getattr(example, "_dynamo_static_input_type", None)
    tensor_dict = node.meta.get("tensor_dict", {})
    return kind is not None or "_dynamo_static_input_type" in tensor_dict or tensor_dict.get("_is_param", False)


def _symbolic_dims(examples: list[Any]) -> list[int]:
    """For each tensor a bit for each dimension of which Dynamo says that it changes; then one for each integer."""
    masks: list[int] = []
    integers: list[bool] = []
    for e in examples:
        if isinstance(e, torch.Tensor):
            masks.append(sum(1 << d for d, n in enumerate(e.shape) if isinstance(n, torch.SymInt)))
        elif isinstance(e, (int, torch.SymInt)):
            integers.append(isinstance(e, torch.SymInt))
    return masks + [sum(1 << k for k, symbolic in enumerate(integers) if symbolic)]


class CompiledModule:
    """One FX module compiled: called by Dynamo's generated code with flat arguments."""

    def __init__(self, gm: torch.fx.GraphModule, examples: list[Any], options: dict[str, Any]):
        self.gm = gm
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        constant = [
            _is_constant(n, e) for n, e in zip(placeholders, examples) if isinstance(e, torch.Tensor)
        ]
        native = native_options(options)
        native["symbolic_dims"] = _symbolic_dims(examples)
        self.function = _program(gm, constant, native, Regions(options))

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def stats(self) -> dict[str, Any]:
        return self.function.stats()


class Collected(list):
    """What one `compile` led to. A copy of the compiled callable compiles anew and starts with nothing."""

    def __deepcopy__(self, memo: dict) -> "Collected":
        return Collected()

    def __reduce__(self):
        return Collected, ()


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
    collect: list[CompiledModule] | None = None,
    skip_gradients: Callable[[], None] | None = None,
) -> Callable[..., Any]:
    """For ``torch.compile(model, backend="broach", options={...})``; `collect` receives what is compiled. A part of a program that
    needs gradients runs eagerly where `skip_gradients` is given, which is told."""
    if not isinstance(options, Options):
        options = Options(options, mode)
    if skip_gradients is not None and transforms_functions(gm):
        log.info("a part of the program that transforms functions runs eagerly")
        # Dynamo, which calls this, need not be imported, which takes most of a second.
        raise torch._dynamo.exc.SkipFrame("broach: torch.func is left to eager")
    gradients = _needs_gradients(gm, example_inputs)
    if why := must_run_as_it_is(gm, gradients):
        log.info("a part of the program runs eagerly: it %s", why)
        return gm
    if gradients:
        if skip_gradients is not None:
            skip_gradients()
            raise torch._dynamo.exc.SkipFrame("broach: gradients are needed")
        if why := differs_under_gradients(gm):
            log.info("a part of the program runs eagerly under gradients: it %s", why)
            raise torch._dynamo.exc.SkipFrame(f"broach: gradients are needed, and it {why}")
    compiled = CompiledModule(gm, example_inputs, options)
    for observer in (collect, _observers.current):
        if observer is not None:
            observer.append(compiled)
    # The native object itself, so that a call passes no Python frame of ours.
    return compiled.function


def _needs_gradients(gm: torch.fx.GraphModule, examples: list[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    given = [x for x in (*examples, *gm.parameters(), *gm.buffers()) if isinstance(x, torch.Tensor)]
    makes_them = any(n.target in ("requires_grad_", torch.nn.Parameter) for n in gm.graph.nodes)
    return makes_them or any(t.requires_grad for t in given)


class _Observers(threading.local):
    """While `explain` runs on this thread: the list that collects what is compiled."""

    current: list[CompiledModule] | None = None


_observers = _Observers()


def reset_functions() -> None:
    with _lock:
        for f in list(_functions):
            f.reset()
    _C.release_memory()
