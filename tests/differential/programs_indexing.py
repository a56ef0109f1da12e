"""Indexing of every kind, scatter and gather, masks, sorting, unique, control flow that depends on data."""

PROGRAMS = {
"index_argument_changes_kind": """
f = C(lambda x, i: x[i]); y = torch.arange(6.0).view(3, 2); out = [f(y, i) for i in (0, slice(1, 3), [0, 2], torch.tensor([1, 1]), torch.tensor(2), (0, 1), None, ..., True, torch.tensor([True, False, True]))]
""",
"negative_and_out_of_range_index": """
def f(x, i):
    try: return x[i]
    except IndexError: return 'IndexError'
g = C(f); y = torch.arange(3.0); out = [g(y, i) for i in (0, 1, -1, -3, 3, -4, 2)]
""",
"index_is_view_or_copy": """
f = C(lambda x, i: x[i]); out = []
for i in (0, slice(0, 1), [0], torch.tensor([0]), torch.tensor(0)): a = torch.zeros(2, 2); r = f(a, i); r += 1; out.append(a)
""",
"setitem_of_every_kind": """
def f(x, i, v): x[i] = v; return x
g = C(f); out = [g(torch.zeros(3, 2), i, v) for i, v in ((0, 1), (slice(None, None, 2), 2.5), ([0, 1], torch.ones(2)), (torch.tensor([True, False, True]), 7), ((..., 1), torch.arange(3)), (torch.tensor([0, 0]), torch.ones(2, 2)))]
""",
"setitem_casts_to_dtype": """
def f(x, v): x[0] = v; return x
g = C(f); i = torch.zeros(2, dtype=torch.int64); out = g(i, 1), g(i, 2.7), g(i, True), g(i, torch.tensor(3.9)), g(i.bool(), 5), g(torch.zeros(2), 2**40)
""",
"setitem_shape_error": """
def f(x, v):
    try: x[:2] = v
    except RuntimeError: return 'RuntimeError'
    return x
g = C(f); out = g(torch.zeros(3), torch.ones(2)), g(torch.zeros(3), torch.ones(3)), g(torch.zeros(3), torch.ones(1)), g(torch.zeros(1), torch.ones(2))
""",
"augmented_setitem_with_duplicates": """
def f(x, i): x[i] += 1; return x
g = C(f); t = torch.tensor; out = g(torch.zeros(3), t([0, 0, 1])), g(torch.zeros(3), t([2])), g(torch.zeros(3), [1, 1]), g(torch.zeros(3), slice(0, 2)), g(torch.zeros(3), t([True, False, True]))
""",
"index_put_accumulate": """
f = C(lambda x, i, v: x.index_put_((i,), v, accumulate=True)); t = torch.tensor; out = f(torch.zeros(3), t([0, 0]), x), f(torch.zeros(3), t([1]), t(5.0)), f(torch.zeros(3, dtype=torch.int64), t([2, 2]), t([1, 2]))
""",
"boolean_mask_of_changing_count": """
f = C(lambda x: (x[x > 0], x[x > 0].sum(), (x > 0).nonzero(), x.masked_select(x < 0).shape)); t = torch.tensor; out = f(t([1.0, -1.0])), f(t([1.0, 2.0])), f(t([-1.0, -2.0])), f(t([3.0, -1.0, 4.0])), f(torch.ones(0))
""",
"masked_assignment": """
def f(x, m, v): x[m] = v; x.masked_fill_(~m, -1); return x
g = C(f); t = torch.tensor; out = g(torch.zeros(2), t([True, False]), 5), g(torch.zeros(2), t([True, True]), t([1.0, 2.0])), g(torch.zeros(2), t([False, False]), torch.ones(0)), g(torch.zeros(3), t([True, False, True]), t([7.0, 8.0]))
""",
"mask_shape_error": """
def f(x, m):
    try: return x[m]
    except IndexError: return 'IndexError'
g = C(f); t = torch.tensor; out = g(torch.ones(2), t([True, False])), g(torch.ones(3), t([True, False])), g(torch.ones(2, 2), t([True, False]))
""",
"uint8_and_bool_masks": """
f = C(lambda x, m: x[m]); m = torch.tensor([1, 0]); out = f(x, m), f(x, m.bool()), f(x, [True, False]), f(x, [1, 0])
""",
"gather_scatter_basic": """
f = C(lambda x, i: (x.gather(1, i), torch.zeros(2, 3).scatter_(1, i, x), x.scatter_add(1, i, x), x.scatter_reduce(1, i, x, 'amax'))); y = torch.arange(6.0).view(2, 3); t = torch.tensor; out = f(y, t([[0, 1, 2], [2, 1, 0]])), f(y, t([[0, 0, 0], [1, 1, 1]])), f(y, t([[2, 2, 1], [0, 0, 0]]))
""",
"scatter_out_of_range": """
def f(x, i):
    try: return x.scatter(0, i, 1.0)
    except (RuntimeError, IndexError) as e: return 'error'
g = C(f); t = torch.tensor; out = g(torch.zeros(3), t([0])), g(torch.zeros(3), t([2])), g(torch.zeros(3), t([5])), g(torch.zeros(3), t([-1])), g(torch.zeros(3), t([1]))
""",
"index_select_and_take": """
f = C(lambda x, i: (x.index_select(0, i), x.take(i), torch.take_along_dim(x, i[:, None], 0), x.index_fill(0, i, 9.0), x.index_add(0, i, torch.ones(len(i), x.shape[1])))); y = torch.arange(6.0).view(3, 2); t = torch.tensor; out = f(y, t([0, 2])), f(y, t([1])), f(y, t([2, 2, 0])), f(y, torch.zeros(0, dtype=torch.int64))
""",
"index_select_out_of_range": """
def f(x, i):
    try: return x.index_select(0, i)
    except (IndexError, RuntimeError) as e: return 'error'
g = C(f); t = torch.tensor; out = g(x, t([0])), g(x, t([1, 1])), g(x, t([2])), g(x, t([-1])), g(x, t([0]))
""",
"embedding_negative_and_padding": """
w = torch.arange(6.0).view(3, 2)
def f(i):
    try: return torch.nn.functional.embedding(i, w, padding_idx=0)
    except IndexError: return 'IndexError'
g = C(f); t = torch.tensor; out = g(t([0, 1])), g(t([2])), g(t([3])), g(t([-1])), g(t([1, 2, 0]))
""",
"embedding_max_norm_renormalizes": """
w = torch.full((3, 2), 4.0); f = C(lambda i: torch.nn.functional.embedding(i, w, max_norm=1.0)); out = f(torch.tensor([0])), w.clone(), f(torch.tensor([1])), w.clone(), f(torch.tensor([0])), w
""",
"sort_stability_and_ties": """
f = C(lambda x: (x.sort(stable=True), x.argsort(stable=True, descending=True), x.topk(2).values, x.kthvalue(1).values, x.median(), x.mode().values)); t = torch.tensor; out = f(t([2.0, 1.0, 2.0])), f(t([1.0, 1.0, 1.0, 0.0])), f(t([3, 1, 2]))
""",
"topk_count_argument": """
def f(x, k):
    try: return torch.topk(x, k).values
    except RuntimeError: return 'RuntimeError'
g = C(f); y = torch.tensor([1.0, 3.0, 2.0]); out = [g(y, k) for k in (1, 2, 3, 0, 4)]
""",
"unique_counts": """
f = C(lambda x: torch.unique(x, return_inverse=True, return_counts=True)); t = torch.tensor; out = f(t([1, 2, 1])), f(t([3, 3])), f(t([5, 4, 3, 2])), f(torch.ones(0, dtype=torch.int64))
""",
"unique_consecutive_and_dim": """
f = C(lambda x: (torch.unique_consecutive(x, dim=0), torch.unique(x, dim=0).shape)); t = torch.tensor; out = f(t([[1], [1], [2]])), f(t([[1], [2], [1]])), f(t([[1], [1], [1]]))
""",
"nonzero_as_tuple_and_size": """
f = C(lambda x: (x.nonzero(as_tuple=True), len(x.nonzero()), x.count_nonzero())); t = torch.tensor; out = f(t([0.0, 1.0])), f(t([1.0, 1.0])), f(t([[0, 1], [2, 0]])), f(t(0.0)), f(t(3))
""",
"where_one_argument": """
f = C(lambda x: (torch.where(x > 1), torch.argwhere(x > 1))); t = torch.tensor; out = f(t([0.0, 2.0])), f(t([3.0, 2.0])), f(t([0.0])), f(t([[2.0], [0.0]]))
""",
"where_types_and_scalars": """
f = C(lambda c, a, b: torch.where(c, a, b)); c = torch.tensor([True, False]); i = torch.tensor([1, 2]); out = [f(c, a, b) for a, b in ((x, x * 0), (i, 2.5), (x, 1), (1, 2), (1.0, 2), (i, x), (x.double(), 1))]
""",
"branch_on_sum": """
f = C(lambda x: x * 2 if x.sum() > 0 else x - 1); out = f(x), f(-x), f(x * 3), f(x * 0), f(torch.tensor([float('nan'), 1.0])), f(-x)
""",
"branch_inside_branch": """
def f(x):
    if x[0] > 0:
        if x[1] > 0: return x + 1
        return x + 2
    return x + 3 if x[1] > 0 else x + 4
g = C(f); t = torch.tensor; out = [g(t([a, b])) for a, b in ((1., 1.), (1., -1.), (-1., 1.), (-1., -1.), (1., 1.), (-1., -1.))]
""",
"loop_count_from_data": """
def f(x, n):
    for k in range(int(n)): x = x * 2 + k
    return x
g = C(f); out = [g(x, torch.tensor(n)) for n in (1, 3, 0, 2, 1)]
""",
"loop_until_converged": """
def f(x):
    n = 0
    while (x - x.mean()).abs().max() > 0.1 and n < 50: x = (x + x.mean()) / 2; n += 1
    return x, n
g = C(f); t = torch.tensor; out = g(t([1.0, 2.0])), g(t([1.0, 9.0])), g(t([1.0, 1.0])), g(t([0.0, 100.0, 3.0]))
""",
"slice_length_from_data": """
f = C(lambda x, n: (x[:n], x[n:], x[n.item() - 1])); y = torch.arange(5.0); out = [f(y, torch.tensor(k)) for k in (1, 3, 5, 2)]
""",
"size_from_data": """
f = C(lambda x, n: (torch.zeros(n.item()), torch.arange(n), x.repeat(n.item()), x.expand(n.item(), 2))); out = [f(x, torch.tensor(k)) for k in (1, 2, 4, 0)]
""",
"effects_before_a_branch_on_data": """
log = []
def f(x):
    log.append('in'); x.add_(1)
    if x.sum() > 5: log.append('big'); return x * 2
    log.append('small'); return x
g = C(f); y = torch.ones(2); out = [g(y).clone() for _ in range(5)] + [log, y]
""",
"generator_state_before_a_branch_on_data": """
def f(x):
    a = torch.rand(2)
    if x.sum() > 0: return a
    return a, torch.rand(2)
g = C(f); torch.manual_seed(0); out = g(x), g(-x), g(x), g(-x), torch.rand(1)
""",
"any_all_conditions": """
f = C(lambda x: ('all' if (x > 0).all() else 'any' if (x > 0).any() else 'none', x + 1)); t = torch.tensor; out = f(t([1., 2.])), f(t([1., -2.])), f(t([-1., -2.])), f(torch.ones(0)), f(t([1., 2.]))
""",
"isnan_guard_in_program": """
def f(x):
    if torch.isnan(x).any(): raise ValueError('nan')
    return x * 2
g = C(f); out = [g(x), g(x + 1)]
try: g(x * float('nan'))
except ValueError as e: out.append(str(e))
out.append(g(x))
""",
"allclose_equal_conditions": """
f = C(lambda a, b: (torch.equal(a, b), torch.allclose(a, b), a.equal(b + 0), (a == b).all().item())); out = f(x, x), f(x, x + 1), f(x, x + 1e-9), f(x, torch.ones(3)[:2]), f(x, x.clone())
""",
"argmax_used_as_index": """
f = C(lambda x, l: (l[x.argmax()], x[x.argmax()], x.argmax().item())); t = torch.tensor; out = f(t([1., 3., 2.]), 'abc'), f(t([5., 3., 2.]), 'abc'), f(t([1., 3., 7.]), 'xyz')
""",
"dictionary_by_item": """
d = {0: torch.neg, 1: torch.exp}; f = C(lambda x, i: d[i.item()](x)); t = torch.tensor; out = f(x, t(0)), f(x, t(1)), f(x, t(0)); d[0] = torch.abs; out += (f(-x, t(0)), f(x, t(True)))
""",
"searchsorted_bucketize_histogram": """
f = C(lambda x, b: (torch.searchsorted(b, x), torch.bucketize(x, b, right=True), torch.histc(x, 3, 0, 3), torch.bincount(x.long()))); t = torch.tensor; out = f(t([0.5, 1.0]), t([0.0, 1.0, 2.0])), f(t([2.0, 2.0, 0.0]), t([1.0])), f(t([1.5]), t([1.0, 1.5]))
""",
"repeat_interleave_by_data": """
f = C(lambda x, n: x.repeat_interleave(n)); t = torch.tensor; out = f(x, t([1, 2])), f(x, t([0, 3])), f(x, t([0, 0])), f(x, 2)
""",
"split_by_sizes_argument": """
def f(x, s):
    try: return x.split(s)
    except RuntimeError: return 'RuntimeError'
g = C(f); y = torch.arange(5.0); out = g(y, 2), g(y, [1, 4]), g(y, [2, 2]), g(y, [5]), g(y, 7)
""",
"roll_flip_rot_tile": """
f = C(lambda x, n: (x.roll(n), x.flip(0), torch.tile(x, (n + 3,)), torch.rot90(x.view(1, -1), n))); y = torch.arange(3.0); out = f(y, 1), f(y, 2), f(y, -1), f(torch.arange(4.0), 1)
""",
"triangles_and_diagonals": """
f = C(lambda x, k: (x.tril(k), x.triu(k), x.diag(k) if abs(k) < min(x.shape) else None, torch.tril_indices(2, 3, k))); o = torch.ones; out = f(o(2, 2), 0), f(o(3, 2), 1), f(o(2, 3), -1), f(o(2, 2), 5)
""",
"pad_modes_and_amounts": """
F = torch.nn.functional
def f(x, p, m):
    try: return F.pad(x, p, m)
    except (RuntimeError, NotImplementedError) as e: return 'error'
g = C(f); y = torch.arange(3.0).view(1, 1, 3); out = g(y, (1, 1), 'constant'), g(y, (2, 0), 'reflect'), g(y, (-1, 0), 'constant'), g(y, (1, 1), 'circular'), g(y, (5, 0), 'reflect'), g(y, (1, 2), 'replicate')
""",
"einsum_equation_argument": """
f = C(lambda e, a, b: torch.einsum(e, a, b)); a = torch.arange(4.0).view(2, 2); out = f('ij,jk', a, a), f('ij,ij->', a, a), f('ij,kj->ik', a, a), f('ii,i->i', a, a[0])
""",
"meshgrid_cartesian_combinations": """
f = C(lambda x, n: (torch.meshgrid(x, torch.arange(float(n)), indexing='ij'), torch.cartesian_prod(x, x), torch.combinations(torch.arange(n)))); out = f(x, 2), f(x, 3), f(torch.ones(1), 1)
""",
"index_with_list_mutated": """
i = [0, 1]; y = torch.arange(4.0); f = C(lambda x: y[i] * x); out = [f(x), f(x)]; i[0] = 3; out += [f(x)]; i[:] = [2, 2]; out += [f(x)]
""",
"index_tensor_mutated": """
i = torch.tensor([0, 1]); y = torch.arange(4.0); f = C(lambda x: y[i] * x); out = [f(x), f(x), f(x)]; i[0] = 3; out += [f(x)]; i.fill_(2); out += [f(x)]
""",
"numpy_array_as_index": """
f = C(lambda x, i: x[i]); y = torch.arange(4.0); out = f(y, np.array([0, 2])), f(y, np.array([True, False, True, False])), f(y, np.int64(3)), f(y, np.array([1]))
""",
"ellipsis_mixed_advanced_index": """
f = C(lambda x, i, j: (x[i, :, j].shape, x[:, i, j].shape, x[..., i].shape, x[i, None, 0].shape)); y = torch.ones(3, 4, 5); t = torch.tensor; out = f(y, t([0, 1]), t([0, 1])), f(y, t([[0], [1]]), t([2])), f(y, 1, t([0, 1, 2]))
""",
"step_slices_through_dynamic_size": """
f = D(lambda x: (x[::2], x[-2:], x[: x.shape[0] // 2], x[x.shape[0] - 1], x[1:-1], x[100:])); out = [f(torch.arange(float(n))) for n in (4, 5, 2, 9, 3)]
""",
}
