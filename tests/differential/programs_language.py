"""Expressions and statements, in the order of the language reference."""

PROGRAMS = {
"default_argument_replaced": """
def f(x, s=2.0): return x * s
g = C(f); out = [g(x)]; f.__defaults__ = (3.0,); out += [g(x)]; f.__defaults__ = (torch.tensor(4.0),); out += [g(x), g(x, 5.0)]
""",
"keyword_default_replaced": """
def h(x, *, s=2.0): return x * s
f = C(lambda x: h(x)); out = [f(x)]; h.__kwdefaults__['s'] = 3.0; out += [f(x)]; h.__kwdefaults__ = {'s': 5}; out += [f(x)]
""",
"default_list_grows": """
def f(x, seen=[]): seen.append(len(seen)); return x * len(seen), seen
g = C(f); out = [g(x)[0] for _ in range(5)], f.__defaults__
""",
"default_dict_shared_by_two_calls": """
def h(x, memo={}):
    memo[x.shape[0]] = memo.get(x.shape[0], 0) + 1
    return memo
f = C(lambda x: (h(x), h(x))); f(x); a, b = f(torch.ones(3)); out = a is b, a is h.__defaults__[0], dict(f(x)[0])
""",
"code_of_helper_replaced": """
def h(x): return x + 1
def k(x): return x - 1
f = C(lambda x: h(x) * 2); out = [f(x), f(x)]; h.__code__ = k.__code__; out += [f(x), f(x)]
""",
"nonlocal_counter": """
def make():
    n = 0
    def f(x):
        nonlocal n; n += 1
        return x * n
    return f, lambda: n
f, n = make(); g = C(f); out = [g(x) for _ in range(5)], n()
""",
"nonlocal_becomes_tensor": """
def make():
    n = 1
    def f(x):
        nonlocal n; n = n * x
        return n
    return f
g = C(make()); out = [g(x + 1) for _ in range(4)]
""",
"closure_cell_set_from_outside": """
def make(s):
    def f(x): return x * s
    return f
f = make(2.0); g = C(f); out = [g(x), g(x)]; f.__closure__[0].cell_contents = 3.0; out += [g(x)]; f.__closure__[0].cell_contents = torch.tensor([4.0, 5.0]); out += [g(x)]
""",
"closure_cell_emptied": """
def make():
    s = 2.0
    def f(x): return x * s
    def e():
        nonlocal s; del s
    return f, e
f, e = make(); g = C(f); g(x); g(x); e()
try: out = g(x)
except NameError as error: out = type(error).__name__
""",
"global_deleted_then_builtin": """
def f(x): return x * len([1, 2, 3])
len = lambda v: 7
g = C(f); out = [g(x), g(x)]; del len; out += [g(x), g(x)]
""",
"builtin_shadowed_later": """
f = C(lambda x: x * max(1, 2)); out = [f(x), f(x)]; max = min; out += [f(x)]; del max; out += [f(x)]
""",
"builtins_module_patched": """
import builtins
f = C(lambda x: x * abs(-3)); out = [f(x)]; keep = builtins.abs; builtins.abs = lambda v: 9; out += [f(x)]; builtins.abs = keep; out += [f(x)]
""",
"global_statement_creates": """
def f(x):
    global made
    try: made += 1
    except NameError: made = 10
    return x * made
g = C(f); out = [g(x) for _ in range(4)] + [made]
""",
"global_deleted_inside": """
flag = 1
def f(x):
    global flag
    if 'flag' in globals():
        del flag
        return x + 1
    flag = 5
    return x - 1
g = C(f); out = [g(x) for _ in range(5)] + ['flag' in globals()]
""",
"globals_dict_written": """
def f(x):
    globals()['n_calls'] = globals().get('n_calls', 0) + 1
    return x * 2
g = C(f); [g(x) for _ in range(4)]; out = n_calls
""",
"locals_returned": """
def f(x, a, *r, **k):
    y = x + a
    return sorted(locals()), locals()['k']
g = C(f); out = g(x, 1), g(x, 2, 3, z=4), g(x, 2.5, q=x)
""",
"walrus_in_comprehension": """
def f(x, l):
    r = [last := v * 2 for v in l if (n := v) > 1]
    return r, last, n
g = C(f); out = g(x, [1, 2, 3]), g(x, [3, 4]), g(x, [5, 6, 1])
""",
"walrus_of_tensor_in_while": """
def f(x):
    n = 0
    while (s := x.sum().item()) < 10: x = x * 2; n += 1
    return x, n, s
g = C(f); out = g(x), g(x * 4), g(x * 0.5), g(x * 100)
""",
"loop_else": """
def f(x, l, k):
    for v in l:
        if v == k: x = x * v; break
    else: x = x - 1
    return x
g = C(f); out = g(x, [1, 2], 2), g(x, [1, 2], 3), g(x, [], 3), g(x, [3, 3], 3)
""",
"while_else_with_continue": """
def f(x, n):
    t = 0
    while n > 0:
        n -= 1
        if n % 3 == 1: continue
        t += n
        if t > 8: break
    else: return x + t, 'else'
    return x * t, 'break'
g = C(f); out = [g(x, n) for n in (2, 5, 9, 0, 7)]
""",
"finally_overrides_return": """
log = []
def f(x):
    try: return x * 2
    finally:
        log.append(len(log))
        if len(log) % 2 == 0: return x * -1
g = C(f); out = [g(x) for _ in range(5)], log
""",
"try_else_finally_order": """
def f(x, d, k, log):
    try: y = d[k]
    except KeyError as e: log.append(e.args); y = 0
    else: log.append('else')
    finally: log.append('finally')
    return x * y
g = C(f); log = []; out = [g(x, {'a': 2}, k, log) for k in 'aba'], log
""",
"exception_name_unbound_after": """
def f(x):
    e = 1
    try: raise ValueError
    except ValueError as e: pass
    try: return e
    except UnboundLocalError: return x + 1
g = C(f); out = [g(x) for _ in range(3)]
""",
"star_unpack_middle": """
def f(x, l):
    a, *b, c = l
    return x * a - c, b
g = C(f); out = g(x, [1, 2, 3, 4]), g(x, (1, 2)), g(x, range(5)), g(x, [7, 8, 9])
""",
"unpack_wrong_length": """
def f(x, l):
    try: a, b = l
    except ValueError: return x * 0
    return x * a + b
g = C(f); out = g(x, [1, 2]), g(x, [1, 2, 3]), g(x, [1]), g(x, x), g(x, torch.ones(3))
""",
"unpack_tensor_rows": """
f = C(lambda m: [r * k for k, r in enumerate(m)]); out = f(torch.ones(2, 2)), f(torch.ones(3, 2)), f(torch.ones(1, 2)), f(torch.ones(0, 2))
""",
"call_star_and_double_star": """
def h(a, b=2, *c, d=4, **e): return a * b + sum(c) + d, e
f = C(lambda x, p, k: h(x, *p, **k)); out = f(x, (), {}), f(x, (3,), {'d': 1}), f(x, (3, 4, 5), {'z': 1}), f(x, [], {'b': 7, 'y': 2})
""",
"call_duplicate_keyword": """
def h(x, a=1): return x * a
f = C(lambda x, k: h(x, a=3, **k)); out = [f(x, {})]
try: f(x, {'a': 2})
except TypeError as e: out.append('TypeError')
out.append(f(x, {}))
""",
"positional_only_name_in_kwargs": """
def h(x, a, /, **k): return x * a, k
f = C(lambda x, n: h(x, 2, a=n)); out = f(x, 1), f(x, 2), f(x, 'q')
""",
"missing_argument_raises_after_compiling": """
f = C(lambda x, y, *, z=1: x + y + z); out = [f(x, 1), f(x, 2)]
for a, k in (((x,), {}), ((x, 1, 2), {}), ((x, 1), {'w': 1})):
    try: f(*a, **k); out.append('no error')
    except TypeError: out.append('TypeError')
""",
"argument_by_name_or_position": """
def f(x, y, *r, z=1, **k): return x * y + z, r, k
g = C(f); out = g(x, 2), g(y=2, x=x), g(x, 2, 3), g(x, y=2, z=5), g(x, 2, w=1), g(z=5, y=2, x=x)
""",
"keyword_argument_order": """
def f(x, **k): return list(k), x + list(k.values())[0]
g = C(f); out = g(x, a=1, b=2), g(x, b=2, a=1), g(x, a=1), g(x, b=2, a=1)
""",
"chained_comparison_evaluates_once": """
n = []
def h(v): n.append(v); return v
f = C(lambda x, a: (x + 1) if 0 < h(a) < 5 else x - 1); out = f(x, 3), f(x, 7), f(x, -1), f(x, 3), n
""",
"short_circuit_effects": """
n = []
def h(v): n.append(v); return v
f = C(lambda x, a, b: (x, h(a) and h(b) or h('c'))); out = [f(x, a, b)[1] for a, b in ((1, 0), (0, 1), (1, 2), ([], 3), (1.5, ''))], n
""",
"boolean_operators_return_operands": """
f = C(lambda x, a, b: (a or b, a and b, not a)); out = f(x, 0, 2), f(x, 0.0, -0.0), f(x, [], None), f(x, 3, 0), f(x, '', 'q'), f(x, True, 1)
""",
"order_of_evaluation_in_assignment": """
log = []
def h(v): log.append(v); return v
def f(x, d):
    d[h(1)], d[h(2)] = h(3), h(4)
    return x * d[1]
g = C(f); out = g(x, {}), g(x, {}), g(x, {}), log
""",
"order_of_evaluation_in_dict_display": """
log = []
def h(v): log.append(v); return v
f = C(lambda x: {h('k'): h(1), h('l'): h(2), **h({'k': 3})}); out = f(x), f(x), f(x), log
""",
"augmented_assignment_of_list_alias": """
def f(x, l):
    m = l
    m += [x.shape[0]]
    m = m + [0]
    return m
g = C(f); l = []; out = g(x, l), g(torch.ones(3), l), g(x, l), l
""",
"augmented_assignment_in_tuple": """
def f(x, t):
    try: t[0] += [1]
    except TypeError: pass
    return x * len(t[0])
g = C(f); t = ([],); out = g(x, t), g(x, t), g(x, t), t
""",
"augmented_item_of_tensor_dict": """
def f(x, d): d['a'] += x; d['b'] -= x.sum(); return d
g = C(f); d = {'a': torch.zeros(2), 'b': 1.0}; a = d['a']; [g(x, d) for _ in range(4)]; out = a, d, a is d['a']
""",
"del_item_and_slice": """
def f(x, l, d): del l[::2]; d.pop('k', None); del d['m']; return x * len(l)
g = C(f); out = []
for n in (4, 5, 1, 5):
    l, d = list(range(n)), {'m': 1, 'z': 2}; out += [g(x, l, d), l, d]
""",
"assert_fails_later": """
def f(x, n):
    assert n < 3, f'too big: {n}'
    return x * n
g = C(f); out = [g(x, 1), g(x, 2)]
try: g(x, 5)
except AssertionError as e: out.append(str(e))
out.append(g(x, 0))
""",
"assert_on_tensor_fails_later": """
def f(x):
    assert (x > 0).all(), 'negative'
    return x * 2
g = C(f); out = [g(x), g(x + 1)]
try: out.append(g(-x))
except AssertionError as e: out.append(str(e))
""",
"match_sequence_and_capture": """
def f(x, v):
    match v:
        case []: return x
        case [a]: return x * a
        case [a, *r] if a > 0: return x * a, r
        case (a, b): return x + b
        case _: return 'other'
g = C(f); out = [g(x, v) for v in ([], [2], [2, 3, 4], (-1, 5), 'ab', [-1, 2, 3])]
""",
"match_mapping_and_rest": """
def f(x, v):
    match v:
        case {'k': int(n), **rest}: return x * n, rest
        case {'k': str() as s}: return s
        case {}: return 'empty'
g = C(f); out = [g(x, v) for v in ({'k': 2}, {'k': 3, 'z': 1}, {'k': 'q'}, {}, {'k': True}, {'k': 1.5})]
""",
"match_class_positional": """
class P:
    __match_args__ = ('a', 'b')
    def __init__(self, a, b): self.a, self.b = a, b
def f(x, p):
    match p:
        case P(0, b): return x + b
        case P(a, b=None): return x * a
        case P(): return x
g = C(f); out = g(x, P(0, 3)), g(x, P(2, None)), g(x, P(2, 2)), g(x, P(0, 4))
""",
"match_args_changed": """
class P:
    __match_args__ = ('a', 'b')
    a, b = 2.0, 3.0
def f(x, p):
    match p:
        case P(u, v): return x * u - v
g = C(f); p = P(); out = [g(x, p)]; P.__match_args__ = ('b', 'a'); out += [g(x, p)]
""",
"match_literal_types": """
def f(x, v):
    match v:
        case True: return 'true'
        case 1: return 'one'
        case 1.5 | 'q': return 'or'
        case None: return 'none'
        case _: return x * 0
g = C(f); out = [g(x, v) for v in (1, True, 1.0, 1.5, 'q', None, 0)]
""",
"conditional_on_type_of_argument": """
f = C(lambda x, v: x * 2 if isinstance(v, bool) else x * 3 if isinstance(v, int) else x * 4 if isinstance(v, float) else x); out = [f(x, v) for v in (1, True, 1.0, None, 0, False)]
""",
"lambda_captures_loop_variable": """
def f(x, n):
    fs = [lambda y: y * k for k in range(n)]
    gs = [lambda y, k=k: y * k for k in range(n)]
    return [h(x) for h in fs], [h(x) for h in gs]
g = C(f); out = g(x, 2), g(x, 3), g(x, 1)
""",
"returned_closure_shares_cell": """
def f(x):
    n = 0
    def up():
        nonlocal n; n += 1
        return n
    def get(): return n
    return x * 2, up, get
g = C(f); g(x); g(x); _, up, get = g(x); up(); up(); _, up2, get2 = g(x); out = get(), get2(), up2(), get()
""",
"decorator_applied_inside": """
count = []
def deco(s):
    count.append(s)
    def wrap(fn): return lambda *a: fn(*a) * s
    return wrap
def f(x, s):
    @deco(s)
    def h(y): return y + 1
    return h(x), h.__name__
g = C(f); out = g(x, 2), g(x, 3.5), g(x, 2), count
""",
"class_made_inside": """
def f(x, s):
    class K:
        scale = s
        def go(self, y): return y * self.scale
    return K().go(x), K.__name__, K().scale
g = C(f); out = g(x, 2), g(x, 3.5), g(x, 2)
""",
"comprehension_scopes": """
v = 100
def f(x, n):
    v = 1
    l = [v for v in range(n)]
    d = {k: v for k in l}
    s = {v * k for k in l}
    return x * v, l, d, s
g = C(f); out = g(x, 2), g(x, 3), g(x, 0)
""",
"nested_comprehension_of_tensors": """
f = C(lambda m: [[(a * b).sum() for b in m if b is not a] for a in m]); out = f([torch.ones(2), torch.ones(2) * 2]), f([torch.ones(2)] * 2), f([torch.ones(2)] * 3)
""",
"generator_expression_is_lazy": """
log = []
def f(x, l):
    g = (log.append(v) or v for v in l)
    return x * next(g)
g = C(f); out = g(x, [1, 2]), g(x, [3]), g(x, [4, 5, 6]), log
""",
"slice_object_argument": """
f = C(lambda x, l, s: (x[s], l[s])); y = torch.arange(6.0); l = list(range(6)); out = [f(y, l, s) for s in (slice(1, 3), slice(None, None, 2), slice(-2, None), slice(5, 1), slice(1, 3, None))]
""",
"extended_slice_assignment": """
def f(x, l, v): l[1::2] = v; return x * l[1]
g = C(f); out = []
for v in ([9, 8], [7, 6], [1]):
    l = [0, 1, 2, 3]
    try: out.append(g(x, l, v))
    except ValueError: out.append('ValueError')
    out.append(l)
""",
"ellipsis_and_newaxis_argument": """
f = C(lambda x, i: x[i].shape); y = torch.ones(2, 3, 4); out = [f(y, i) for i in (..., None, (..., 0), (None, ...), (0, ..., None), Ellipsis)]
""",
"multiple_targets_same_object": """
def f(x): a = b = [x]; a.append(1); return a, b
g = C(f); g(x); a, b = g(x); out = a is b, len(b)
""",
"swap_arguments": """
def f(a, b): a, b = b, a; a += 1; return a, b
g = C(f); out = []
for _ in range(3): p, q = torch.zeros(2), torch.ones(2); r = g(p, q); out += [p, q, r, r[0] is q]
""",
"same_tensor_returned_twice": """
def f(x): y = x * 2; return y, y, [y], x
g = C(f); g(x); a, b, (c,), d = g(x); out = a is b, b is c, d is x
""",
"constant_tuple_identity_of_none": """
f = C(lambda x, a=None: (x, a is None, a is ...)); out = f(x), f(x, 0), f(x, None), f(x, ...), f(x, False)
""",
"fstring_formatting_of_arguments": """
f = C(lambda x, n: f'{n!r:>5}|{n:5}|{n=}|{x.shape[0]:03d}|{tuple(x.shape)}'); out = f(x, 1), f(x, 2.5), f(torch.ones(3), True), f(torch.ones(30), 7)
""",
"recursion_depth_from_size": """
def h(x): return x if x.shape[0] <= 1 else h(x[:-1]) + 1
g = C(h); out = g(torch.ones(2)), g(torch.ones(5)), g(torch.ones(1)), g(torch.ones(9))
""",
"mutual_recursion_replaced": """
def even(x, n): return x if n == 0 else odd(x * 2, n - 1)
def odd(x, n): return -x if n == 0 else even(x * 3, n - 1)
f = C(even); out = [f(x, 2), f(x, 3)]; odd = lambda x, n: x * 0; out += [f(x, 3), f(x, 0)]
""",
"async_for_inside": """
import asyncio
async def agen(n):
    for i in range(n): yield i
async def main(x, n):
    t = x
    async for i in agen(n): t = t + i
    return t, [i async for i in agen(n)]
f = C(lambda x, n: asyncio.run(main(x, n))); out = f(x, 2), f(x, 3), f(x, 0)
""",
"type_hints_evaluated": """
n = []
def h(): n.append(1); return int
def f(x):
    def inner(a: h()) -> None: return a
    return inner(x), inner.__annotations__
g = C(f); out = g(x), g(x), g(x), len(n)
""",
"exec_and_eval_inside": """
s = 2.0
f = C(lambda x, e: eval(e)); out = [f(x, 'x * s'), f(x, 'x - s')]; s = 3.0; out += [f(x, 'x * s')]
""",
"function_attributes": """
def f(x): f.calls += 1; return x * f.scale
f.calls, f.scale = 0, 2.0; g = C(f); out = [g(x), g(x)]; f.scale = 3.0; out += [g(x), f.calls]
""",
"integer_division_signs": """
f = C(lambda x, a, b: (a // b, a % b, divmod(a, b), a / b)); out = [f(x, a, b) for a, b in ((7, 2), (-7, 2), (7, -2), (-7, -2), (-7.5, 2), (6, 4))]
""",
"zero_division_later": """
def f(x, a):
    try: return x * (1 / a)
    except ZeroDivisionError: return 'zero'
g = C(f); out = g(x, 1), g(x, 2), g(x, 0), g(x, 0.0), g(x, 4)
""",
"shift_and_bit_operators": """
f = C(lambda x, a, b: (a << b, a >> b, a & b, a | b, a ^ b, ~a)); out = [f(x, a, b) for a, b in ((5, 2), (-5, 3), (1, 70), (True, False), (2**70, 3))]
""",
"negative_shift_raises": """
def f(x, b):
    try: return 1 << b
    except ValueError: return 'ValueError'
g = C(f); out = g(x, 3), g(x, 4), g(x, -1), g(x, 64)
""",
"power_types": """
f = C(lambda x, a, b: a ** b); out = [f(x, a, b) for a, b in ((2, 3), (2, -1), (2, 100), (-8, 1 / 3), (0, 0), (2.0, 3), (-1, 3))]
""",
"iterating_while_appending": """
def f(x, l):
    for v in l:
        if len(l) < 6: l.append(v * 2)
    return x * sum(l)
g = C(f); out = []
for l in ([1], [1, 2], [5] * 7): out += [g(x, l), l]
""",
"dict_changed_during_iteration": """
def f(x, d):
    try:
        for k in d: d[k + 'z'] = 1
    except RuntimeError: return x - 1
    return x
g = C(f); out = g(x, {}), g(x, {'a': 1}), g(x, {}), g(x, {'b': 1, 'c': 2})
""",
"raise_inside_loop_keeps_effects": """
def f(x, l, log):
    for v in l:
        log.append(v)
        if v < 0: raise ValueError(v)
    return x * len(log)
g = C(f); out = []
for l in ([1, 2], [1, 2], [1, -2, 3], [4]):
    log = []
    try: out.append(g(x, l, log))
    except ValueError as e: out.append(e.args)
    out.append(log)
""",
}
