"""Generators, iterators, context managers and exceptions."""

PROGRAMS = {
"generator_argument_is_consumed": """
def gen(n):
    for k in range(n): yield k + 1.0
f = C(lambda x, g: x * next(g)); g = gen(6); out = [f(x, g), f(x, g), f(x, g), list(g)]
""",
"generator_argument_exhausted": """
f = C(lambda x, g: x * sum(g)); g = iter([1.0, 2.0]); out = [f(x, g), f(x, g), f(x, iter([3.0])), f(x, (v for v in (4.0, 5.0)))]
""",
"generator_returned": """
def f(x):
    for k in range(3): yield x * k
g = C(f); out = [list(g(x)), list(g(x + 1))]; i = g(x); out += [next(i), next(i)]
""",
"generator_returned_late_mutation": """
def f(x, l): return (x * v for v in l)
g = C(f); l = [1.0, 2.0]; a = g(x, l); l.append(3.0); out = [list(a)]; b = g(x, l); l.clear(); out += [list(b), list(a)]
""",
"generator_send": """
def acc():
    t = 0
    while True:
        v = yield t
        t += v
a = acc(); next(a); f = C(lambda x, v: x * a.send(v)); out = [f(x, 1), f(x, 2), f(x, 3), f(x, 1)]
""",
"generator_throw_and_close": """
log = []
def gen():
    try:
        while True:
            try: yield len(log)
            except KeyError: log.append('key')
    finally: log.append('closed')
def f(x):
    g = gen(); next(g); n = g.throw(KeyError); g.close()
    return x * n
g = C(f); out = [g(x) for _ in range(3)], log
""",
"generator_return_value": """
def inner(x):
    yield x
    return x.shape[0]
def outer(x):
    n = yield from inner(x)
    yield x * n
f = C(lambda x: list(outer(x))); out = f(x), f(torch.ones(3)), f(torch.ones(1))
""",
"stop_iteration_value": """
def gen(v):
    yield 1
    return v
def f(x, v):
    g = gen(v); next(g)
    try: next(g)
    except StopIteration as e: return x * e.value
h = C(f); out = h(x, 2), h(x, 3.5), h(x, 2)
""",
"next_with_default": """
f = C(lambda x, i: x * next(i, 9.0)); i = iter([1.0, 2.0]); out = [f(x, i) for _ in range(4)]
""",
"iterator_kept_between_calls": """
it = iter(range(10))
f = C(lambda x: x * next(it)); out = [f(x) for _ in range(4)], next(it)
""",
"iterator_replaced": """
it = iter([1.0, 2.0, 3.0, 4.0])
f = C(lambda x: x * next(it)); out = [f(x), f(x)]; it = iter([7.0, 8.0]); out += [f(x), f(x)]
""",
"iter_with_sentinel": """
s = [0]
def step(): s[0] += 1; return s[0]
f = C(lambda x, stop: x * sum(iter(step, stop))); out = f(x, 3), f(x, 6), f(x, 7), s
""",
"enumerate_and_zip_objects": """
f = C(lambda x, l, m: ([(i, x * a, b) for i, (a, b) in enumerate(zip(l, m), start=len(l))])); out = f(x, [1, 2], 'ab'), f(x, [1, 2, 3], 'ab'), f(x, [], 'ab')
""",
"zip_strict_raises": """
def f(x, l, m):
    try: return [x * a * b for a, b in zip(l, m, strict=True)]
    except ValueError: return 'ValueError'
g = C(f); out = g(x, [1], [2]), g(x, [1, 2], [2]), g(x, [1, 2], [2, 3]), g(x, [], [])
""",
"map_and_filter_lazy": """
log = []
def h(v): log.append(v); return v * 2
def f(x, l): m = map(h, filter(None, l)); return x * next(m), m
g = C(f); a = g(x, [0, 1, 2]); b = g(x, [0, 1, 2]); out = a[0], list(b[1]), log, type(a[1])
""",
"reversed_and_sorted_key": """
n = []
def key(v): n.append(v); return -v
f = C(lambda x, l: [x * v for v in sorted(l, key=key)] + list(reversed(l))); out = f(x, [1, 3, 2]), f(x, [3, 1]), f(x, [1, 3, 2]), n
""",
"range_object_argument": """
f = C(lambda x, r: (x * sum(r), r[-1], len(r), r.step, 4 in r)); out = f(x, range(5)), f(x, range(2, 9, 2)), f(x, range(9, 0, -3)), f(x, range(1, 5))
""",
"any_all_short_circuit": """
log = []
def h(v): log.append(v); return v
f = C(lambda x, l: (any(h(v) for v in l), all(h(v) for v in l), x)[:2]); out = f(x, [0, 1, 2]), f(x, [1, 0]), f(x, []), log
""",
"min_max_with_key_and_default": """
f = C(lambda x, l: (min(l, key=abs, default='none'), max(l, default=None), x)[:2]); out = f(x, [3, -1]), f(x, [-5, 4, 2]), f(x, []), f(x, [1.5])
""",
"sum_with_start": """
f = C(lambda x, l, s: sum(l, s)); out = f(x, [x, x], 0), f(x, [x], x), f(x, [], 5), f(x, [1, 2], 0.5), f(x, [[1], [2]], [])
""",
"contextmanager_function": """
import contextlib
log = []
@contextlib.contextmanager
def cm(v):
    log.append(('in', v))
    try: yield v * 2
    except KeyError: log.append('key')
    finally: log.append('out')
def f(x, d, v):
    with cm(v) as n: return x * d['a'] + n
    return x - 1
g = C(f); out = g(x, {'a': 1}, 1), g(x, {}, 2), g(x, {'a': 3}, 3), log
""",
"contextmanager_as_decorator": """
import contextlib
log = []
class M(contextlib.ContextDecorator):
    def __enter__(self): log.append('in')
    def __exit__(self, *a): log.append(a[0] is None)
@M()
def f(x): return x * len(log)
g = C(f); out = g(x), g(x), g(x), log
""",
"exit_stack_order": """
import contextlib
def f(x, n, log):
    with contextlib.ExitStack() as s:
        for k in range(n): s.callback(log.append, k)
        log.append('body')
    return x * len(log)
g = C(f); log = []; out = g(x, 2, log), g(x, 3, log), g(x, 0, log), log
""",
"exit_stack_pop_all": """
import contextlib
log = []
def f(x):
    with contextlib.ExitStack() as s: s.callback(log.append, 'late'); k = s.pop_all()
    log.append('now'); return x, k
g = C(f); a = g(x)[1]; b = g(x)[1]; c = g(x)[1]; b.close(); out = log
""",
"suppress_and_nullcontext": """
import contextlib
def f(x, d, quiet):
    with contextlib.suppress(KeyError) if quiet else contextlib.nullcontext(): return x * d['a']
    return x - 1
g = C(f); out = [g(x, {'a': 2}, True), g(x, {}, True), g(x, {'a': 3}, False)]
try: g(x, {}, False)
except KeyError: out.append('KeyError')
""",
"closing_and_redirect": """
import contextlib, io
def f(x, s):
    with contextlib.redirect_stdout(io.StringIO()) as o: print(x.shape[0], s)
    return o.getvalue()
g = C(f); out = g(x, 'a'), g(torch.ones(3), 'b'), g(x, 'c'), g(x, 'a')
""",
"with_several_managers_order": """
log = []
class M:
    def __init__(self, n): self.n = n; log.append('make' + n)
    def __enter__(self): log.append('in' + self.n); return self
    def __exit__(self, *a): log.append('out' + self.n)
def f(x):
    with M('a') as a, M('b'): log.append('body')
    return x
g = C(f); [g(x) for _ in range(3)]; out = log
""",
"enter_raises": """
class M:
    def __enter__(self): raise OSError('enter')
    def __exit__(self, *a): log.append('never')
log = []
def f(x, m):
    try:
        with m: return x * 2
    except OSError: return x - 1
import contextlib
g = C(f); out = g(x, contextlib.nullcontext()), g(x, M()), g(x, contextlib.nullcontext()), log
""",
"exception_cause_and_context": """
def f(x, k):
    try:
        try: {}[k]
        except KeyError as e: raise ValueError(k) from e
    except ValueError as e: return x * 2, repr(e.__cause__), e.__context__ is e.__cause__, e.__suppress_context__
g = C(f); out = g(x, 'a'), g(x, 'b'), g(x, 3)
""",
"exception_raised_through_caller": """
class E(Exception):
    def __init__(self, n): super().__init__(n); self.n = n
def f(x, n):
    if n > 2: raise E(n)
    return x * n
g = C(f); out = []
for n in (1, 3, 2, 5):
    try: out.append(g(x, n))
    except E as e: out.append((e.n, e.args, type(e).__name__))
""",
"exception_object_reused": """
err = ValueError('a')
def f(x, bad):
    if bad: raise err
    return x
g = C(f); g(x, False); got = []
for _ in range(3):
    try: g(x, True)
    except ValueError as e: got.append(e is err)
out = got, g(x, False)
""",
"exception_carries_tensor": """
class E(Exception): pass
def f(x, s):
    if s > 1: raise E(x * s)
    return x
g = C(f); out = []
for s in (1, 2, 3.5, 2):
    try: out.append(g(x, s))
    except E as e: out.append(e.args[0] + 1)
""",
"exception_group": """
def f(x, l):
    r = []
    try: raise ExceptionGroup('g', [ValueError(1), KeyError('k')][:l] + [TypeError()])
    except* ValueError as e: r.append(len(e.exceptions))
    except* (KeyError, TypeError) as e: r.append([type(v).__name__ for v in e.exceptions])
    return x * len(r), r
g = C(f); out = g(x, 0), g(x, 1), g(x, 2), g(x, 1)
""",
"exception_notes": """
def f(x, n):
    try: raise ValueError(n)
    except ValueError as e: e.add_note(f'note {n}'); return e.__notes__
g = C(f); out = g(x, 1), g(x, 2), g(x, 3)
""",
"traceback_function_names": """
import traceback
def bad(x): raise KeyError('k')
def f(x, go):
    return bad(x) if go else x
g = C(f); g(x, False); out = []
for _ in range(3):
    try: g(x, True)
    except KeyError as e: out.append([s.name for s in traceback.extract_tb(e.__traceback__) if s.filename == '<program>'][-2:])
""",
"traceback_line_number": """
def f(x, i):
    y = x + 1
    z = y[i]
    return z
g = C(f); out = [g(x, 0), g(x, 1)]
try: g(x, 5)
except IndexError as e:
    t = e.__traceback__
    while t.tb_next: t = t.tb_next
    out.append((t.tb_lineno, t.tb_frame.f_code.co_name))
""",
"sys_exc_info_inside": """
import sys
def f(x, d):
    try: d['a']
    except Exception: return x, sys.exc_info()[0].__name__
    return x, sys.exc_info()
g = C(f); out = g(x, {'a': 1}), g(x, {}), g(x, None), g(x, {'a': 1})
""",
"error_of_torch_operation_caught": """
def f(a, b):
    try: return a @ b
    except RuntimeError: return a.sum() + b.sum()
g = C(f); out = g(torch.ones(2, 3), torch.ones(3, 2)), g(torch.ones(2, 3), torch.ones(2, 2)), g(torch.ones(2, 2), torch.ones(2, 2))
""",
"error_of_broadcast_escapes": """
f = C(lambda a, b: a + b); out = [f(torch.ones(2), torch.ones(2)), f(torch.ones(3), torch.ones(3)), f(torch.ones(4), torch.ones(1))]
for p, q in ((2, 3), (5, 4)):
    try: f(torch.ones(p), torch.ones(q)); out.append('none')
    except RuntimeError: out.append('RuntimeError')
out.append(f(torch.ones(1), torch.ones(4)))
""",
"error_leaves_inplace_writes": """
def f(a, l, k):
    a.add_(1); l.append(1)
    if k: raise KeyError(k)
    a.mul_(10); l.append(2)
    return a
g = C(f); l = []; a = torch.zeros(2); g(a, l, 0); g(a, l, 0)
try: g(a, l, 1)
except KeyError: pass
g(a, l, 0); out = a, l
""",
"keyboard_interrupt_and_base_exception": """
class Stop(BaseException): pass
def f(x, n):
    try:
        if n == 2: raise Stop
        return x * n
    except Exception: return 'wrong'
g = C(f); out = [g(x, 1)]
try: out.append(g(x, 2))
except Stop: out.append('Stop')
try: C(lambda x: (_ for _ in ()).throw(SystemExit(3)))(x)
except SystemExit as e: out.append(e.code)
out.append(g(x, 3))
""",
"finally_runs_on_generator_left": """
log = []
def gen():
    try: yield 1; yield 2
    finally: log.append('left')
def f(x):
    for v in gen(): break
    log.append('after'); return x * v
g = C(f); [g(x) for _ in range(3)]; out = log
""",
"tee_and_islice_share_source": """
import itertools
src = iter(range(20)); a, b = itertools.tee(src)
f = C(lambda x: x * sum(itertools.islice(a, 2))); out = [f(x), f(x), f(x), list(itertools.islice(b, 7))]
""",
"count_and_cycle_kept": """
import itertools
c = itertools.count(5); y = itertools.cycle([1, 2, 3])
f = C(lambda x: x * next(c) + next(y)); out = [f(x) for _ in range(4)], next(c), next(y)
""",
"chain_groupby_accumulate": """
import itertools as t
f = C(lambda x, l: ([(k, list(g)) for k, g in t.groupby(l)], list(t.accumulate(l)), list(t.chain(l, [x.shape[0]])), list(t.pairwise(l)))); out = f(x, [1, 1, 2]), f(x, [3]), f(torch.ones(3), []), f(x, [2, 1, 1])
""",
"product_permutations_starmap": """
import itertools as t
f = C(lambda x, n: ([x * a for a in t.starmap(pow, t.product(range(n), [2]))], list(t.combinations(range(n), 2)), len(list(t.permutations(range(n)))))); out = f(x, 2), f(x, 3), f(x, 1), f(x, 0)
""",
"zip_longest_takewhile_compress": """
import itertools as t
f = C(lambda x, l, k: (list(t.zip_longest(l, 'ab', fillvalue=x.shape[0])), list(t.takewhile(lambda v: v < k, l)), list(t.compress(l, [1, 0, 1])), list(t.dropwhile(lambda v: v < k, l)))); out = f(x, [1, 2, 3], 2), f(x, [1], 3), f(torch.ones(3), [5, 0, 1], 1)
""",
}
