"""One value that a program reads, kept at one place after another, changed in kind, type, size and identity between calls."""

PROGRAMS = {
"global_number_to_tensor_to_none": """
s = 2; f = C(lambda x: x * s if s is not None else x - 1); out = [f(x), f(x)]
for s in (2.5, torch.tensor([3.0, 4.0]), None, True, torch.tensor(5), np.float32(2)): out.append(f(x))
""",
"closure_tensor_changes_shape_and_dtype": """
def make():
    t = torch.ones(2)
    def f(x): return x * t
    def put(v):
        nonlocal t; t = v
    return f, put
f, put = make(); g = C(f); out = [g(x), g(x)]
for v in (torch.full((2,), 3.0), torch.ones(3, 1), torch.ones(2).double(), torch.ones(2, requires_grad=True), torch.tensor(4), 7): put(v); out.append(g(x))
""",
"attribute_function_to_module_to_class": """
class K: pass
k = K(); k.h = torch.relu; f = C(lambda x: k.h(x)); out = [f(-x), f(-x)]
for k.h in (lambda v: v * 3, torch.nn.Tanh(), torch.abs, abs, torch.Tensor.neg, torch.nn.Parameter): out.append(f(-x))
""",
"class_attribute_list_to_tuple_to_range": """
class K: v = [1, 2]
f = C(lambda x: [x * a for a in K.v]); out = [f(x), f(x)]
for K.v in ((3,), range(3), [1, 2], {5: 0}, [2.5], torch.tensor([1.0, 9.0]), ()): out.append(f(x))
""",
"default_value_read_through_two_functions": """
def inner(x, s=[2.0]): return x * s[0]
def outer(x, h=inner): return h(x) + 1
f = C(lambda x: outer(x)); out = [f(x), f(x)]; inner.__defaults__[0][0] = 3.0; out += [f(x)]; outer.__defaults__ = (lambda v: v * 9,); out += [f(x)]; inner.__defaults__ = ([4.0],); out += [f(x), C(outer)(x, inner)]
""",
"nested_attribute_chain_rebound_in_middle": """
class K: pass
a = K(); a.b = K(); a.b.c = K(); a.b.c.d = 2.0; f = C(lambda x: x * a.b.c.d); out = [f(x)]; n = K(); n.c = K(); n.c.d = 3.0; o = a.b; a.b = n; out += [f(x)]; o.c.d = 50.0; out += [f(x)]; a.b.c = o.c; out += [f(x)]; a = K(); a.b = n; n.c = K(); n.c.d = 7.0; out += [f(x)]
""",
"list_in_dict_in_list_changed_deep": """
t = [{'k': [(1.0, [2.0])]}]; f = C(lambda x: x * t[0]['k'][0][1][0]); out = [f(x), f(x)]; t[0]['k'][0][1][0] = 3.0; out += [f(x)]; t[0]['k'][0] = (0, [4.0]); out += [f(x)]; t[0] = {'k': [(0, (5.0,))]}; out += [f(x)]; t.insert(0, {'k': [(0, [6.0])]}); out += [f(x)]
""",
"tensor_in_list_replaced_or_written": """
l = [torch.ones(2), torch.ones(2)]; f = C(lambda x: x * l[0] + l[1]); out = [f(x), f(x)]; l[0].fill_(3); out += [f(x)]; l[0] = torch.full((2,), 4.0); out += [f(x)]; l[1] = l[0]; out += [f(x)]; l.reverse(); l[0] = torch.zeros(2); out += [f(x)]; l[:] = [torch.ones(1), torch.ones(2, 1)]; out += [f(x)]
""",
"function_in_closure_of_function_replaced": """
def scale(s): return lambda v: v * s
h = scale(2.0)
def make(fn): return lambda x: fn(x) + 1
f = C(make(lambda v: h(v))); out = [f(x), f(x)]; h = scale(3.0); out += [f(x)]; h.__closure__[0].cell_contents = 4.0; out += [f(x)]; h = torch.neg; out += [f(x)]
""",
"integer_global_counts_up": """
n = 0; f = C(lambda x: x * n + len('a' * n)); out = []
for n in range(6): out.append(f(x))
""",
"float_global_sweeps": """
v = 0.0; f = C(lambda x: (x * v, v > 1, v == int(v))); out = []
for v in (0.0, 0.5, 1.0, 1.5, -0.0, 3.0): out.append(f(x))
""",
"string_global_sweeps": """
s = ''; f = C(lambda x: (x * len(s), s.upper(), 'a' in s, s or 'empty')); out = []
for s in ('', 'a', 'b', 'ab', 'a' * 3): out.append(f(x))
""",
"bool_attribute_flips": """
class K: on = True
k = K(); f = C(lambda x: x * 2 if k.on else x * 3); out = []
for k.on in (True, False, True, 1, 0, None, 'q', [], [0]): out.append(f(x))
""",
"none_attribute_filled_inside": """
class K: cache = None
k = K()
def f(x):
    if k.cache is None: k.cache = x * 10
    return x + k.cache
g = C(f); out = [g(x), g(x * 2)]; k.cache = None; out += [g(x * 3), g(x)]; k.cache = torch.zeros(2); out += [g(x), g(torch.ones(1))]
""",
"memo_dict_by_size": """
memo = {}
def f(x):
    n = x.shape[0]
    if n not in memo: memo[n] = torch.arange(n) * 1.0
    return x * memo[n]
g = C(f); out = [g(torch.ones(n)) for n in (2, 3, 2, 4, 3)] + [sorted(memo)]; memo[2] = torch.ones(2) * 7; out += [g(torch.ones(2))]; memo.clear(); out += [g(torch.ones(2)), len(memo)]
""",
"running_mean_kept_in_closure": """
def make():
    m, n = 0.0, 0
    def f(x):
        nonlocal m, n; n += 1; m = m + (x.mean().item() - m) / n
        return x - m
    return f
g = C(make()); out = [g(x * k) for k in (1.0, 3.0, 5.0, 0.0)]
""",
"history_of_tensors_kept": """
h = []
def f(x): y = x * 2; h.append(y); return sum(h) / len(h)
g = C(f); out = [g(x * k) for k in range(4)]; h.pop(0); out += [g(x), len(h)]; h[-1].fill_(100); out += [g(x)]
""",
"state_machine_by_string": """
class K: state = 'start'
k = K(); step = {'start': ('run', 2), 'run': ('stop', 3), 'stop': ('start', 5)}
def f(x): k.state, s = step[k.state]; return x * s
g = C(f); out = [g(x) for _ in range(5)]; step['run'] = ('run', 7); out += [g(x), g(x), k.state]
""",
"tensor_state_swapped_each_call": """
class K: pass
k = K(); k.a, k.b = torch.zeros(2), torch.ones(2)
def f(x): k.a, k.b = k.b, k.a + x; return k.a * k.b
g = C(f); a = k.b; out = [g(x) for _ in range(5)]; out += [k.a, k.b]
""",
"argument_object_attribute_versus_identity": """
class K:
    def __init__(self, v): self.v = v
f = C(lambda x, k: x * k.v); a, b = K(2.0), K(2.0); out = [f(x, a), f(x, b)]; b.v = 3.0; out += [f(x, a), f(x, b)]; a.v = torch.ones(2) * 4; out += [f(x, a)]; out += [f(x, K(5)), f(x, type('Q', (), {'v': 6.0})), f(x, type('Q', (), {'v': 7.0})())]
""",
"two_globals_become_one": """
a, b = torch.ones(2), torch.ones(2)
def f(x): a.add_(x); return a * b
g = C(f); out = [g(x), g(x)]; b = a; out += [g(x), g(x)]; b = a[:]; out += [g(x)]; b = torch.ones(2); out += [g(x)]
""",
"argument_becomes_the_global": """
w = torch.ones(2)
def f(a): a.mul_(2); return w + a, a is w
g = C(f); out = [g(torch.ones(2)), g(torch.ones(2)), g(w), g(w.view(2)), g(torch.ones(2)), w]
""",
"tensor_global_resized_in_place": """
t = torch.ones(2); f = C(lambda x: t.sum() * x); out = [f(x), f(x)]; t.resize_(4).fill_(1); out += [f(x)]; t.unsqueeze_(0); out += [f(x), C(lambda x: t.shape)(x)]; t.resize_(0); out += [f(x)]
""",
"tensor_global_transposed_in_place": """
t = torch.arange(4.0).view(2, 2); f = C(lambda x: x @ t); out = [f(x), f(x)]; t.t_(); out += [f(x)]; t.transpose_(0, 1); t[0, 0] = 9; out += [f(x)]; t.data = t.t(); out += [f(x)]
""",
"sizes_one_zero_many": """
f = C(lambda x, y: (x @ y.T, torch.cat([x, y]), x.sum(0) * y.shape[0])); o = torch.ones; out = [f(o(n, 3), o(m, 3)) for n, m in ((2, 4), (3, 5), (1, 4), (1, 1), (0, 2), (4, 4), (2, 0))]
""",
"sizes_in_every_dimension": """
f = C(lambda x: (x.mean((0, 2)), x.transpose(0, 1).reshape(x.shape[1], -1), x.shape[0] * x.shape[2] == x.numel() // max(x.shape[1], 1))); out = [f(torch.ones(s)) for s in ((2, 3, 4), (3, 3, 4), (2, 5, 4), (2, 3, 6), (7, 1, 1), (3, 3, 3))]
""",
"equal_sizes_become_different": """
f = C(lambda a, b: (a.shape == b.shape, a.sum() + b.sum(), a + b if a.shape == b.shape else None)); o = torch.ones; out = f(o(3), o(3)), f(o(4), o(4)), f(o(4), o(5)), f(o(5), o(5)), f(o(2, 2), o(4)), f(o(1), o(7))
""",
"number_equal_to_a_size": """
f = C(lambda x, n: (x * n, x.shape[0] == n, x[:n])); out = f(torch.ones(3), 3), f(torch.ones(4), 4), f(torch.ones(4), 3), f(torch.ones(3), 5), f(torch.ones(5), 5), f(torch.ones(1), 1)
""",
"sizes_through_dynamic_branches": """
f = D(lambda x: x * 2 if x.shape[0] > 3 else x.sum(0, keepdim=True) if x.shape[0] % 2 else x - 1); out = [f(torch.ones(n)) for n in (2, 3, 4, 5, 1, 0, 8)]
""",
"sizes_through_dynamic_loops": """
f = D(lambda x: sum(x[k] * k for k in range(x.shape[0])) if x.shape[0] else 'none'); out = [f(torch.ones(n, 2)) for n in (2, 3, 1, 0, 4)]
""",
"dynamic_numbers_and_strings": """
f = D(lambda x, n, s: (x * n + len(s), s * n if isinstance(n, int) else s, {s: n})); out = f(x, 1, 'a'), f(x, 2, 'a'), f(x, 3, 'bc'), f(x, 2.5, 'a'), f(x, -1, '')
""",
"keyword_arguments_come_and_go": """
f = C(lambda x, **k: x * k.get('a', 1) + sum(v for v in k.values() if not isinstance(v, torch.Tensor))); out = f(x), f(x, a=2), f(x, b=3), f(x, a=x * 4), f(x, b=1, a=2), f(x, a=True), f(x)
""",
"positional_arguments_come_and_go": """
f = C(lambda *a: (len(a), sum(a), [type(v).__name__ for v in a])); out = f(x), f(x, 1), f(x, x), f(1, x), f(x, 1, 2.5), f(2, 3), f(x)
""",
"none_and_tensor_arguments_alternate": """
f = C(lambda x, m=None, b=None: (x if m is None else x * m) + (0 if b is None else b)); out = f(x), f(x, x * 2), f(x, None, x), f(x, b=1), f(x, x * 3, 2.5), f(x, m=2), f(x)
""",
}
