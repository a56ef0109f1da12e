"""Python numbers: integers of any size, floats, complex, fractions, decimals, math, statistics, random."""

PROGRAMS = {
"integers_beyond_64_bit": """
f = C(lambda x, n: (n * n, n + 1, n - 1, -n, n // 3, n % 7)); out = [f(x, n) for n in (3, 2**31, 2**62, 2**63, 2**64 + 1, -2**63, 10**30)]
""",
"integer_sum_overflows_64_bit": """
f = C(lambda x, a, b: (x, a + b, a * b, a - b)[1:]); out = [f(x, a, b) for a, b in ((1, 2), (2**62, 2**62), (2**63 - 1, 1), (-2**63, 1), (2**32, 2**32))]
""",
"integer_factor_of_tensor_too_big": """
def f(i, n):
    try: return i * n
    except (RuntimeError, OverflowError) as e: return type(e).__name__
g = C(f); i = torch.arange(3); out = [g(i, n) for n in (2, 3, 2**40, 2**63 - 1, 2**63, 2**70, -2**64)]
""",
"integer_into_int8_tensor": """
def f(i, n):
    try: return i + n
    except RuntimeError as e: return type(e).__name__
g = C(f); i = torch.tensor([100, -100], dtype=torch.int8); out = [g(i, n) for n in (1, 27, 28, 200, -1000)]
""",
"uint8_and_negative_number": """
f = C(lambda i, n: (i + n, i - n, i * n, i // 2)); i = torch.tensor([0, 255], dtype=torch.uint8); out = [f(i, n) for n in (1, 2, -1, 255)]
""",
"float_times_int_tensor_types": """
f = C(lambda i, n: i * n); i = torch.tensor([1, 2]); out = [f(i, n) for n in (2, 2.0, True, 2, 1j, -0.0)]
""",
"bool_int_float_are_different_arguments": """
f = C(lambda x, n: (n, x * n, type(n).__name__)); i = torch.tensor([1, 0]); out = [f(i, n) for n in (1, True, 1.0, 0, False, 0.0)]
""",
"negative_zero_argument": """
import math
f = C(lambda x, v: (math.copysign(1, v), torch.signbit(x * v), str(v))); out = [f(x, v) for v in (0.0, -0.0, 1.0, 0.0, -0.0)]
""",
"nan_argument_comparisons": """
f = C(lambda x, v: (v == v, v < 1, v in [v], x * v, min(v, 1.0), max(1.0, v))); n = float('nan'); out = [f(x, v) for v in (2.0, n, 3.0, n, float('inf'), -float('inf'))]
""",
"infinity_arithmetic": """
f = C(lambda x, v: (v - v, v * 0, v / v if v else None, x / v if v else x, int(v) if v < 1e300 else 'big')); out = [f(x, v) for v in (1.0, float('inf'), 2.5, 0.0)]
""",
"float_exact_repr": """
f = C(lambda x, v: (repr(v * 3), (v + 0.1).hex(), repr(v / 3))); out = [f(x, v) for v in (0.1, 0.2, 1 / 3, 1e308, 5e-324, 1e16 + 1)]
""",
"float_methods": """
f = C(lambda x, v: (v.is_integer(), v.as_integer_ratio(), v.__floor__(), v.hex())); out = [f(x, v) for v in (0.5, 2.0, -1.25, 1e20)]
""",
"int_methods": """
f = C(lambda x, n: (n.bit_length(), n.bit_count(), n.to_bytes(9, 'big', signed=True).hex(), hex(n), oct(n), bin(n))); out = [f(x, n) for n in (5, 255, -7, 2**64)]
""",
"round_half_even_and_types": """
f = C(lambda x, v: (round(v), round(v, 1), round(v, None), type(round(v, 0)).__name__)); out = [f(x, v) for v in (0.5, 1.5, 2.5, -0.5, 2.675, 7)]
""",
"round_digits_argument": """
f = C(lambda x, d: (round(1234.5678, d), round(12345, d), torch.round(x * 1234.5678, decimals=d))); out = [f(x, d) for d in (1, 2, -1, -2, 0)]
""",
"float_division_overflow": """
def f(x, a, b):
    try: return a ** b
    except OverflowError: return 'OverflowError'
g = C(f); out = [g(x, a, b) for a, b in ((2.0, 3.0), (10.0, 308.0), (10.0, 309.0), (0.5, 2000.0))]
""",
"int_to_float_overflow": """
def f(x, n):
    try: return float(n)
    except OverflowError: return 'OverflowError'
g = C(f); out = [g(x, n) for n in (1, 2**53 + 1, 2**70, 10**400)]
""",
"complex_argument": """
f = C(lambda x, c: (x * c, c.real, c.conjugate(), abs(c), c == c.real)); out = [f(x, c) for c in (1 + 2j, 3 - 1j, 2 + 0j, complex('nan'))]
""",
"complex_to_real_mix": """
f = C(lambda x, a, b: (a * b, complex(a, 1) if not isinstance(a, complex) else a)); out = f(x, 1, 2j), f(x, 2.0, 3), f(x, 1j, 1j), f(x, True, -0.0)
""",
"true_division_of_big_integers": """
f = C(lambda x, a, b: (a / b, a // b, round(a / b, 3))); out = [f(x, a, b) for a, b in ((7, 2), (10**25, 10**24), (2**63, 3), (-9, 4), (1, 10**20))]
""",
"math_functions_of_arguments": """
import math
f = C(lambda x, v: (math.floor(v), math.ceil(v), math.trunc(v), math.sqrt(abs(v)), math.frexp(v), math.modf(v), math.isclose(v, 2.5))); out = [f(x, v) for v in (2.5, -2.5, 7, 0.0, 2.5)]
""",
"math_domain_error_later": """
import math
def f(x, v):
    try: return x * math.log(v)
    except ValueError: return 'ValueError'
g = C(f); out = [g(x, v) for v in (1.0, 2.0, 0.0, -1.0, 3)]
""",
"math_integer_functions": """
import math
f = C(lambda x, a, b: (math.gcd(a, b), math.lcm(a, b), math.comb(a, b), math.perm(a, b), math.isqrt(a), math.prod([a, b, 2]), math.factorial(b))); out = [f(x, a, b) for a, b in ((12, 8), (7, 3), (100, 4), (30, 25))]
""",
"math_attribute_patched": """
import math
f = C(lambda x: x * math.pi); out = [f(x)]; p = math.pi; math.pi = 3.0; out += [f(x)]; math.pi = p; out += [f(x)]
""",
"cmath_functions": """
import cmath
f = C(lambda x, c: (cmath.sqrt(c), cmath.phase(c), cmath.isnan(c), cmath.polar(c))); out = [f(x, c) for c in (-1, 1j, -4 + 0j, complex(-4, -0.0))]
""",
"fraction_arithmetic": """
from fractions import Fraction as F
f = C(lambda x, a: (a + F(1, 3), a * 2, x * float(a), a.limit_denominator(3), a > 0.5, round(a, 1))); out = [f(x, a) for a in (F(1, 2), F(2, 3), F(-5, 7), F(1, 2))]
""",
"fraction_against_tensor": """
from fractions import Fraction as F
def f(x, a):
    try: return x * a
    except TypeError: return 'TypeError'
g = C(f); out = [g(x, a) for a in (F(1, 2), F(1, 3), 2)]
""",
"decimal_argument_and_context": """
import decimal as d
f = C(lambda x, a: (a / 3, a.quantize(d.Decimal('0.1')), x * float(a))); out = [f(x, d.Decimal('1')), f(x, d.Decimal('2.55'))]
with d.localcontext() as c: c.prec = 3; c.rounding = d.ROUND_DOWN; out += [f(x, d.Decimal('2.59'))]
out += [f(x, d.Decimal('1'))]
""",
"decimal_traps_and_flags": """
import decimal as d
def f(x, b):
    try: return d.Decimal(1) / b
    except d.DivisionByZero: return 'DivisionByZero'
g = C(f); out = [g(x, d.Decimal(2)), g(x, d.Decimal(0))]; d.getcontext().traps[d.DivisionByZero] = False; out += [g(x, d.Decimal(0)), bool(d.getcontext().flags[d.Inexact])]; g(x, d.Decimal(3)); out += [bool(d.getcontext().flags[d.Inexact])]
""",
"numbers_abstract_types": """
import numbers, fractions, decimal
f = C(lambda x, v: [isinstance(v, t) for t in (numbers.Number, numbers.Real, numbers.Integral, numbers.Rational)]); out = [f(x, v) for v in (1, True, 1.0, 1j, fractions.Fraction(1, 2), decimal.Decimal(1), np.float32(1), 'a')]
""",
"statistics_of_list": """
import statistics as s
f = C(lambda x, l: (s.mean(l), s.median(l), s.pstdev(l), s.mode(l), x * s.fmean(l))); out = f(x, [1, 2, 3]), f(x, [1, 2, 2]), f(x, [1.5, 2.5]), f(x, [4])
""",
"random_module_state": """
import random
f = C(lambda x: x * random.random()); out = []
for s in (1, 2, 1): random.seed(s); out += [f(x), f(x)]
out.append(random.random())
""",
"random_choice_and_shuffle": """
import random
def f(x, l): random.shuffle(l); return x * random.choice(l), l, random.randint(0, 100), random.sample(l, 2)
g = C(f); random.seed(3); out = [g(x, [1, 2, 3, 4]) for _ in range(4)]
""",
"random_state_saved_inside": """
import random
def f(x): s = random.getstate(); a = random.random(); random.setstate(s); return x * (a - random.random()), a
g = C(f); random.seed(4); out = [g(x) for _ in range(4)], random.random()
""",
"random_gauss_pair": """
import random
r = random.Random(7); f = C(lambda x: x * r.gauss(0, 1)); out = [f(x) for _ in range(4)], r.random()
""",
"numpy_random_generator": """
r = np.random.default_rng(3); f = C(lambda x: x * r.random()); out = [f(x) for _ in range(4)], r.integers(100)
""",
"numpy_legacy_random_state": """
f = C(lambda x: x * np.random.rand()); out = []
for s in (1, 1, 2): np.random.seed(s); out += [f(x), f(x)]
""",
"numpy_scalars_as_arguments": """
f = C(lambda x, s: (x * s, type(s).__name__, s + 1)); out = [f(x, s) for s in (np.float32(2), np.float64(2), np.int64(2), np.int8(2), np.bool_(True), np.float16(0.5))]
""",
"numpy_scalar_overflow": """
f = C(lambda x, s: s + s); out = [f(x, s) for s in (np.int8(3), np.int8(100), np.uint8(200), np.int64(2**62))]
""",
"zero_dim_tensor_as_python_number": """
f = C(lambda x, s: (float(s), int(s), bool(s), [10, 20, 30][s] if not s.is_floating_point() else None)); out = [f(x, torch.tensor(v)) for v in (1, 2, 0, 1.5, True)]
""",
"item_result_arithmetic": """
f = C(lambda x: (x.sum().item() * 2, int(x.sum()) // 2, x.max().item() > 2, x.long().sum().item() ** 2)); out = [f(torch.full((2,), v)) for v in (1.0, 2.0, 3.5, -1.0)]
""",
"item_of_big_integer_tensor": """
f = C(lambda i: i.item() * 4 + 1); out = [f(torch.tensor(v)) for v in (1, 2**61, 2**62, -2**63)]
""",
"tolist_types": """
f = C(lambda x: (x.tolist(), (x + 1).tolist())); out = [f(t) for t in (x, torch.tensor([1, 2]), torch.tensor(3), torch.tensor([True]), torch.tensor([[1j]]), torch.ones(0))]
""",
"isinstance_after_item": """
f = C(lambda x: [type(x.sum().item()).__name__, isinstance(x[0].item(), int), str(x[0].item())]); out = [f(t) for t in (x, torch.tensor([1, 2]), torch.tensor([True, False]), torch.tensor([1j]))]
""",
"integer_as_key_or_size": """
f = C(lambda x, n: (x.new_zeros(int(n)), {n: 1}, [0] * n, 'a' * n, (n,) * 2)); out = [f(x, n) for n in (1, 2, 3, 0, True)]
""",
"size_arithmetic_stays_int": """
f = C(lambda x: (x.shape[0] * 2, x.shape[0] / 2, x.shape[0] // 2, type(x.shape[0]).__name__, type(x.shape).__name__, x.numel() ** 40)); out = [f(torch.ones(n, 2)) for n in (2, 3, 5, 1, 0)]
""",
"size_in_string_and_dict": """
f = C(lambda x: ({x.shape[0]: 'n'}, str(x.shape), f'{x.size(0)}', hash(x.shape[0]) == x.shape[0], x.shape == (3, 2))); out = [f(torch.ones(n, 2)) for n in (2, 3, 4, 3)]
""",
"size_returned_is_plain_int": """
f = D(lambda x: (x.shape[0], x.shape, x.stride(), x.numel(), x.dim(), max(x.shape), sum(x.shape))); out = []
for n in (2, 3, 4, 3): r = f(torch.ones(n, 5)); out += [r, type(r[0]) is int, type(r[3]) is int, isinstance(r[1], torch.Size)]
""",
"float_argument_symbolic": """
f = D(lambda x, v: (x * v, v + 1, v * v, -v, v // 1, v % 0.5, v ** 2, int(v))); out = [f(x, v) for v in (1.5, 2.5, -3.5, 0.0, 1e10)]
""",
"int_argument_symbolic": """
f = D(lambda x, n: (x * n, n + 1, n * n, -n, n // 2, n % 3, n ** 2, n << 2, float(n), n / 4)); out = [f(x, n) for n in (5, 7, -4, 0, 2**40)]
""",
"comparisons_symbolic": """
f = D(lambda x, n: (n > 3, n == 5, n != 5, not n, n and 7, n or 8, min(n, 4), max(n, 4), abs(n))); out = [f(x, n) for n in (5, 7, -4, 0, 1)]
""",
"string_of_symbolic_float": """
f = D(lambda x, v: (f'{v:.2f}', str(v), repr([v]), '%g' % v, x * v)); out = [f(x, v) for v in (1.5, 2.25, 1e-9, 3.0)]
""",
"list_of_numbers_changes_types": """
f = C(lambda x, l: [x * v for v in l]); i = torch.tensor([1, 2]); out = [f(i, l) for l in ([1, 2], [1.0, 2], [True, 2], [1, 2.0], [1, 2])]
""",
"tensor_made_from_numbers": """
f = C(lambda x, l: torch.tensor(l)); out = [f(x, l) for l in ([1, 2], [3, 4], [1.5, 2], [True, False], [1j, 2], [2**40, 1], [])]
""",
"tensor_from_nested_list_mutated": """
l = [[1.0, 2.0], [3.0, 4.0]]; f = C(lambda x: torch.tensor(l) @ x); out = [f(x), f(x)]; l[0][1] = 7.0; out += [f(x)]; l.append([5.0, 6.0]); out += [f(x)]
""",
"full_with_argument_types": """
f = C(lambda x, v: torch.full((2,), v)); out = [f(x, v) for v in (1, 1.5, True, 2, 1j, float('nan'))]
""",
"arange_and_linspace_arguments": """
f = C(lambda x, a, b, s: (torch.arange(a, b, s), torch.linspace(a, b, 3))); out = [f(x, *v) for v in ((0, 4, 1), (1, 4, 2), (0.0, 1.0, 0.5), (5, 0, -2), (0, 0, 1))]
""",
}
