"""The process: environment, files, threads, asyncio, logging, warnings, ctypes, parsers of arguments and settings."""

PROGRAMS = {
"environment_variable": """
import os
os.environ['Q_S'] = '2'; f = C(lambda x: x * float(os.environ.get('Q_S', '9'))); out = [f(x)]; os.environ['Q_S'] = '3'; out += [f(x)]; del os.environ['Q_S']; out += [f(x)]; os.putenv('Q_S', '4'); out += [f(x), os.getenv('Q_S')]
""",
"environment_written_inside": """
import os
def f(x): os.environ['Q_N'] = str(int(os.environ.get('Q_N', '0')) + 1); return x * 2
g = C(f); [g(x) for _ in range(4)]; out = os.environ['Q_N']
""",
"working_directory": """
import os, tempfile
d = os.path.realpath(tempfile.mkdtemp()); f = C(lambda x: (x, os.getcwd() == d)); out = [f(x)[1]]; os.chdir(d); out += [f(x)[1]]; os.chdir('/'); out += [f(x)[1]]
""",
"file_read_inside": """
import tempfile, os
p = tempfile.mkdtemp() + '/v'; open(p, 'w').write('2')
def f(x):
    with open(p) as h: return x * float(h.read())
g = C(f); out = [g(x), g(x)]; open(p, 'w').write('3'); out += [g(x)]
""",
"file_written_inside": """
import tempfile
p = tempfile.mkdtemp() + '/v'
def f(x):
    with open(p, 'a') as h: h.write(f'{x.shape[0]};')
    return x * 2
g = C(f); g(x); g(x); g(torch.ones(3)); g(x); out = open(p).read()
""",
"path_exists_and_iterdir": """
import pathlib, tempfile
p = pathlib.Path(tempfile.mkdtemp()); f = C(lambda x: (x * len(list(p.iterdir())), (p / 'a').exists(), (p / 'a').suffix, p.joinpath('b', 'c.txt').stem)); out = [f(x)]; (p / 'a').touch(); out += [f(x)]; (p / 'b').mkdir(); out += [f(x)]
""",
"string_buffer_position": """
import io
b = io.StringIO('1 2 3 4'); f = C(lambda x: x * float(b.read(2))); out = [f(x), f(x), f(x)]; b.seek(0); out += [f(x), b.tell()]
""",
"bytes_buffer_written": """
import io
b = io.BytesIO()
def f(x): b.write(bytes([x.shape[0]])); return x * b.tell()
g = C(f); out = g(x), g(torch.ones(3)), g(x), b.getvalue().hex()
""",
"tensor_saved_and_loaded": """
import io
def f(x): b = io.BytesIO(); torch.save({'a': x}, b); b.seek(0); return torch.load(b)['a'] * 2
g = C(f); out = g(x), g(x + 1), g(torch.ones(3))
""",
"memory_map_changed": """
import mmap
m = mmap.mmap(-1, 16); m[0] = 2; f = C(lambda x: x * m[0]); out = [f(x), f(x)]; m[0] = 3; out += [f(x)]; m.seek(0); m.write(b'\\x07'); out += [f(x), m.tell()]
""",
"tensor_over_memory_map": """
import mmap
m = mmap.mmap(-1, 16); t = torch.frombuffer(m, dtype=torch.uint8, count=2); f = C(lambda x: x * t); out = [f(x), f(x), f(x)]; m[0] = 3; out += [f(x)]
""",
"temporary_file_name_is_fresh": """
import tempfile, os
def f(x): d = tempfile.TemporaryDirectory(); ok = os.path.isdir(d.name); d.cleanup(); return x * 2, ok, d.name
g = C(f); r = [g(x) for _ in range(3)]; out = [v[1] for v in r], len({v[2] for v in r})
""",
"config_parser_changed": """
import configparser
c = configparser.ConfigParser(); c.read_string('[a]\\ns = 2.0\\nt = %(s)s'); f = C(lambda x: x * c.getfloat('a', 't')); out = [f(x)]; c['a']['s'] = '3.0'; out += [f(x)]; c.remove_option('a', 't'); out += [c.has_option('a', 't')]
""",
"argument_parser_namespace": """
import argparse
p = argparse.ArgumentParser(); p.add_argument('--s', type=float, default=2.0); n = p.parse_args([]); f = C(lambda x: x * n.s); out = [f(x)]; n.s = 3.0; out += [f(x)]; p.parse_args(['--s', '4'], namespace=n); out += [f(x)]
g = C(lambda x, a: x * p.parse_args(a).s); out += [g(x, []), g(x, ['--s', '5'])]; p.set_defaults(s=9.0); out += [g(x, [])]
""",
"sys_attributes": """
import sys
sys.q_value = 2.0; sys.argv = ['a']; f = C(lambda x: (x * sys.q_value, len(sys.argv), sys.maxsize, sys.flags.optimize)); out = [f(x)]; sys.q_value = 3.0; out += [f(x)]; sys.argv.append('z'); out += [f(x)]
""",
"sys_path_and_modules": """
import sys
f = C(lambda x: x + 1 if 'q_mod' in sys.modules else x - 1); out = [f(x)]; sys.modules['q_mod'] = sys; out += [f(x)]; del sys.modules['q_mod']; out += [f(x)]
""",
"int_max_str_digits": """
import sys
def f(x, n):
    try: return len(str(10 ** n))
    except ValueError: return 'ValueError'
g = C(f); out = [g(x, 700), g(x, 800)]; sys.set_int_max_str_digits(640); out += [g(x, 800), g(x, 100)]
""",
"audit_of_stdout_replaced": """
import sys, io
a, b = io.StringIO(), io.StringIO()
def f(x): sys.stdout.write('w'); return x * 2
g = C(f); keep = sys.stdout; sys.stdout = a; g(x); g(x); sys.stdout = b; g(x); sys.stdout = keep; out = a.getvalue(), b.getvalue()
""",
"trace_function_sees_nothing_new": """
import sys
f = C(lambda x: x * (2 if sys.gettrace() is None else 3)); out = [f(x), f(x)]; sys.settrace(lambda *a: None); r = f(x); sys.settrace(None); out += [r, f(x)]
""",
"thread_results_in_order": """
import threading
def f(x, l):
    ts = [threading.Thread(target=lambda k=k: l.__setitem__(k, x * k)) for k in range(len(l))]
    [t.start() for t in ts]; [t.join() for t in ts]
    return sum(l)
g = C(f); out = g(x, [0, 0]), g(x, [0, 0, 0]), g(x * 2, [0, 0])
""",
"compiled_called_in_threads": """
import threading
f = C(lambda x, n: x * n + 1); f(x, 1); r = {}
ts = [threading.Thread(target=lambda k=k: r.__setitem__(k, [f(torch.ones(k + 1), k) for _ in range(3)][-1])) for k in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]; out = [r.get(k) for k in range(4)]
""",
"grad_mode_of_threads": """
import threading
w = torch.ones(2, requires_grad=True); f = C(lambda x: x * w); out = []
with torch.no_grad():
    out.append(f(x).requires_grad); t = threading.Thread(target=lambda: out.append(f(x).requires_grad)); t.start(); t.join(); out.append(f(x).requires_grad)
""",
"thread_local_written_inside": """
import threading
l = threading.local()
def f(x): l.n = getattr(l, 'n', 0) + 1; return x * l.n
g = C(f); out = [g(x), g(x), g(x)]; r = []
t = threading.Thread(target=lambda: r.append(g(x))); t.start(); t.join(); out += r + [g(x), l.n]
""",
"lock_state": """
import threading
k = threading.Lock()
def f(x):
    if not k.acquire(blocking=False): return x - 1
    try: return x + 1
    finally: k.release()
g = C(f); out = [g(x), g(x)]; k.acquire(); out += [g(x)]; k.release(); out += [g(x), k.locked()]
""",
"event_and_semaphore": """
import threading
e = threading.Event(); s = threading.Semaphore(2)
f = C(lambda x: (x * (2 if e.is_set() else 3), s.acquire(blocking=False))); out = [f(x), f(x)]; e.set(); out += [f(x)]; s.release(); e.clear(); out += [f(x)]
""",
"thread_identity": """
import threading
f = C(lambda x: (x, threading.current_thread().name)[1]); out = [f(x)]
for n in 'ab': t = threading.Thread(target=lambda: out.append(f(x)), name=n); t.start(); t.join()
threading.current_thread().name = 'renamed'; out.append(f(x))
""",
"executor_map": """
from concurrent.futures import ThreadPoolExecutor
def f(x, n):
    with ThreadPoolExecutor(2) as e: return list(e.map(lambda k: x * k, range(n)))
g = C(f); out = g(x, 2), g(x, 3), g(x + 1, 2)
""",
"future_callbacks": """
from concurrent.futures import Future
log = []
def f(x): u = Future(); u.add_done_callback(lambda v: log.append(v.result().sum().item())); u.set_result(x); return x * len(log)
g = C(f); out = g(x), g(x * 2), g(x * 3), log
""",
"asyncio_gather_order": """
import asyncio
log = []
async def a(n, x): log.append(('s', n)); await asyncio.sleep(0); log.append(('e', n)); return x * n
async def main(x, n): return await asyncio.gather(*[a(k, x) for k in range(n)])
f = C(lambda x, n: asyncio.run(main(x, n))); out = f(x, 2), f(x, 1), f(x, 2), log
""",
"asyncio_compiled_inside_loop": """
import asyncio
s = [1.0]; f = C(lambda x: x * s[0])
async def main():
    r = []
    for k in range(4): s[0] = float(k); r.append(f(x)); await asyncio.sleep(0)
    return r
out = asyncio.run(main())
""",
"asyncio_context_per_task": """
import asyncio, contextvars
v = contextvars.ContextVar('v', default=0); f = C(lambda x: x * v.get())
async def t(n): v.set(n); await asyncio.sleep(0); return f(x)
async def main(): return await asyncio.gather(*[t(k) for k in range(4)])
out = asyncio.run(main()), f(x)
""",
"coroutine_object_returned": """
import asyncio
async def h(x, k): return x * k
def f(x, k): return h(x, k)
g = C(f); out = [asyncio.run(g(x, k)) for k in (1, 2, 3.5)]
""",
"logging_messages_repeated": """
import logging
r = []
class H(logging.Handler):
    def emit(self, e): r.append((e.levelname, e.getMessage(), e.funcName))
l = logging.getLogger('q.log'); l.addHandler(H()); l.setLevel(logging.INFO); l.propagate = False
def f(x): l.info('size %d', x.shape[0]); l.debug('no'); return x * 2
g = C(f); g(x); g(torch.ones(3)); g(x); l.setLevel(logging.DEBUG); g(x); l.disabled = True; g(x); out = r
""",
"logging_enabled_for": """
import logging
l = logging.getLogger('q.e'); f = C(lambda x: x + 1 if l.isEnabledFor(logging.INFO) else x - 1); out = [f(x), f(x)]; l.setLevel(logging.INFO); out += [f(x)]; logging.disable(logging.CRITICAL); out += [f(x)]; logging.disable(0); out += [f(x)]
""",
"logging_effective_level_of_parent": """
import logging
p, l = logging.getLogger('qp'), logging.getLogger('qp.c'); p.setLevel(30); f = C(lambda x: x * l.getEffectiveLevel()); out = [f(x), f(x)]; p.setLevel(10); out += [f(x)]; l.setLevel(50); out += [f(x)]
""",
"warnings_turned_to_errors": """
import warnings
def f(x):
    try: warnings.warn('w', UserWarning)
    except UserWarning: return x - 1
    return x + 1
g = C(f); warnings.simplefilter('ignore'); out = [g(x), g(x)]; warnings.simplefilter('error'); out += [g(x)]; warnings.simplefilter('ignore'); out += [g(x)]
""",
"warnings_caught_inside": """
import warnings
def f(x, n):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter('always')
        for k in range(n): warnings.warn(f'w{k}', DeprecationWarning)
    return x * len(w), [str(v.message) for v in w]
g = C(f); out = g(x, 1), g(x, 2), g(x, 0), g(x, 2)
""",
"torch_warning_repeated": """
import warnings
f = C(lambda x: torch.nn.functional.mse_loss(x, torch.ones(1, 2))); n = []
for _ in range(4):
    with warnings.catch_warnings(record=True) as w: warnings.simplefilter('always'); f(x)
    n.append(sum('target size' in str(v.message) for v in w))
out = n
""",
"ctypes_structure": """
import ctypes
class P(ctypes.Structure): _fields_ = [('a', ctypes.c_float), ('b', ctypes.c_int8)]
p = P(2.0, 1)
def f(x): p.b += 50; return x * p.a + p.b
g = C(f); out = [g(x), g(x), g(x)]; p.a = 3.0; out += [g(x), p.b]
""",
"ctypes_array_and_pointer": """
import ctypes
a = (ctypes.c_int * 3)(1, 2, 3); p = ctypes.pointer(a); f = C(lambda x: x * a[0] + p.contents[1] + sum(a)); out = [f(x), f(x)]; p.contents[0] = 5; out += [f(x)]; a[1] = 9; out += [f(x)]
""",
"ctypes_writes_tensor_memory": """
import ctypes
t = torch.ones(2); f = C(lambda x: x * t); f(x); f(x); f(x); ctypes.memset(t.data_ptr(), 0, 4); out = f(x)
""",
"locale_and_decimal_point": """
import locale
f = C(lambda x: (locale.localeconv()['decimal_point'], locale.format_string('%.1f', x.sum().item()))); out = f(x), f(x * 2), f(torch.ones(3))
""",
"signal_handler_reads": """
import signal
n = [0]; signal.signal(signal.SIGUSR1, lambda *a: n.__setitem__(0, n[0] + 1))
def f(x): signal.raise_signal(signal.SIGUSR1); return x * n[0]
g = C(f); out = [g(x) for _ in range(4)], n
""",
"subprocess_of_fork": """
import os
def f(x):
    p = os.fork()
    if p == 0: os._exit(x.shape[0])
    return x * os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])
g = C(f); out = g(x), g(torch.ones(3)), g(x)
""",
"process_identity_after_fork": """
import os
pid = os.getpid(); f = C(lambda x: x * (2 if os.getpid() == pid else 3)); f(x); f(x); r, w = os.pipe(); p = os.fork()
if p == 0: os.write(w, str(f(x).tolist()).encode()); os._exit(0)
os.waitpid(p, 0); out = os.read(r, 99), f(x)
""",
"recursion_error": """
import sys
def h(n): return 0 if n == 0 else 1 + h(n - 1)
def f(x, n):
    try: return x * h(n)
    except RecursionError: return 'RecursionError'
g = C(f); out = g(x, 3), g(x, 5), g(x, 100000), g(x, 3)
""",
"memory_error": """
def f(x, n):
    try: return x * len([0] * n)
    except (MemoryError, OverflowError) as e: return type(e).__name__
g = C(f); out = g(x, 2), g(x, 3), g(x, 2**62), g(x, 2**70)
""",
"profiler_function_set": """
import sys
def f(x): return x * (2 if sys.getprofile() is None else 3)
g = C(f); out = [g(x), g(x)]; sys.setprofile(lambda *a: None); r = g(x); sys.setprofile(None); out += [r]
""",
"builtin_input_and_breakpoint_hooks": """
import sys, io, builtins
builtins.input = lambda p='': 'v' + str(len(a)); a = []
def f(x): a.append(input()); return x * len(a)
g = C(f); out = [g(x), g(x), g(x), a]; n = []; sys.breakpointhook = lambda: n.append(1)
def h(x): breakpoint(); return x
h = C(h); [h(x) for _ in range(3)]; out += [len(n)]
""",
"shelve_and_sqlite": """
import sqlite3
db = sqlite3.connect(':memory:'); db.execute('create table t (v real)'); db.execute('insert into t values (2.0)')
f = C(lambda x: x * db.execute('select sum(v) from t').fetchone()[0]); out = [f(x), f(x)]; db.execute('insert into t values (3.0)'); out += [f(x)]
""",
"zoneinfo_and_timeit_absent_effects": """
import timeit
n = []
def f(x): timeit.timeit(lambda: n.append(1), number=x.shape[0]); return x * len(n)
g = C(f); out = g(x), g(torch.ones(3)), g(x), len(n)
""",
}
