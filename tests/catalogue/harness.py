"""Small programs, each compared with eager over calls whose sizes, values and memory layouts change.

A file of programs makes a `Catalogue` and adds a line for each: a name, a function, and what its arguments are, as text:

    add("clamp by tensors", lambda x, low, high: x.clamp(low, high), "f32[n,m]", "f32[m]", "f32[]")

says a type, sizes (`n`, `m`, `k` change between calls) and, behind the bracket, what the values are: `+` positive, `u` within -1 and 1,
`<9` integers below 9, `nan` with NaN, infinities and zeros, `dup` with many equal values, `cl` channels last, `ng` without gradients, `inner` no leaf where it has gradients.
A callable in place of the text is given the sizes and returns an argument; `state=` makes a module that the function is given first.

Compared are values, types, sizes, strides, what shares memory with what, what became of the arguments and the module, gradients, and
errors. Each program runs without gradients and, where it has any, with them, by `broach.compile` and by `torch.compile`.
"""

import copy
import os
import re
import sys
import traceback
import warnings

os.environ.setdefault("BROACH_VERIFY", "1")

import torch
import torch.utils._pytree as pytree

TYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
SIZES = [dict(n=6, m=7, k=5), dict(n=11, m=7, k=4), dict(n=3, m=13, k=5), dict(n=33, m=18, k=1)]
# Sizes and layout of each call. The first is eager's own run, equal ones behind it meet what was compiled.
CALLS = [(0, ""), (0, ""), (1, ""), (1, "transposed"), (2, ""), (2, "spread"), (0, "transposed"), (0, "shifted"), (3, ""), (1, "")]
TOLERANCES = {
    torch.float32: (3e-5, 2e-5),
    torch.complex64: (3e-5, 2e-5),
    torch.float64: (1e-9, 1e-10),
    torch.complex128: (1e-9, 1e-10),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3e-2, 1e-2),
}


def fill(dtype, shape, marks):
    """A tensor of these values; the caller has seeded the generator."""
    below = next((int(mark[1:]) for mark in marks if mark.startswith("<")), None)
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        if below is not None:
            return torch.randint(0, below, shape, dtype=dtype)
        return torch.randint(0 if dtype == torch.uint8 else -20, 21, shape, dtype=dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    values = torch.randn(shape, dtype=wide)
    if "+" in marks:
        values = torch.rand(shape, dtype=wide) * 1.9 + 0.1
    elif "u" in marks:
        values = torch.rand(shape, dtype=wide) * 1.9 - 0.95
    elif "dup" in marks:
        values = torch.randint(-3, 4, shape).to(wide)
    elif "large" in marks:
        values = values * 1e4
    if "nan" in marks and values.numel():
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=wide)
        values = torch.where(torch.rand(shape) < 0.4, odd[torch.randint(0, 5, shape)], values)
    return values.to(dtype)


def laid_out(value, layout):
    """The same values in other memory."""
    if layout == "transposed" and value.dim() >= 2:
        order = list(range(value.dim()))[::-1]
        return value.permute(order).contiguous().permute(order)
    if layout == "spread" and value.dim() >= 1:
        wide = torch.zeros(*value.shape[:-1], value.shape[-1] * 2, dtype=value.dtype)
        wide[..., ::2] = value
        return wide[..., ::2]
    if layout == "shifted":
        flat = torch.zeros(value.numel() + 3, dtype=value.dtype)
        shifted = flat[3:].view(value.shape)
        return shifted.copy_(value)
    return value


def argument(spec, sizes, layout, with_gradients):
    if callable(spec):
        return spec(sizes)
    if not isinstance(spec, str):
        return spec
    match = re.fullmatch(r"(\w+)\[([^\]]*)\](.*)", spec)
    if not match:
        return spec
    dtype = TYPES[match[1]]
    marks = [mark for mark in match[3].split() if mark]
    shape = [int(eval(size, {}, dict(sizes))) for size in match[2].split(",") if size]
    value = fill(dtype, shape, marks)
    if "cl" in marks:
        value = value.contiguous(memory_format=torch.channels_last if value.dim() == 4 else torch.channels_last_3d)
    elif "fixed" not in marks:
        value = laid_out(value, layout)
    wants = with_gradients and "ng" not in marks and (dtype.is_floating_point or dtype.is_complex)
    return value.detach().requires_grad_(True) if wants else value


class Case:
    def __init__(self, name, function, specs, **options):
        self.name, self.function, self.specs = name, function, specs
        self.state = options.pop("state", None)
        self.calls = options.pop("calls", CALLS)
        self.gradients = options.pop("gradients", True)
        self.tolerance = options.pop("tolerance", None)
        self.strides = options.pop("strides", True)
        self.fronts = options.pop("fronts", None)
        self.sizes = options.pop("sizes", SIZES)
        assert not options, options


