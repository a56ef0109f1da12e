"""Optimizers, schedulers, losses, distributions, data, recurrent and attention modules, transformers and their caches."""

PROGRAMS = {
"sgd_step_inside": """
w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], lr=0.1, momentum=0.9)
def f(x): o.zero_grad(); l = ((w * x) ** 2).sum(); l.backward(); o.step(); return l.detach()
g = C(f); out = [g(x) for _ in range(5)], w.detach(), o.state[w]['momentum_buffer']
""",
"adam_step_compiled": """
w = torch.nn.Parameter(torch.tensor([1.0, -2.0])); o = torch.optim.AdamW([w], lr=0.1); s = C(lambda: o.step())
for k in range(4): w.grad = torch.tensor([0.5, k * 1.0]); s()
out = w.detach(), float(o.state[w]['step']), o.state[w]['exp_avg']
""",
"learning_rate_changed": """
w = torch.nn.Parameter(torch.zeros(2)); o = torch.optim.SGD([w], lr=1.0); s = C(lambda: o.step()); out = []
for lr in (1.0, 0.5, 0.25, 1): o.param_groups[0]['lr'] = lr; w.grad = torch.ones(2); s(); out.append(w.detach().clone())
""",
"scheduler_between_steps": """
w = torch.nn.Parameter(torch.zeros(2)); o = torch.optim.SGD([w], lr=1.0); d = torch.optim.lr_scheduler.StepLR(o, 1, 0.5)
def f(x): w.grad = x.clone(); o.step(); return w.detach() * 1
g = C(f); out = []
for _ in range(4): out.append(g(x)); d.step()
out.append(d.get_last_lr())
""",
"parameter_group_added": """
a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in 'ab'); o = torch.optim.SGD([a], lr=1.0); s = C(lambda: o.step()); out = []
for k in range(4):
    a.grad, b.grad = torch.ones(2), torch.ones(2); s(); out += [a.detach().clone(), b.detach().clone()]
    if k == 1: o.add_param_group({'params': [b], 'lr': 10.0})
""",
"optimizer_hooks_and_zero_grad": """
n = []; w = torch.nn.Parameter(torch.zeros(2)); o = torch.optim.SGD([w], lr=1.0); o.register_step_pre_hook(lambda *a: n.append('pre')); o.register_step_post_hook(lambda *a: n.append('post'))
def f(x): w.grad = x.clone(); o.step(); o.zero_grad(set_to_none=True); return w.grad is None
g = C(f); out = g(x), g(x), g(x), n, w.detach()
""",
"optimizer_state_loaded": """
w = torch.nn.Parameter(torch.zeros(2)); o = torch.optim.Adam([w], lr=0.1); s = C(lambda: o.step()); out = []
for k in range(4):
    w.grad = torch.ones(2); s(); out.append(w.detach().clone())
    if k == 0: saved = o.state_dict(); import copy; saved = copy.deepcopy(saved)
    if k == 2: o.load_state_dict(saved)
out.append(float(o.state[w]['step']))
""",
"other_optimizers": """
out = []
for K in (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adamax, torch.optim.Rprop):
    w = torch.nn.Parameter(torch.tensor([1.0, -1.0])); o = K([w], lr=0.1)
    def f(x): o.zero_grad(); (w * w * x).sum().backward(); o.step(); return w.detach().clone()
    g = C(f); out += [g(x), g(x * 2), g(x)]
""",
"closure_of_lbfgs": """
w = torch.nn.Parameter(torch.tensor([1.0, 2.0])); o = torch.optim.LBFGS([w], lr=0.5, max_iter=3); loss = C(lambda: ((w - 3) ** 2).sum())
def closure(): o.zero_grad(); l = loss(); l.backward(); return l
out = [o.step(closure).detach() for _ in range(2)] + [w.detach()]
""",
"losses_with_reduction_argument": """
F = torch.nn.functional; f = C(lambda a, b, r: (F.mse_loss(a, b, reduction=r), F.smooth_l1_loss(a, b, reduction=r), F.kl_div(a, b, reduction=r))); out = [f(x, x * 2, r) for r in ('mean', 'sum', 'none', 'mean')]
""",
"cross_entropy_variants": """
F = torch.nn.functional
def f(a, t, **k): return F.cross_entropy(a, t, **k)
g = C(f); a = torch.tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]]); t = torch.tensor([2, 0]); out = g(a, t), g(a, t, ignore_index=0), g(a, t, label_smoothing=0.1), g(a, a.softmax(1)), g(a, t, weight=torch.tensor([1.0, 2.0, 3.0])), g(a, t * 0, ignore_index=0)
""",
"cross_entropy_bad_target_raises": """
F = torch.nn.functional
def f(a, t):
    try: return F.cross_entropy(a, t)
    except (IndexError, ValueError, RuntimeError) as e: return type(e).__name__
g = C(f); a = torch.ones(2, 3); t = torch.tensor; out = g(a, t([0, 1])), g(a, t([2, 2])), g(a, t([0, 3])), g(a, t([0, -1])), g(a, t([0])), g(a, t([1, 2]))
""",
"binary_cross_entropy_range": """
F = torch.nn.functional
def f(p, t):
    try: return F.binary_cross_entropy(p, t)
    except RuntimeError: return 'RuntimeError'
g = C(f); out = g(x * .5, x), g(x * 0, x), g(x * 2, x), g(x, x * 0), g(x * .25, x)
""",
"distribution_made_inside": """
import torch.distributions as d
def f(m, s): n = d.Normal(m, s); v = n.sample(); return v, n.log_prob(v), n.entropy(), n.mean
g = C(f); torch.manual_seed(0); out = g(x, x), g(x * 2, x), g(torch.zeros(3), torch.ones(3))
""",
"distribution_arguments_validated": """
import torch.distributions as d
def f(s):
    try: return d.Normal(torch.zeros(2), s).log_prob(torch.zeros(2))
    except ValueError: return 'ValueError'
g = C(f); out = [g(x), g(x * 2), g(-x)]; d.Distribution.set_default_validate_args(False); out += [g(-x).isnan()]
""",
"distribution_global_changed": """
import torch.distributions as d
n = d.Categorical(probs=torch.tensor([0.1, 0.9])); f = C(lambda x: n.log_prob(torch.tensor([0, 1])) * x); out = [f(x), f(x)]; n = d.Categorical(logits=torch.tensor([0.0, 0.0])); out += [f(x)]
""",
"kl_divergence_and_rsample": """
import torch.distributions as d
def f(m): q = d.Normal(m, torch.ones(2)); return d.kl_divergence(q, d.Normal(torch.zeros(2), torch.ones(2))).sum() + q.rsample().sum() * 0
g = C(f); out = []
for k in (1.0, 2.0, 3.0): m = torch.full((2,), k, requires_grad=True); g(m).backward(); out.append(m.grad)
""",
"data_loader_iterated_inside": """
from torch.utils.data import DataLoader, TensorDataset
ds = TensorDataset(torch.arange(5.0)); f = C(lambda x: [b[0] * x.sum() for b in DataLoader(ds, batch_size=2)]); out = f(x), f(x * 2), f(x)
""",
"data_loader_batches_of_two_sizes": """
from torch.utils.data import DataLoader
f = C(lambda b: (b * 2).sum() + b.shape[0]); out = [f(b) for b in DataLoader(torch.arange(7.0), batch_size=3)] + [f(b) for b in DataLoader(list(range(4)), batch_size=2, drop_last=True)]
""",
"data_loader_shuffle_order": """
from torch.utils.data import DataLoader
f = C(lambda b: b * 2); torch.manual_seed(0); out = [f(b) for _ in range(2) for b in DataLoader(torch.arange(4.0), batch_size=2, shuffle=True)]
""",
"own_dataset_with_state": """
from torch.utils.data import Dataset
class S(Dataset):
    n = 0
    def __len__(self): return 3
    def __getitem__(self, i): self.n += 1; return torch.full((2,), float(i * 10 + self.n))
s = S(); f = C(lambda x, i: s[i] * x); out = f(x, 0), f(x, 1), f(x, 0), s.n, len(s)
""",
"random_split_and_sampler": """
from torch.utils.data import random_split, WeightedRandomSampler
f = C(lambda x: ([list(s.indices) for s in random_split(range(4), [1, 3], generator=torch.Generator().manual_seed(1))], list(WeightedRandomSampler([0.0, 1.0], 3)), x)[:2]); out = f(x), f(x), f(x)
""",
"default_collate": """
from torch.utils.data import default_collate
f = C(lambda l: default_collate(l)); out = f([{'a': 1, 'b': x}, {'a': 2, 'b': x}]), f([(1.0, 'q'), (2.0, 'r')]), f([x, x, x])
""",
"packed_sequence": """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
torch.manual_seed(0); r = torch.nn.GRU(1, 2, batch_first=True).requires_grad_(False)
def f(x, n): o, h = r(pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)); return pad_packed_sequence(o, batch_first=True), h
g = C(f); y = torch.ones(2, 3, 1); out = g(y, torch.tensor([3, 2])), g(y, torch.tensor([1, 3])), g(y, [2, 2])
""",
"pad_sequence_of_lists": """
from torch.nn.utils.rnn import pad_sequence, unpad_sequence
f = C(lambda l, v: pad_sequence(l, batch_first=True, padding_value=v)); o = torch.ones; out = f([o(1), o(3)], 0), f([o(2), o(2)], 5), f([o(4)], 0.5), f([o(1, 2), o(2, 2)], 0)
""",
"lstm_state_carried": """
torch.manual_seed(0); r = torch.nn.LSTM(2, 2).requires_grad_(False); s = [None]
def f(x): o, s[0] = r(x, s[0]); return o
g = C(f); out = [g(torch.ones(n, 1, 2)) for n in (1, 2, 1)] + [s[0][0]]
""",
"rnn_modes_and_layers": """
torch.manual_seed(0); r = torch.nn.RNN(2, 2, num_layers=2, dropout=0.5).requires_grad_(False); f = C(r); y = torch.ones(2, 1, 2); r.eval(); a = f(y)[0]; r.nonlinearity = 'relu'; r.mode = 'RNN_RELU'; b = f(y)[0]; r.weight_ih_l0.zero_(); out = a, b, f(y)[0], f(torch.ones(3, 2))[0].shape
""",
"rnn_cell_loop": """
torch.manual_seed(0); c = torch.nn.GRUCell(2, 2).requires_grad_(False)
def f(xs, h):
    for v in xs: h = c(v, h)
    return h
g = C(f); h = torch.zeros(1, 2); out = [g(torch.ones(n, 1, 2), h) for n in (1, 3, 2, 0)]
""",
"multihead_attention_options": """
torch.manual_seed(0); m = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)
f = C(lambda q, **k: m(q, q, q, **k)); q = torch.arange(8.0).view(1, 2, 4) / 8; a = f(q); b = f(q, need_weights=False); c = f(q, average_attn_weights=False); d = f(q, key_padding_mask=torch.tensor([[False, True]])); out = a, b, c[1].shape, d, f(q)[1]
""",
"encoder_layer_train_eval_fast_path": """
torch.manual_seed(0); m = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True); f = C(m); y = torch.arange(8.0).view(1, 2, 4) / 8; a = f(y).detach(); m.eval()
with torch.no_grad(): b = f(y); c = f(y, src_key_padding_mask=torch.tensor([[False, True]])); m.linear1.weight.zero_(); d = f(y)
out = a, b, c[:, :1], d
""",
"attention_masks_change": """
F = torch.nn.functional; q = torch.arange(8.0).view(1, 1, 4, 2) / 4; f = C(lambda q, m=None, c=False, s=None: F.scaled_dot_product_attention(q, q, q, attn_mask=m, is_causal=c, scale=s)); b = torch.ones(4, 4, dtype=torch.bool).tril(); out = f(q), f(q, b), f(q, b.float()), f(q, None, True), f(q, None, False, 2.0), f(q, torch.zeros(4, 4, dtype=torch.bool))
""",
"attention_dropout_uses_generator": """
F = torch.nn.functional; q = torch.ones(1, 1, 4, 2); f = C(lambda q, p: F.scaled_dot_product_attention(q, q, q, dropout_p=p)); torch.manual_seed(0); out = f(q, 0.5), f(q, 0.0), f(q, 0.5), torch.rand(1)
""",
"own_key_value_cache": """
class Cache:
    def __init__(self): self.k = None
    def update(self, k): self.k = k if self.k is None else torch.cat([self.k, k]); return self.k
c = Cache(); f = C(lambda x: c.update(x[None]).sum(0)); out = [f(x * k) for k in range(5)] + [c.k.shape]; c.k = None; out += [f(x)]
""",
"static_key_value_cache": """
c = torch.zeros(4, 2)
def f(x, p): c[p] = x; return c[: p.item() + 1].sum(0), c.index_copy_(0, p[None], x[None] * 2).sum()
g = C(f); out = [g(x * (k + 1), torch.tensor(k)) for k in range(4)] + [c]
""",
"rotary_embedding_cache_grows": """
class R(torch.nn.Module):
    def __init__(self): super().__init__(); self.n = 0
    def forward(self, x):
        if x.shape[0] > self.n: self.n = x.shape[0]; self.c = torch.arange(self.n).float().cos()
        return x * self.c[: x.shape[0], None]
m = R(); f = C(m); out = [f(torch.ones(n, 1)) for n in (2, 3, 2, 5, 1)] + [m.n, m.c.shape]
""",
"greedy_generation_loop": """
torch.manual_seed(0); e = torch.nn.Embedding(5, 4).requires_grad_(False); h = torch.nn.Linear(4, 5).requires_grad_(False); f = C(lambda i: h(e(i).mean(0)).argmax()); i = torch.tensor([1])
for _ in range(5): i = torch.cat([i, f(i)[None]])
out = i
""",
"mixture_of_experts_routing": """
torch.manual_seed(0); es = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False).requires_grad_(False) for _ in range(3))
def f(x, r):
    o = torch.zeros_like(x)
    for k, m in enumerate(es):
        i = (r == k).nonzero()[:, 0]
        if i.numel(): o.index_add_(0, i, m(x[i]))
    return o
g = C(f); y = torch.ones(3, 2); t = torch.tensor; out = g(y, t([0, 1, 2])), g(y, t([0, 0, 0])), g(y, t([2, 2, 1])), g(y[:1], t([1]))
""",
"teacher_student_update": """
a, b = (torch.nn.Linear(2, 1, bias=False).requires_grad_(False) for _ in 'ab'); a.weight.fill_(1); b.weight.fill_(0)
def f(x):
    for p, q in zip(a.parameters(), b.parameters()): q.mul_(0.5).add_(p, alpha=0.5)
    return b(x)
g = C(f); out = [g(x) for _ in range(4)] + [b.weight]; a.weight.fill_(9); out += [g(x)]
""",
"gradient_scaler_loop": """
w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], 0.1); s = torch.amp.GradScaler('cpu', init_scale=4.0); f = C(lambda x: (x * w).sum()); out = []
for v in (1.0, float('inf'), 1.0): o.zero_grad(); s.scale(f(x * v)).backward(); s.step(o); s.update(); out += [w.detach().clone(), s.get_scale()]
""",
"gradient_accumulation": """
m = torch.nn.Linear(2, 1, bias=False); torch.nn.init.ones_(m.weight); f = C(lambda x: m(x).sum() / 2); o = torch.optim.SGD(m.parameters(), 0.1); out = []
for k in range(4):
    f(x * (k + 1)).backward()
    if k % 2: o.step(); o.zero_grad(); out.append(m.weight.detach().clone())
""",
"embedding_bag_and_sparse_gradient": """
e = torch.nn.EmbeddingBag(4, 2, mode='sum', sparse=True); torch.nn.init.ones_(e.weight); f = C(lambda i, o: e(i, o).sum()); out = []
for o in ([0, 1], [0, 2], [0]): e.zero_grad(); f(torch.tensor([1, 2, 2]), torch.tensor(o)).backward(); out += [e.weight.grad.is_sparse, e.weight.grad.to_dense()]
""",
"transformers_gpt_with_cache": """
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0); m = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=16)).eval(); f = C(m); i = torch.tensor([[1, 2, 3]])
with torch.no_grad():
    a = f(i, use_cache=True); b = f(torch.tensor([[4]]), past_key_values=a.past_key_values); c = f(torch.tensor([[5]]), past_key_values=b.past_key_values); d = f(i)
out = a.logits[0, -1], b.logits[0, -1], c.logits[0, -1], d.logits[0, 0], c.past_key_values.get_seq_length(), type(d).__name__
""",
"transformers_output_forms": """
from transformers import BertConfig, BertModel
torch.manual_seed(0); m = BertModel(BertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=11)).eval(); f = C(m); i = torch.tensor([[1, 2, 3]])
with torch.no_grad(): a, b, c = f(i), f(i, return_dict=False), f(i, output_hidden_states=True, attention_mask=torch.tensor([[1, 1, 0]]))
out = type(a).__name__, list(a.keys()), type(b).__name__, len(c.hidden_states), a.pooler_output, c.pooler_output
""",
"transformers_generate": """
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0); m = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=11, max_position_embeddings=32)).eval(); m.forward = C(m.forward); i = torch.tensor([[1, 2, 3]])
out = m.generate(i, max_new_tokens=4, do_sample=False, pad_token_id=0), m.generate(i[:, :2], max_new_tokens=3, do_sample=False, pad_token_id=0)
""",
}
