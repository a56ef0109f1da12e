"""Elements and numbers that others found wrong by random programs: symbols in arithmetic, writes of captures that are given up, element
types that are converted, kernels of libraries that read too much."""

PROGRAMS = {
"what_a_lowering_left_that_was_refused": """
out = []
for compile in (C, D):
    c = compile(lambda v: (torch.eye(4, dtype=torch.complex64) * 9, torch.eye(4, dtype=torch.complex64) + v))
    for i in range(3): out.append(c(torch.ones(())))
    c = compile(lambda v: (v @ v + v @ v, torch.conv1d(v[None], v[:, :, None]).relu() + torch.conv1d(v[None], v[:, :, None])))
    for n in (40, 40, 41): out.append(c(torch.ones(n, n, dtype=torch.float64)))
""",
"symbols_divided_by_negative_numbers": """
out = []
for compile in (C, D):
    c = compile(lambda v: (v * (v.shape[0] // -3), v * (v.shape[0] % -3), divmod(v.shape[0], -4)))
    for n in (3, 7, 8, 5, 9): out.append(c(torch.ones(n)))
    c = compile(lambda v, a, b: (v[:a // b], v + a % b, v.numel() // (a - b), a % (2 - b)))
    for n, a, b in ((4, 2, 3), (2, 7, -5), (5, 9, -4), (5, -9, 4), (3, 16, 7), (3, 16, -7)): out.append(c(torch.ones(n, 3), a, b))
""",
"tensors_of_computed_numbers": """
def written(v, n): v.add_(1); return torch.tensor(n * 2) + v
out = []
for compile in (C, D):
    c = compile(lambda n: (torch.tensor(n * n), torch.as_tensor([n * 2, n]), torch.tensor(n * n, dtype=torch.float64)))
    for n in (3, 5, 50000, 2**30, 7): out.append(c(n))
    c = compile(written)
    for n in (3, 5, 2**40, 6): v = torch.zeros(2, dtype=torch.long); out.append((c(v, n), v))
""",
"writes_and_draws_of_a_capture_that_is_given_up": """
torch.manual_seed(0)
def power(v, n): v.add_(1); return v * 2 + torch.rand(3), n ** 9
def expanded(v, y, z): z.sub_(1); y[0] = 2; return v[..., 0]
def illegal(v, y): v *= 2; y.add_(1); return v + 1
def first(v): v[0] = 2; return v[1:]
out = []
for compile in (C, D):
    c = compile(power)
    for n in (2, 3, 1000, 4): v = torch.ones(3); out.append((c(v, n), v))
    c = compile(expanded)
    for n, y in ((4, torch.ones(4)), (2, torch.ones(1).expand(2)), (3, torch.ones(3))): z = torch.zeros(3); out.append((c(torch.ones(n), y, z), y, z))
    c = compile(illegal)
    for n, y in ((3, torch.ones(4)), (5, torch.ones(1).expand(6)), (6, torch.ones(2))):
        v = torch.ones(n)
        try: c(v, y)
        except RuntimeError: out.append('raised')
        out.append(v)
    c = compile(first)
    for v in (torch.ones(4, 2), torch.ones(2).expand(3, 2), torch.ones(5, 2)): out.append((c(v), v))
""",
"writes_to_views_without_elements": """
def diagonal(v, p): w = v.diagonal(1); w += w; return w
def stepped(v): w = v[1::2].diagonal(1); w.masked_fill_(w > 1, -1); return v.t()
out = []
for compile in (C, D):
    c = compile(diagonal)
    for p in (3, -2, 4): out.append(c(torch.ones(5, 1), p))
    c = compile(stepped)
    for v in (torch.ones(2, 1), torch.ones(2, 2)[:, :1], torch.ones(4, 3)): out.append(c(v))
""",
"errors_of_the_program_after_a_shift": """
out = []
for compile in (C, D):
    c = compile(lambda v, a: v[:a << 1] + 5 // (a - 3))
    for a in (1, 2, 3, 4, 3):
        try: out.append(c(torch.ones(3), a))
        except ZeroDivisionError as e: out.append(str(e))
""",
"complex_elements_written_to_others": """
import warnings; warnings.simplefilter('ignore')
def fill(v, z): v.fill_(z.sum()); return v + 1
out = []
for compile in (C, D):
    for t in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        c = compile(fill)
        for i in range(3): out.append(c(torch.ones(2, dtype=t), torch.tensor([1 + 2j])))
    c = compile(lambda v, z: v.copy_(z))
    for i in range(3): out.append(c(torch.zeros(2, dtype=torch.bool), torch.tensor([2j, 0])))
""",
"quotients_of_16_bits_by_one_number": """
out = []
for compile in (C, D):
    for t in (torch.float16, torch.bfloat16):
        c = compile(lambda v, y: (v.floor_divide(0.3), v.div(0.3, rounding_mode='trunc'), v.div(y, rounding_mode='floor'), v // v[::1], torch.nn.functional.hardshrink(v, 0.3), torch.nextafter(v, -v)))
        v = torch.tensor([88.8125, 10000, -104, 3.3, 0.3, -0.3, float('inf'), float('nan')], dtype=t)
        for i in range(3): out.append(c(v, torch.tensor(0.3)))
""",
"volumes_of_one_channel": """
import torch.nn.functional as F
torch.manual_seed(0); out = []
for compile in (C, D):
    c = compile(lambda v, w: F.conv3d(v * 2, w, stride=(1, 1, 3)))
    for i in range(4): out.append(c(torch.ones(5, 1, 9, 7, 5), torch.ones(8, 1, 2, 3, 3)))
""",
"gradients_that_select_what_nobody_reads": """
def f(v): y = v.floor(); return torch.scatter_add(torch.zeros_like(y), 0, (y * 3).to(torch.long).remainder(4), y)
out = []
for compile in (C, D):
    c = compile(f)
    for n in (9, 9, 5): v = torch.linspace(-2, 2, n).requires_grad_(); y = c(v); y.sum().backward(); out.append((y, v.grad))
""",
}