class Catalogue:
    def __init__(self):
        self.cases = []

    def __call__(self, name, function, *specs, **options):
        assert all(case.name != name for case in self.cases), name
        self.cases.append(Case(name, function, specs, **options))


def tensors_of(value):
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def sharing(outputs, inputs):
    """Which output is which input, and which share memory, by position."""
    facts = []
    everything = inputs + outputs
    for i, out in enumerate(outputs):
        for j, other in enumerate(everything[: len(inputs) + i]):
            where = f"in{j}" if j < len(inputs) else f"out{j - len(inputs)}"
            if out is other:
                facts.append(f"out{i} is {where}")
            elif out.numel() and other.numel() and storage_of(out) == storage_of(other):
                facts.append(f"out{i} shares {where}")
    return facts


def described(tensor):
    if tensor.layout != torch.strided:
        return (str(tensor.layout), tuple(tensor.shape))
    stride = tuple(st for st, size in zip(tensor.stride(), tensor.shape) if size > 1) if tensor.numel() else ()
    return (tensor.dtype, tuple(tensor.shape), stride, tensor.is_conj(), tensor.is_neg())


class Run:
    """What one call gave."""

    def __init__(self, case, function, module, index, with_gradients, tolerance_scale=1.0):
        sizes, layout = case.sizes[case.calls[index][0]], case.calls[index][1]
        torch.manual_seed(1000 + index)
        self.args = [argument(spec, sizes, layout, with_gradients) for spec in case.specs]
        self.leaves = [t for t in tensors_of(self.args) if t.requires_grad and t.is_leaf]
        if module is not None:
            self.leaves += [p for p in module.parameters() if p.requires_grad]
            module.zero_grad(set_to_none=True)
        # What a program writes to may need gradients only if it is no leaf.
        inner = [isinstance(spec, str) and "inner" in spec and a.requires_grad for spec, a in zip(case.specs, self.args)]
        self.args = given = [a.clone() if wants else a for a, wants in zip(self.args, inner)]
        torch.manual_seed(7 + index)
        self.error, self.result, self.gradients = None, None, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with torch.set_grad_enabled(with_gradients):
                    first = () if module is None else (module,)
                    self.result = function(*first, *given)
                    self.sharing = sharing(tensors_of(self.result), tensors_of(given))
                    self.needs = [t.requires_grad for t in tensors_of(self.result)]
                    if with_gradients:
                        self.differentiate()
            except Exception as error:
                self.error = error
                self.trace = traceback.format_exc()
        self.module = module
        self.random = torch.rand(())

    def differentiate(self):
        outputs = [t for t in tensors_of(self.result) if t.requires_grad and t.layout == torch.strided]
        if not outputs or not self.leaves:
            return
        torch.manual_seed(99)
        weights = [torch.randn(t.shape, dtype=t.dtype if t.dtype.itemsize > 2 else torch.float32).to(t.dtype) for t in outputs]
        total = sum((t * w).sum().abs() if t.is_complex() else (t * w).sum() for t, w in zip(outputs, weights))
        self.gradients = torch.autograd.grad(total, self.leaves, allow_unused=True)


def close(a, b, tolerance):
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a, b)
    relative, absolute = tolerance or TOLERANCES.get(a.dtype, (0.0, 0.0))
    if a.dtype.itemsize < 2:
        a, b = a.float(), b.float()
    size = a.abs()[a.isfinite()].max().item() if a.isfinite().any() else 1.0
    return torch.allclose(a, b, rtol=relative, atol=absolute * max(1.0, size), equal_nan=True)


def differing(what, want, got, case, strides=True):
    a, b = tensors_of(want), tensors_of(got)
    if len(a) != len(b):
        return [f"{what}: {len(a)} tensors, got {len(b)}"]
    found = []
    for i, (x, y) in enumerate(zip(a, b)):
        dx, dy = described(x), described(y)
        if not (strides and case.strides):
            dx, dy = dx[:2], dy[:2]
        if type(x) is not type(y):
            found.append(f"{what} {i}: type {type(x)}, got {type(y)}")
        if dx != dy:
            found.append(f"{what} {i}: {dx}, got {dy}")
        if x.dtype == y.dtype and x.shape == y.shape:
            x, y = (t.detach().to_dense() if t.layout != torch.strided else t.detach().resolve_conj().resolve_neg() for t in (x, y))
            if not close(x, y, case.tolerance):
                same = (x == y) | (x.isnan() & y.isnan())
                wide = torch.complex128 if x.is_complex() else torch.float64
                worst = (x.to(wide) - y.to(wide)).abs().nan_to_num(1e30).masked_fill(same, 0)
                at = worst.flatten().argmax().item() if worst.numel() else 0
                found.append(f"{what} {i}: values differ, {x.flatten()[at].item()} got {y.flatten()[at].item()} at {at} of {tuple(x.shape)}, {(~same).sum().item()} in all")
    plain = [[leaf for leaf in pytree.tree_leaves(v) if not isinstance(leaf, torch.Tensor)] for v in (want, got)]
    if str(plain[0]) != str(plain[1]) and not (" at 0x" in str(plain[0])):
        found.append(f"{what}: {plain[0]}, got {plain[1]}")
    if str(pytree.tree_structure(want)) != str(pytree.tree_structure(got)):
        found.append(f"{what}: structure {pytree.tree_structure(want)}, got {pytree.tree_structure(got)}")
    return found


