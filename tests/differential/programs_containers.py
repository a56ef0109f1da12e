"""Lists, tuples, dicts, sets and the containers of the library."""

PROGRAMS = {
"list_mutators_visible_outside": """
def f(x, l): l.append(4); l.extend([5]); l.insert(0, x.shape[0]); l.remove(1); l.sort(reverse=True); l.reverse(); return x * l.pop(), l
g = C(f); out = []
for n in (2, 3, 4): l = [1, 2, 3]; r = g(torch.ones(n), l); out += [r[0], l, r[1] is l]
""",
"list_slice_assignment_changes_length": """
def f(x, l): l[1:2] = [7, 8, 9]; l[:0] = [0]; return x * len(l)
g = C(f); l = [1, 2, 3]; out = [g(x, l), g(x, l), l, g(x, [1]), g(x, [])]
""",
"list_contains_itself": """
l = [1.0]; l.append(l)
f = C(lambda x, l: (x * l[0], l[1] is l, len(l[1][1]))); out = [f(x, l)]; l[0] = 2.0; out += [f(x, l)]; l[1] = [l, l]; out += [f(x, l)]
""",
"list_of_tensors_replaced_element": """
l = [torch.ones(2), torch.zeros(2)]
def f(x): l[0] = l[0] + x; l[1] += 1; return l[0] * l[1]
g = C(f); b = l[1]; out = [g(x), g(x), g(x), l, l[1] is b]
""",
"list_multiplication_shares": """
def f(x, n): r = [[]] * n; r[0].append(x); return r
g = C(f); out = []
for n in (2, 3, 1): r = g(x, n); out += [len(r), all(v is r[0] for v in r), r]
""",
"list_equality_with_tensor_elements": """
f = C(lambda x, a, b: a == b); l = [x, 1]; out = f(x, l, [x, 1]), f(x, l, l), f(x, [1], [1.0]), f(x, [1, 2], [1]), f(x, l, (x, 1))
""",
"list_index_and_count_and_in": """
def f(x, l, v):
    try: i = l.index(v)
    except ValueError: i = None
    return i, l.count(v), v in l, x
g = C(f); out = [g(x, [1, 2, 1], v)[:3] for v in (1, 2, 3, True, 1.0)]
""",
"tuple_index_by_argument": """
f = C(lambda x, t, i: (t[i], t[-1 - i], t[i:], t + (i,), t * 2)); out = f(x, (1.0, x), 0), f(x, (1.0, 2), 1), f(x, (x, 3, 4), 0)
""",
"tuple_argument_changes_length": """
f = C(lambda x, t: (x + sum(t), len(t), t)); out = f(x, (1, 2)), f(x, (1, 2, 3)), f(x, ()), f(x, (1.5,)), f(x, (x, x))
""",
"named_tuple_argument_and_result": """
import collections
P = collections.namedtuple('P', 'a b', defaults=[5]); Q = collections.namedtuple('Q', 'b a')
f = C(lambda x, p: (x * p.a, p._replace(b=x), p._asdict(), p)); out = f(x, P(1)), f(x, P(2, 3)), f(x, Q(1, 2)), f(x, P(2, 3))
""",
"named_tuple_class_with_methods": """
import typing
class P(typing.NamedTuple):
    a: float
    b: int = 2
    def go(self, x): return x * self.a + self.b
f = C(lambda x, p: (p.go(x), P(x, b=p.b), P._fields)); out = [f(x, P(1.0))]; P.go = lambda self, x: x - self.a; out += [f(x, P(1.0)), f(x, P(3.0, 4))]
""",
"dict_order_of_insertion": """
f = C(lambda x, d: (list(d), list(d.items())[0], next(iter(d.values())) * x)); out = f(x, {'a': 1, 'b': 2}), f(x, {'b': 2, 'a': 1}), f(x, {'b': 1, 'a': 2, 'c': 0})
d = {'a': 1, 'b': 2}; f(x, d); v = d.pop('a'); d['a'] = v; out += (f(x, d),)
""",
"dict_mutators_visible_outside": """
def f(x, d):
    a = d.pop('a', None); d.setdefault('s', []).append(a); d.update(b=x.shape[0]); d |= {'c': 1}; k = d.popitem()
    return k, x
g = C(f); d = {'a': 1}; out = [g(x, d)[0], g(torch.ones(3), d)[0], g(x, d)[0], d]
""",
"dict_views_are_live": """
def f(x, d): k = d.keys(); d['z'] = 1; return len(k), list(k), d.items() & {('z', 1)}, x
g = C(f); out = g(x, {})[:3], g(x, {'a': 2})[:3], g(x, {'z': 5})[:3]
""",
"dict_view_returned": """
d = {'a': 1}; f = C(lambda x: (x, d.values(), d.keys())); _, v, k = f(x); f(x); d['b'] = 2; out = list(v), list(k), [list(w) for w in f(x)[1:]]
""",
"dict_keys_of_many_types": """
f = C(lambda x, d, k: d.get(k, 'none')); d = {1: 'int', 'a': 'str', (1, 2): 'tuple', None: 'None', 2.5: 'float', int: 'type', b'a': 'bytes'}; out = [f(x, d, k) for k in (1, True, 1.0, 'a', (1, 2), None, 2.5, int, b'a', 3)]
""",
"dict_key_is_tensor": """
k = torch.ones(1); d = {k: 2.0}; f = C(lambda x, t: x * d.get(t, -1.0)); out = [f(x, k), f(x, torch.ones(1))]; d[k] = 3.0; out += [f(x, k), len(d)]
""",
"dict_union_and_comparison": """
f = C(lambda x, a, b: (a | b, a == b, {**b, **a}, dict(a, z=1))); out = f(x, {'a': 1}, {'b': 2}), f(x, {'a': 1}, {'a': 1.0}), f(x, {}, {})
""",
"dict_nan_and_zero_keys": """
n = float('nan'); f = C(lambda x, d, k: (k in d, len(d), x * d.get(k, 7))); out = f(x, {n: 1}, n), f(x, {n: 1}, float('nan')), f(x, {0.0: 2}, -0.0), f(x, {0: 3}, False)
""",
"dict_fromkeys_shares_value": """
def f(x, ks): d = dict.fromkeys(ks, []); d[ks[0]].append(x.shape[0]); return d
g = C(f); out = g(x, 'ab'), g(torch.ones(3), 'abc'), g(x, 'a')
""",
"dict_of_modules_changed": """
d = {'m': torch.nn.Identity()}; f = C(lambda x: d['m'](x)); out = [f(x), f(x)]; d['m'] = torch.nn.Softplus(); out += [f(x)]; d['m'] = lambda v: v * 9; out += [f(x)]
""",
"set_operations_of_arguments": """
f = C(lambda x, a, b: (a | b, a & b, a - b, a ^ b, a <= b, a.isdisjoint(b), x)[:6]); out = f(x, {1, 2}, {2, 3}), f(x, {1}, {1, 2}), f(x, set(), {1}), f(x, frozenset({1}), {2})
""",
"set_mutated_inside": """
s = set()
def f(x): s.add(len(s)); s.discard(5); s.update({x.shape[0]}); return x * len(s)
g = C(f); out = [g(x), g(torch.ones(7)), g(x), s]
""",
"set_membership_of_strings": """
s = {'a', 'b'}; f = C(lambda x, k: x + 1 if k in s else x - 1); out = [f(x, 'a'), f(x, 'c')]; s.add('c'); out += [f(x, 'c')]; s.clear(); out += [f(x, 'a')]
""",
"frozenset_as_key": """
f = C(lambda x, a: {frozenset(a): x}.get(frozenset({2, 1}), 'none')); out = f(x, [1, 2]), f(x, [2, 1]), f(x, [1]), f(x, (2, 1, 1))
""",
"default_dict_factory": """
import collections
n = [0]
def make(): n[0] += 1; return n[0] * 10
d = collections.defaultdict(make); f = C(lambda x, k: x * d[k]); out = [f(x, 'a'), f(x, 'b'), f(x, 'a'), f(x, 'c'), dict(d)]; d.default_factory = lambda: -1; out += [f(x, 'e')]; d.default_factory = None
try: f(x, 'z')
except KeyError: out += ['KeyError']
""",
"default_dict_returned": """
import collections
def f(x): d = collections.defaultdict(list); d['a'].append(x); d['b']; return d
g = C(f); g(x); d = g(x); d['new'].append(1); out = d, d.default_factory, type(d).__name__
""",
"ordered_dict_operations": """
import collections
def f(x, d): d.move_to_end('a', last=False); return x, d.popitem(last=True), d, list(reversed(d))
g = C(f); D_ = collections.OrderedDict; out = g(x, D_(b=1, a=2)), g(x, D_(a=2, b=1)), g(x, D_(c=x, a=1, b=2)), D_(a=1, b=2) == D_(b=2, a=1)
""",
"counter_operations": """
import collections
c = collections.Counter('aab')
def f(x, w): c.update(w); return x * c['a'], c.most_common(2), c['zz'], c - collections.Counter('a'), c.total()
g = C(f); out = g(x, 'b'), g(x, 'bb'), g(x, 'ac'), c
""",
"deque_with_maximum_length": """
import collections
d = collections.deque([1, 2], maxlen=3)
def f(x, v): d.append(v); d.rotate(1); return x * d[0], list(d), d.maxlen
g = C(f); out = g(x, 3), g(x, 4), g(x, 5), d, type(d).__name__
""",
"deque_of_tensors_rolls": """
import collections
d = collections.deque(maxlen=2)
def f(x): d.appendleft(x * 2); return sum(d), len(d)
g = C(f); out = [g(x), g(x + 1), g(x + 2), g(x + 3), d]
""",
"deque_changed_from_outside": """
import collections
d = collections.deque([1.0, 2.0]); f = C(lambda x: x * d[0] + d[-1]); out = [f(x), f(x)]; d.rotate(); out += [f(x)]; d[0] = 9.0; out += [f(x)]; d.append(4.0); out += [f(x)]
""",
"chain_map_written": """
import collections
a, b = {}, {'k': 1}; m = collections.ChainMap(a, b)
def f(x): m['k'] = m['k'] + 1; return x * m['k']
g = C(f); out = [g(x), g(x), a, b]; m.maps.pop(0); out += [g(x), b]
""",
"user_list_and_user_string": """
import collections
l = collections.UserList([1.0, 2.0]); f = C(lambda x, s: (x * l[0], len(l), s.upper(), l.data)); out = [f(x, collections.UserString('a'))]; l.append(3.0); l[0] = 5.0; out += [f(x, collections.UserString('b'))]
""",
"mapping_proxy": """
import types
d = {'a': 2.0}; p = types.MappingProxyType(d); f = C(lambda x: x * p['a'] + len(p)); out = [f(x), f(x)]; d['a'] = 3.0; out += [f(x)]; d['b'] = 1; out += [f(x)]
""",
"simple_namespace": """
import types
n = types.SimpleNamespace(a=2.0, sub=types.SimpleNamespace(b=1.0))
def f(x): n.calls = getattr(n, 'calls', 0) + 1; return x * n.a + n.sub.b
g = C(f); out = [g(x)]; n.sub.b = 5.0; out += [g(x)]; n.sub = types.SimpleNamespace(b=7.0); n.a = 1; out += [g(x), repr(n)]
""",
"heap_operations": """
import heapq
h = [5, 8, 6]; heapq.heapify(h)
def f(x, v): heapq.heappush(h, v); return x * heapq.heappop(h), heapq.nsmallest(2, h), heapq.heappushpop(h, 4), list(heapq.merge([1, v], [2]))
g = C(f); out = g(x, 3), g(x, 9), g(x, 1), h
""",
"bisect_operations": """
import bisect
l = [1.0, 3.0, 5.0]
def f(x, v): i = bisect.bisect(l, v); bisect.insort(l, v); return x * i, bisect.bisect_left(l, 3.0, key=None)
g = C(f); out = g(x, 2.0), g(x, 4.0), g(x, 9.0), g(x, 2.0), l
""",
"array_types_and_slices": """
import array
a = array.array('i', [1, 2, 3, 4])
def f(x, k): a.append(k); return x * sum(a[::2]), a.typecode, a.tobytes().hex()[-8:], list(a)
g = C(f); out = g(x, 1), g(x, 2), g(x, -3); a[1] = 50; out += (g(x, 0),)
""",
"memoryview_of_bytearray": """
b = bytearray(b'abcd'); m = memoryview(b)[1:3]
def f(x): m[0] = (m[0] + 1) % 256; return x * m[0], bytes(m), m.tolist()
g = C(f); out = [g(x), g(x)]; b[1] = 1; out += [g(x), bytes(b)]
""",
"memoryview_cast": """
b = bytearray(8); m = memoryview(b).cast('i'); f = C(lambda x: x * m[0] + m[1]); out = [f(x)]; m[0] = 5; out += [f(x)]; b[4] = 9; out += [f(x)]; m[1] = -1; out += [f(x), b.hex()]
""",
"bytearray_mutated_inside": """
b = bytearray()
def f(x): b.append(x.shape[0]); b.extend(b'z'); return x * len(b), bytes(b)
g = C(f); out = g(x), g(torch.ones(3)), g(x), b.hex()
""",
"bytes_argument": """
f = C(lambda x, b: (x * b[0], b[1:], b.hex(), b.split(b','), b'a' in b, list(b))); out = f(x, b'a,b'), f(x, b'\\x01\\xff'), f(x, b'zz,'), f(x, bytearray(b'a,b'))
""",
"nested_containers_of_tensors": """
def f(x, t): t['a'][0]['b'].append(x); t['a'].append({'b': []}); return sum(t['a'][0]['b'])
g = C(f); t = {'a': [{'b': [torch.zeros(2)]}]}; out = [g(x, t), g(x, t), g(x + 1, t), t]
""",
"same_object_in_two_arguments": """
def f(x, a, b): a.append(1); return x * len(b), a is b
g = C(f); l = [0]; out = g(x, l, l), g(x, l, [0]), g(x, [], l), g(x, l, l)
""",
"same_list_through_argument_and_global": """
l = [2.0]
def f(x, a): a[0] += 1; return x * l[0]
g = C(f); out = g(x, [1.0]), g(x, l), g(x, l), g(x, [5.0]), l
""",
"containers_returned_are_fresh": """
def f(x): return [x + 1], {'a': []}, set(), (x, [])
g = C(f); a = g(x); a[0].append(1); a[1]['a'].append(2); a[2].add(3); a[3][1].append(4); b = g(x); b[1]['a'].append(7); out = g(x), a[1] is b[1]
""",
"argument_container_returned_is_same": """
f = C(lambda x, l, d, s: (l, d, s, x)); l, d, s = [1], {'a': 1}, {1}; f(x, l, d, s); r = f(x, l, d, s); out = r[0] is l, r[1] is d, r[2] is s, r[3] is x
""",
"global_container_returned_is_same": """
l = [1]; d = {'a': torch.ones(1)}; f = C(lambda x: (l, d, d['a'], x * 2)); f(x); r = f(x); out = r[0] is l, r[1] is d, r[2] is d['a']; r[0].append(2); out += (f(x)[0],)
""",
"list_comparison_and_sorting_stability": """
f = C(lambda x, l: (sorted(l, key=lambda p: p[0]), sorted(l, reverse=True, key=lambda p: p[0]), max(l), [1, 2] < [1, x.shape[0]])); out = f(x, [(1, 'b'), (0, 'z'), (1, 'a')]), f(torch.ones(3), [(2, 'q')])
""",
"list_sort_by_tensor_values": """
f = C(lambda l: sorted(l, key=lambda t: t.sum().item())); a, b, c = torch.ones(1), torch.zeros(1), torch.full((1,), .5); out = f([a, b, c]), f([b, a]), f([c, b, a]), f([a, b, c])[0] is b
""",
"size_object_operations": """
f = C(lambda x: (x.shape + (1,), x.shape[1:], x.shape.numel(), list(x.shape), x.shape == [2], (*x.shape, 7), x.size())); out = f(x), f(torch.ones(2, 3)), f(torch.ones(())), f(torch.ones(0, 4))
""",
"struct_sequence_results": """
def f(x): r = torch.max(x, 0); return type(r).__name__, r.values, r[1], len(r), r
g = C(f); out = g(torch.tensor([1.0, 3.0])), g(torch.tensor([5.0, 2.0, 3.0])), g(torch.ones(2, 2))
""",
"weak_set_and_dict": """
import weakref
class K: pass
a, b = K(), K(); s = weakref.WeakSet([a, b]); d = weakref.WeakKeyDictionary({a: 1, b: 2})
f = C(lambda x: x * len(s) + sum(d.values())); out = [f(x), f(x)]; del b; out += [f(x)]; d[a] = 10; out += [f(x)]
""",
"queue_operations": """
import queue
q = queue.Queue(); [q.put(v) for v in (1.0, 2.0, 3.0)]
def f(x): v = q.get_nowait(); q.put(v * 10); return x * v + q.qsize()
g = C(f); out = [g(x) for _ in range(5)], list(q.queue)
""",
"priority_queue_and_empty": """
import queue
q = queue.PriorityQueue()
def f(x, v):
    if v: q.put(v)
    try: return x * q.get(block=False)
    except queue.Empty: return 'empty'
g = C(f); out = g(x, 3), g(x, 0), g(x, 2), g(x, 0)
""",
"graphlib_order": """
import graphlib
f = C(lambda x, d: list(graphlib.TopologicalSorter(d).static_order())); out = f(x, {'a': {'b'}}), f(x, {'b': {'a'}}), f(x, {'a': ['b'], 'b': ['c']})
""",
}
