"""Tensor subclasses, __torch_function__, __torch_dispatch__, modes, numpy, DLPack, storages, copies, pickles."""

PROGRAMS = {
"subclass_without_overrides": """
class T(torch.Tensor): pass
f = C(lambda x: x * 2 + 1); t = x.as_subclass(T); out = f(x), f(t), f(x), f(torch.ones(3).as_subclass(T)), type(f(t)).__name__
""",
"subclass_attribute_carried": """
class T(torch.Tensor): pass
t = x.as_subclass(T); t.k = 2.0; f = C(lambda v: v * v.k); out = [f(t)]; t.k = 3.0; out += [f(t)]; u = torch.ones(2).as_subclass(T); u.k = 5.0; out += [f(u), type(f(u)).__name__]
""",
"subclass_method_replaced": """
class T(torch.Tensor):
    def go(self): return self * 2
t = x.as_subclass(T); f = C(lambda v: v.go()); out = [f(t), f(t)]; T.go = lambda s: s * 9; out += [f(t)]
""",
"torch_function_on_subclass_logs": """
log = []
class T(torch.Tensor):
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kw=None): log.append(fn.__name__); return super().__torch_function__(fn, types, args, kw or {})
f = C(lambda v: torch.sin(v) + 1); t = x.as_subclass(T); log.clear(); [f(t) for _ in range(3)]; out = log
""",
"torch_function_unwraps": """
class T(torch.Tensor):
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kw=None):
        r = super().__torch_function__(fn, types, args, kw or {})
        return r.as_subclass(torch.Tensor) if isinstance(r, T) and fn in (torch.sum, torch.Tensor.sum) else r
t = x.as_subclass(T); f = C(lambda v: (v * 2, (v * 2).sum())); f(t); out = [type(v).__name__ for v in f(t)], [type(v).__name__ for v in f(x)], f(t)
""",
"torch_function_replaced_on_class": """
class T(torch.Tensor):
    k = 10
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kw=None): r = super().__torch_function__(fn, types, args, kw or {}); return r * cls.k if fn is torch.sin else r
t = torch.zeros(2).as_subclass(T); f = C(lambda v: torch.cos(torch.sin(v) + 1) if v.dim() else v); g = C(lambda v: torch.sin(v + 1)); out = [g(t), g(t)]; T.k = 20; out += [g(t)]; T.__torch_function__ = torch._C._disabled_torch_function_impl; out += [g(t)]
""",
"duck_type_with_torch_function": """
class W:
    def __init__(self, v): self.v = v
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kw=None): return fn(*[a.v * 10 if isinstance(a, cls) else a for a in args], **(kw or {}))
f = C(lambda x, w: torch.add(x, w) + torch.mul(w, x)); w = W(torch.ones(2)); out = [f(x, w), f(x, x), f(x, w)]; w.v = torch.full((2,), 2.0); out += [f(x, w)]
""",
"torch_function_returns_other_type": """
class W:
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kw=None): return fn.__name__ if fn is not torch.stack else NotImplemented
def f(x, w):
    r = [torch.add(w, x)]
    try: r.append(torch.stack([x, w]))
    except TypeError: r.append('TypeError')
    return r
g = C(f); out = g(x, W()), g(x, x), g(x, W())
""",
"torch_function_mode_outside": """
from torch.overrides import TorchFunctionMode
class M(TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kw=None): r = fn(*args, **(kw or {})); return r + 100 if fn is torch.sin else r
f = C(lambda x: torch.sin(x * 0)); out = [f(x), f(x)]
with M(): out += [f(x), f(x)]
out += [f(x)]
""",
"torch_function_mode_inside": """
from torch.overrides import TorchFunctionMode
n = []
class M(TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kw=None): n.append(getattr(fn, '__name__', '')); return fn(*args, **(kw or {}))
def f(x):
    with M(): y = torch.cos(x); y = torch.neg(y)
    return torch.sin(y)
g = C(f); out = g(x), g(x), g(x * 2), n
""",
"torch_dispatch_mode_outside": """
from torch.utils._python_dispatch import TorchDispatchMode
n = []
class M(TorchDispatchMode):
    def __torch_dispatch__(self, fn, types, args=(), kw=None): n.append(fn.overloadpacket.__name__); return fn(*args, **(kw or {}))
f = C(lambda x: torch.sin(x) + 1); f(x); f(x)
with M(): r = f(x)
out = r, n, f(x)
""",
"torch_dispatch_mode_changes_results": """
from torch.utils._python_dispatch import TorchDispatchMode
class M(TorchDispatchMode):
    def __torch_dispatch__(self, fn, types, args=(), kw=None): r = fn(*args, **(kw or {})); return r * 10 if fn is torch.ops.aten.sin.default else r
f = C(lambda x: torch.sin(x) + 1); out = [f(x), f(x)]
with M(): out += [f(x), f(x * 2)]
out += [f(x)]
""",
"torch_dispatch_mode_inside": """
from torch.utils._python_dispatch import TorchDispatchMode
n = []
class M(TorchDispatchMode):
    def __torch_dispatch__(self, fn, types, args=(), kw=None): n.append(1); return fn(*args, **(kw or {}))
def f(x):
    with M(): y = x * 2 + 1
    return y * len(n)
g = C(f); out = g(x), g(x), g(x), len(n)
""",
"wrapper_subclass_with_dispatch": """
import torch.utils._pytree as pt
class T(torch.Tensor):
    @staticmethod
    def __new__(cls, v): return torch.Tensor._make_wrapper_subclass(cls, v.shape, dtype=v.dtype)
    def __init__(self, v): self.v = v
    @classmethod
    def __torch_dispatch__(cls, fn, types, args=(), kw=None):
        u = lambda a: a.v if isinstance(a, cls) else a
        r = fn(*pt.tree_map(u, args), **pt.tree_map(u, kw or {})); return pt.tree_map(lambda t: cls(t * 2) if isinstance(t, torch.Tensor) else t, r)
f = C(lambda v: v + 1); t = T(torch.ones(2)); r = [f(t), f(t), f(T(torch.zeros(3)))]; out = [(type(v).__name__, v.v) for v in r] + [f(x)]
""",
"wrapper_subclass_inner_swapped": """
class T(torch.Tensor):
    @staticmethod
    def __new__(cls, v): return torch.Tensor._make_wrapper_subclass(cls, v.shape, dtype=v.dtype)
    def __init__(self, v): self.v = v
    @classmethod
    def __torch_dispatch__(cls, fn, types, args=(), kw=None): return fn(*[a.v if isinstance(a, cls) else a for a in args], **(kw or {}))
t = T(torch.ones(2)); f = C(lambda x: x * t); out = [f(x), f(x)]; t.v = torch.full((2,), 5.0); out += [f(x)]; t.v.fill_(7); out += [f(x)]
""",
"parameter_subclass": """
class P(torch.nn.Parameter): pass
p = P(torch.ones(2)); f = C(lambda x: (x * p, isinstance(p, P), p)); f(x); r = f(x); out = type(r[2]).__name__, r[1], type(r[0]).__name__, r[0]
""",
"type_and_isinstance_of_tensors": """
class T(torch.Tensor): pass
f = C(lambda v: (type(v) is torch.Tensor, isinstance(v, torch.Tensor), isinstance(v, torch.nn.Parameter), type(v).__name__, isinstance(v, torch.FloatTensor))); out = f(x), f(torch.nn.Parameter(x)), f(x.as_subclass(T)), f(x.double()), f(x)
""",
"masked_tensor_like_container": """
class M:
    def __init__(self, d, m): self.d, self.m = d, m
    def __add__(self, o): return M(self.d + o, self.m)
    def value(self): return self.d[self.m]
f = C(lambda a: (a + 1).value()); t = torch.tensor; out = f(M(x, t([True, False]))), f(M(x, t([True, True]))), f(M(x * 2, t([False, True])))
""",
"array_protocol_of_results": """
f = C(lambda x: np.asarray(x * 2)); out = f(x), f(x * 3), f(torch.tensor([1, 2])), type(f(x)).__name__
""",
"numpy_function_of_tensor": """
f = C(lambda x: (np.sum(x.numpy()), np.sin(x), x.numpy().mean(), np.array(x.tolist()))); out = f(x), f(x * 2), f(torch.arange(3.0))
""",
"numpy_argument_and_result": """
f = C(lambda a, k: (a * k + 1, a.sum(), a.dtype)); out = f(np.ones(2), 2), f(np.ones(2, np.float32), 3), f(np.arange(3), 2), f(np.ones(2), 2.5)
""",
"numpy_argument_mutated": """
def f(a): a += 1; a[0] = 7; return a
g = C(f); a = np.zeros(2); g(a); g(a); r = g(a); out = a, r is a, g(np.zeros(3, np.int64))
""",
"numpy_global_changed": """
a = np.array([2.0, 3.0], np.float32); f = C(lambda x: x * torch.from_numpy(a)); out = [f(x), f(x)]; a[0] = 9; out += [f(x)]; a = np.array([5.0, 6.0], np.float32); out += [f(x)]
""",
"numpy_scalar_from_tensor_and_back": """
f = C(lambda x: (torch.tensor(np.float64(x.sum().item())), torch.as_tensor(np.int32(3)) * x, np.float32(2) * x, x * np.float64(2))); out = f(x), f(x * 2), f(torch.tensor([1, 2]))
""",
"from_numpy_result_aliases": """
a = np.zeros(2, np.float32); f = C(lambda v: torch.from_numpy(v)); f(a); f(a); t = f(a); t += 5; out = a, t, f(a).data_ptr() == a.ctypes.data
""",
"numpy_result_aliases_argument": """
f = C(lambda x: x.numpy()); f(x); f(x); a = f(x); a += 4; out = x, a.dtype == np.float32, f(x).ctypes.data == x.data_ptr()
""",
"numpy_of_grad_tensor_raises": """
def f(x):
    try: return x.numpy()
    except RuntimeError: return 'RuntimeError'
g = C(f); out = g(x), g(torch.ones(2, requires_grad=True)), g(torch.ones(3)), g(torch.ones(2).conj())
""",
"numpy_strided_and_reversed_input": """
def f(a):
    try: return torch.from_numpy(a) * 2, torch.from_numpy(a).stride()
    except ValueError: return 'ValueError'
g = C(f); a = np.arange(6.0); out = g(a), g(a[::2]), g(a.reshape(2, 3).T), g(a[::-1]), g(a)
""",
"numpy_dtypes_without_tensor": """
def f(a):
    try: return torch.as_tensor(a)
    except TypeError: return 'TypeError'
g = C(f); out = g(np.ones(2)), g(np.array(['a'])), g(np.array([1], np.uint16)), g(np.array([True])), g(np.array([1, None]))
""",
"numpy_ufunc_error_state": """
def f(a):
    try: return np.log(a)
    except FloatingPointError: return 'FloatingPointError'
g = C(f); z = np.zeros(1); np.seterr(all='ignore'); out = [g(z + 1), g(z)]; np.seterr(divide='raise'); out += [g(z), g(z + 1)]
""",
"numpy_structured_and_object": """
f = C(lambda a: (a['p'].sum(), a.dtype.names)); d = np.dtype([('p', 'f4'), ('q', 'i4')]); a = np.zeros(2, d); out = [f(a)]; a['p'] = 3; out += [f(a)]
""",
"dlpack_round_trip": """
f = C(lambda x: torch.from_dlpack(x)); f(x); r = f(x); r += 3; out = x, r.data_ptr() == x.data_ptr(), torch.from_dlpack(np.ones(2)), C(lambda a: torch.from_dlpack(a))(np.arange(3.0))
""",
"buffer_protocol_views": """
b = bytearray(8); f = C(lambda x: x * torch.frombuffer(b, dtype=torch.float32)); out = [f(x)]; np.frombuffer(b, np.float32)[:] = 2; out += [f(x)]; b[:] = bytes(8); out += [f(x)]
""",
"storage_read_and_written": """
def f(x): s = x.untyped_storage(); s[0] = 0; return x * 2, s.size(), len(x.storage())
g = C(f); out = g(torch.ones(2)), g(torch.ones(2)), g(torch.ones(4)[1:])
""",
"storage_swapped_from_outside": """
t = torch.ones(2); f = C(lambda x: x * t); out = [f(x), f(x), f(x)]; t.untyped_storage().copy_(torch.full((2,), 4.0).untyped_storage()); out += [f(x)]; t.untyped_storage().fill_(0); out += [f(x)]
""",
"swap_tensors": """
a, b = torch.ones(2), torch.full((2,), 5.0); f = C(lambda x: x * a); out = [f(x), f(x)]; torch.utils.swap_tensors(a, b); out += [f(x), f(x)]
""",
"tensor_pickled": """
import pickle
f = C(lambda t: pickle.loads(pickle.dumps(t)) * 2); out = f(x), f(torch.ones(3, requires_grad=True)), f(torch.ones(2, 2).t()).stride(), f(torch.nn.Parameter(x))
""",
"result_pickled_outside": """
import pickle, copy
f = C(lambda x: (x * 2, {'a': x.shape})); r = pickle.loads(pickle.dumps(f(x))); q = copy.deepcopy(f(x * 3)); out = r, q, copy.copy(f(x)[0])
""",
"deepcopy_of_tensor_with_grad": """
import copy
def f(w): c = copy.deepcopy(w); return c * 2, c.is_leaf, c.grad
g = C(f); w = torch.ones(2, requires_grad=True); out = [g(w)]; (w * 3).sum().backward(); out += [g(w), g(w)]
""",
"deepcopy_of_non_leaf_raises": """
import copy
def f(v):
    try: return copy.deepcopy(v)
    except RuntimeError: return 'RuntimeError'
g = C(f); out = g(x), g(torch.ones(2, requires_grad=True) * 2), g(torch.ones(2, requires_grad=True))
""",
"clone_and_copy_of_views": """
import copy
def f(x): v = x[1:]; a, b, c = copy.copy(v), copy.deepcopy(v), v.clone(); x.add_(10); return a, b, c, b.untyped_storage().nbytes()
g = C(f); out = g(torch.zeros(3)), g(torch.zeros(4)), g(torch.zeros(3))
""",
"fake_tensor_mode_outside": """
from torch._subclasses.fake_tensor import FakeTensorMode
f = C(lambda x: (x * 2).shape); out = [f(x)]
with FakeTensorMode() as m: out += [f(torch.ones(3)), type(torch.ones(1)).__name__]
out += [f(x)]
""",
"complex_numpy_interop": """
f = C(lambda a: (torch.from_numpy(a).conj() * 2).resolve_conj().numpy()); out = f(np.array([1 + 2j])), f(np.array([1j, 2], np.complex64)), f(np.array([0j]))
""",
"array_interface_object": """
class A:
    n = 0
    def __array__(self, dtype=None, copy=None): A.n += 1; return np.full(2, float(A.n), np.float32)
a = A(); f = C(lambda x: x * torch.as_tensor(np.asarray(a))); out = [f(x) for _ in range(3)], A.n
""",
"sequence_protocol_to_tensor": """
class S:
    def __init__(self, v): self.v = v
    def __len__(self): return len(self.v)
    def __getitem__(self, i): return self.v[i]
s = S([1.0, 2.0]); f = C(lambda x: torch.tensor(s) * x); out = [f(x)]; s.v = [5.0, 6.0]; out += [f(x)]; s.v[0] = 9.0; out += [f(x)]
""",
}
