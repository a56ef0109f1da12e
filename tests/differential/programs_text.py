"""Strings, formatting, regular expressions, binary data and their encodings, dates."""

PROGRAMS = {
"string_argument_selects": """
f = C(lambda x, s: {'relu': torch.relu, 'neg': torch.neg}[s](x)); out = f(x, 'relu'), f(x, 'neg'), f(-x, 're' + 'lu'), f(x, 'neg')
""",
"string_methods_of_argument": """
f = C(lambda x, s: (s.title(), s.split(), s[::-1], s.find('b'), s.replace('a', 'z', 1), s.isdigit(), s.zfill(6), s.partition(' '), x * len(s))); out = f(x, 'a b'), f(x, '12'), f(x, 'aab a'), f(x, '')
""",
"unicode_strings": """
f = C(lambda x, s: (len(s), s.encode(), s.casefold(), s.upper(), ord(s[0]), s.isidentifier())); out = f(x, 'é'), f(x, 'ß'), f(x, '日本'), f(x, 'e\\u0301')
""",
"percent_formatting": """
f = C(lambda x, v: '%05.1f|%-4d|%s|%r|%x' % (v, v, v, v, int(v))); out = f(x, 1), f(x, 2.75), f(x, True), f(x, 255)
""",
"format_method_nested": """
f = C(lambda x, v, w: '{:>{w}}|{0!r}|{0:^7}'.replace('{:', '{0:').format(v, w=w)); out = f(x, 1, 4), f(x, 'ab', 5), f(x, 2.5, 6)
""",
"format_of_tensor_values": """
f = C(lambda x: f'{x.sum():.2f} {x[0].item():>6} {x.shape} {x.dtype}'); out = f(x), f(x * 2.345), f(torch.tensor([1, 2, 3]).double()), f(x)
""",
"repr_of_tensor": """
f = C(lambda x: (repr(x), str(x + 1))); out = f(x), f(torch.tensor([1, 2])), f(torch.ones(2, 2)), f(torch.tensor([1.5, float('nan')]))
""",
"repr_follows_print_options": """
f = C(lambda x: str(x / 3)); out = [f(x)]; torch.set_printoptions(precision=2); out += [f(x)]; torch.set_printoptions(profile='full', sci_mode=True); out += [f(x)]
""",
"numpy_print_options": """
f = C(lambda x: str(x.numpy() / 3)); out = [f(x)]; np.set_printoptions(precision=2); out += [f(x)]; np.set_printoptions(precision=8); out += [f(x)]
""",
"string_join_of_sizes": """
f = D(lambda x: '-'.join(str(s) for s in x.shape) + f'{x.numel():>4}'); out = [f(torch.ones(n, 3)) for n in (2, 4, 5, 1)]
""",
"template_and_formatter": """
import string
t = string.Template('$a-${b}'); f = C(lambda x, a: (t.safe_substitute(a=a), string.Formatter().format('{0}{k}', a, k=x.shape[0]))); out = [f(x, 1), f(x, 'q')]; t.template = '$a!'; out += [f(x, 1)]
""",
"print_is_repeated": """
import sys, io
def f(x): print('called', x.shape[0], end=';'); return x * 2
g = C(f); o = sys.stdout = io.StringIO(); g(x); g(torch.ones(3)); g(x); g(x); sys.stdout = sys.__stdout__; out = o.getvalue()
""",
"print_values_of_tensor": """
import io
b = io.StringIO()
def f(x): y = x + 1; print(y.tolist(), file=b); y += 1; print(y.sum().item(), file=b); return y
g = C(f); out = [g(x), g(x * 2), g(x), b.getvalue()]
""",
"regular_expression_match": """
import re
f = C(lambda x, s: [m.group(1) for m in re.finditer(r'(\\d+)', s)] or (re.sub('a', lambda m: m.group().upper(), s), x)[0]); out = f(x, 'a1b22'), f(x, 'aba'), f(x, '7')
""",
"compiled_pattern_replaced": """
import re
p = re.compile('a+'); f = C(lambda x, s: (p.findall(s), p.pattern, x * len(p.split(s)))); out = [f(x, 'aab')]; p = re.compile('b', re.I); out += [f(x, 'aaB'), f(x, 'bb')]
""",
"match_object_argument": """
import re
f = C(lambda x, m: x * float(m['n']) if m else x); out = [f(x, re.match(r'v(?P<n>\\d+)', s)) for s in ('v2', 'v3', 'q', 'v10')]
""",
"struct_pack_and_unpack": """
import struct
f = C(lambda x, b: (struct.unpack('<if', b), struct.pack('>hB', len(b), b[0]), x * struct.unpack_from('<i', b)[0])); out = [f(x, struct.pack('<if', *v)) for v in ((1, 2.5), (-3, 0.1), (7, float('inf')))]
""",
"struct_pack_into_buffer": """
import struct
b = bytearray(8)
def f(x, k): struct.pack_into('<i', b, 4, k); return x * b[4]
g = C(f); out = g(x, 1), g(x, 2), g(x, 300), b.hex()
""",
"json_round_trip": """
import json
f = C(lambda x, s: (json.loads(s), json.dumps({'n': x.shape[0], 'v': x.tolist()}, sort_keys=True))); out = f(x, '[1, 2.0, null]'), f(torch.ones(3), '{"b": 1, "a": NaN}'), f(x, '"é"')
""",
"json_hooks": """
import json
n = []
f = C(lambda x, s: json.loads(s, object_hook=lambda d: n.append(d) or len(n), parse_float=str)); out = f(x, '{"a": {"b": 1.50}}'), f(x, '{}'), f(x, '[{}, 1.0]'), n
""",
"pickle_round_trip_inside": """
import pickle
def f(x, l): r = pickle.loads(pickle.dumps(l)); r.append(x.shape[0]); return r, r is l
g = C(f); l = [1, [2]]; out = g(x, l), g(torch.ones(3), l), g(x, [x]), l
""",
"pickle_reduce_hooks": """
import pickle
log = []
class K:
    def __init__(self, v): self.v = v
    def __getstate__(self): log.append('get'); return {'v': self.v + 1}
    def __setstate__(self, s): log.append('set'); self.v = s['v']
f = C(lambda x, k: x * pickle.loads(pickle.dumps(k)).v); out = f(x, K(1)), f(x, K(2)), f(x, K(3)), log
""",
"base64_and_hex": """
import base64, binascii
f = C(lambda x, b: (base64.b64encode(b), binascii.crc32(b), bytes.fromhex(b.hex()) == b, x * len(base64.b85encode(b)))); out = f(x, b'a'), f(x, b'abc'), f(x, b'')
""",
"hashing_of_argument_bytes": """
import hashlib, zlib
f = C(lambda x, b: (hashlib.sha1(b).hexdigest()[:8], zlib.adler32(b), len(zlib.compress(b)), x.shape)); out = f(x, b'a'), f(x, b'b'), f(x, b'a' * 100)
""",
"hash_object_updated": """
import hashlib
h = hashlib.md5()
def f(x, b): h.update(b); return x, h.hexdigest()[:6]
g = C(f); out = [g(x, b'a')[1], g(x, b'a')[1], g(x, b'b')[1], h.hexdigest()[:6]]
""",
"hash_of_tensor_bytes": """
import hashlib
f = C(lambda x: hashlib.sha1(x.numpy().tobytes()).hexdigest()[:8]); out = f(x), f(x + 1), f(x), f(torch.ones(3))
""",
"datetime_arithmetic": """
import datetime as d
f = C(lambda x, t, n: (t + d.timedelta(days=n), (t - d.datetime(2000, 1, 1)).days, t.strftime('%Y-%j'), x * t.month)); out = f(x, d.datetime(2020, 2, 28), 1), f(x, d.datetime(2021, 2, 28), 1), f(x, d.datetime(2020, 12, 31), 400)
""",
"timezone_aware_dates": """
import datetime as d
f = C(lambda x, h: d.datetime(2020, 1, 1, tzinfo=d.timezone(d.timedelta(hours=h))).astimezone(d.timezone.utc).isoformat()); out = f(x, 1), f(x, -5), f(x, 0)
""",
"calendar_first_weekday": """
import calendar
f = C(lambda x, y: (calendar.isleap(y), calendar.monthrange(y, 2), calendar.firstweekday())); out = [f(x, 2020), f(x, 2021)]; calendar.setfirstweekday(6); out += [f(x, 2020)]
""",
"clock_patched": """
import time
keep = time.time; time.time = lambda: 2.0; f = C(lambda x: x * time.time()); out = [f(x)]; time.time = lambda: 3.0; out += [f(x), f(x)]; time.time = keep
""",
"clock_advances_between_calls": """
import time
f = C(lambda x: (x * 2, time.perf_counter_ns())); t = [f(x)[1] for _ in range(4)]; out = all(a < b for a, b in zip(t, t[1:]))
""",
"elapsed_inside_is_positive": """
import time
def f(x): a = time.monotonic_ns(); y = (x * 2).sum(); time.sleep(.002); return y, time.monotonic_ns() - a >= 2000000
g = C(f); out = [g(x) for _ in range(4)]
""",
"uuid_from_name_and_fields": """
import uuid
f = C(lambda x, n: (uuid.uuid5(uuid.NAMESPACE_DNS, n).hex[:8], uuid.UUID(int=x.shape[0]).int)); out = f(x, 'a'), f(x, 'b'), f(torch.ones(5), 'a')
""",
"random_uuids_differ": """
import uuid
f = C(lambda x: (x, uuid.uuid4())); out = len({f(x)[1] for _ in range(4)})
""",
"urandom_and_secrets_differ": """
import os, secrets
f = C(lambda x: (x, os.urandom(8), secrets.token_hex(8))); r = [f(x) for _ in range(4)]; out = len({a[1] for a in r}), len({a[2] for a in r})
""",
"textwrap_difflib_shlex": """
import textwrap, difflib, shlex
f = C(lambda x, s: (textwrap.wrap(s, 3 + x.shape[0]), difflib.get_close_matches(s, ['abc', 'abd']), shlex.split(s))); out = f(x, 'abc def'), f(torch.ones(9), 'abc def'), f(x, 'abd')
""",
"unicodedata_and_codecs": """
import unicodedata, codecs
f = C(lambda x, s: (unicodedata.name(s[0]), unicodedata.normalize('NFD', s).encode(), codecs.encode(s, 'rot13'))); out = f(x, 'é'), f(x, 'a'), f(x, 'Z')
""",
"csv_reader_and_writer": """
import csv, io
f = C(lambda x, s: (list(csv.reader(io.StringIO(s))), [dict(r) for r in csv.DictReader(io.StringIO(s))])); out = f(x, 'a,b\\n1,2'), f(x, 'a,b\\n1,"2,3"'), f(x, '')
""",
"ast_literal_and_parse": """
import ast
f = C(lambda x, s: (ast.literal_eval(s), type(ast.parse(s).body[0].value).__name__)); out = f(x, '[1, 2]'), f(x, '3.5'), f(x, "{'a': (1,)}")
""",
"pprint_and_reprlib": """
import pprint, reprlib
f = C(lambda x, d: (pprint.pformat(d, width=10), reprlib.repr(d))); out = f(x, {'b': 1, 'a': [1, 2]}), f(x, list(range(9))), f(x, 'a' * 50)
""",
"intern_and_identity_of_strings": """
import sys
a = sys.intern('hello world'); f = C(lambda x, s: (s == a, sys.intern(s) is a, x * (2 if s == a else 3))); out = f(x, 'hello world'), f(x, ''.join(['hello', ' world'])), f(x, 'other')
""",
}