def compare(want, got, case, front):
    if want.error is not None or got.error is not None:
        both = want.error is not None and got.error is not None
        # Dynamo raises errors of its own when its run on fake tensors fails.
        if both and (type(want.error) is type(got.error) or front == "torch" and isinstance(got.error, RuntimeError)):
            return []
        names = [f"{type(e).__name__} {str(e)[:300]!r}" for e in (want.error, got.error)]
        return [f"error {names[0]}, got {names[1]} {getattr(got, 'trace', '')[-600:]!r}"]
    found = differing("result", want.result, got.result, case)
    if want.sharing != got.sharing:
        found.append(f"sharing {want.sharing}, got {got.sharing}")
    if want.needs != got.needs:
        found.append(f"requires_grad {want.needs}, got {got.needs}")
    found += differing("argument", want.args, got.args, case)
    if want.module is not None:
        found += differing("state", dict(want.module.state_dict()), dict(got.module.state_dict()), case)
    if [g is None for g in want.gradients] != [g is None for g in got.gradients]:
        found.append(f"gradients are None: {[g is None for g in want.gradients]}, got {[g is None for g in got.gradients]}")
    else:
        found += differing("gradient", list(want.gradients), list(got.gradients), case, strides=False)
    if not torch.equal(want.random, got.random):
        found.append("the generator was left in another state")
    return found


def compiled_by(front, function):
    import broach

    if front == "broach":
        return broach.compile(function)
    if front == "dynamic":
        return broach.compile(function, dynamic=True)
    return torch.compile(function, backend="broach")


def run_case(case, front, with_gradients):
    """The differences from eager, and whether the program has gradients."""
    import broach

    broach.reset()
    torch._dynamo.reset()
    torch.manual_seed(5)
    modules = (None, None)
    if case.state is not None:
        module = case.state()
        modules = (module, copy.deepcopy(module))
    function = compiled_by(front, case.function)
    differences, has_gradients = [], False
    for index in range(len(case.calls)):
        want = Run(case, case.function, modules[0], index, with_gradients)
        got = Run(case, function, modules[1], index, with_gradients)
        has_gradients = has_gradients or any(g is not None for g in want.gradients) or (with_gradients and want.error is not None)
        found = compare(want, got, case, front)
        differences += [f"call {index}: {text}" for text in found]
        if len(differences) > 3:
            break
    return differences, has_gradients


def run(catalogue, words=(), fronts=("broach", "torch"), skip=frozenset(), gradients=(False, True), part=1):
    """Runs the cases and prints a line for each difference; returns how many there were."""
    from broach._native import _C

    count = 0
    for case in catalogue.cases[::part]:
        if words and not any(word in case.name for word in words):
            continue
        for front in case.fronts or fronts:
            for with_gradients in gradients:
                key = f"{case.name} | {front} | {'gradients' if with_gradients else 'values'}"
                if key in skip or (with_gradients and not case.gradients):
                    continue
                print("START", key, flush=True)
                try:
                    differences, has = run_case(case, front, with_gradients)
                except Exception:
                    differences = ["harness: " + traceback.format_exc()[-900:]]
                differences += [f"bug: {text}" for text in _C.take_bugs()]
                count += bool(differences)
                for text in differences[:4]:
                    print("DIFF", key, "|", text, flush=True)
    print("DONE", len(catalogue.cases), "programs,", count, "differ", flush=True)
    return count


def main(catalogue):
    fronts = [a[8:] for a in sys.argv[1:] if a.startswith("--front=")] or ["broach", "torch"]
    skip = frozenset(line.rstrip("\n") for a in sys.argv[1:] if a.startswith("--skip=") for line in open(a[7:]))
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    sys.exit(run(catalogue, words, fronts, skip, part=part_of(sys.argv)) > 0)


def part_of(arguments):
    """Of each so many programs one is run."""
    return next((int(a[7:]) for a in arguments if a.startswith("--part=")), 1)
