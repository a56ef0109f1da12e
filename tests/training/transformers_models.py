from harness import *
import transformers as tr, torch.nn as nn

tr.logging.set_verbosity_error()
K = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)


def lm(name, mk, steps=6, enc=False, cls=False, gc=False, opt=True, extra=None):
    def g(C, log):
        m = mk()
        m.train()
        if gc:
            m.gradient_checkpointing_enable(gc if isinstance(gc, dict) else None)
        c = C(m)
        o = torch.optim.AdamW(m.parameters(), lr=1e-3)
        for i in range(steps):
            b, s = [(2, 8), (2, 8), (3, 8), (2, 6), (2, 8), (1, 5), (4, 9)][i % 7]
            ids = torch.randint(3, 50, (b, s))
            am = torch.ones(b, s, dtype=torch.long)
            if i % 2:
                am[0, -2:] = 0
            kw = dict(input_ids=ids, attention_mask=am if i != 3 else None)
            if cls:
                kw["labels"] = torch.randint(0, 2, (b,))
            else:
                kw["labels"] = ids.masked_fill(am == 0, -100)
            if i == 4:
                kw["output_hidden_states"] = True
            if i == 2 and not enc and extra != "mamba":
                kw["use_cache"] = True
            r = c(**kw)
            o.zero_grad()
            r.loss.backward()
            log(r.loss, r.logits, type(r).__name__, list(r.keys()), nn.utils.clip_grad_norm_(m.parameters(), 1.0), torch.get_rng_state())
            log({n: p.grad for n, p in m.named_parameters()})
            if opt:
                o.step()
            if i == 4:
                log(r.hidden_states if "hidden_states" in r else None)
            if i == 2:
                m.eval()
                with torch.no_grad():
                    log((c(input_ids=ids, labels=ids) if "T5" in type(m).__name__ else c(input_ids=ids)).logits)
                m.train()

    g.__name__ = name
    CASES.append(g)


def bert(p, cls=tr.BertForMaskedLM):
    return lambda: cls(
        tr.BertConfig(**K, hidden_dropout_prob=p, attention_probs_dropout_prob=p, max_position_embeddings=32, pad_token_id=0)
    )


def gpt2(p):
    return lambda: tr.GPT2LMHeadModel(
        tr.GPT2Config(
            vocab_size=50,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=32,
            resid_pdrop=p,
            embd_pdrop=p,
            attn_pdrop=p,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def llama(p=0):
    return lambda: tr.LlamaForCausalLM(
        tr.LlamaConfig(**K, num_key_value_heads=1, attention_dropout=p, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    )


lm("bert0", bert(0.0), enc=True)
lm("bert1", bert(0.1), enc=True)
lm("bert_cls", bert(0.1, tr.BertForSequenceClassification), enc=True, cls=True)
lm("bert_gc0", bert(0.0), enc=True, gc=True)
lm("bert_gc", bert(0.1), enc=True, gc=True, opt=False)
lm("gpt2_0", gpt2(0.0))
lm("gpt2_1", gpt2(0.1))
lm("gpt2_gc0", gpt2(0.0), gc=True)
lm("gpt2_gc_reent", gpt2(0.0), gc={"use_reentrant": True})
lm("llama", llama())
lm("llama_d", llama(0.1))
lm("llama_gc", llama(), gc={"use_reentrant": False})
lm(
    "t5",
    lambda: tr.T5ForConditionalGeneration(
        tr.T5Config(
            vocab_size=50,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
            pad_token_id=0,
            dropout_rate=0.1,
        )
    ),
    enc=True,
)
lm(
    "distil",
    lambda: tr.DistilBertForMaskedLM(
        tr.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32)
    ),
    enc=True,
)
lm("roberta", lambda: tr.RobertaForMaskedLM(tr.RobertaConfig(**K, max_position_embeddings=40, pad_token_id=1)), enc=True)
lm(
    "opt",
    lambda: tr.OPTForCausalLM(
        tr.OPTConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            ffn_dim=32,
            num_attention_heads=2,
            max_position_embeddings=32,
            word_embed_proj_dim=16,
            dropout=0.1,
            layerdrop=0.0,
        )
    ),
)
lm(
    "opt_layerdrop",
    lambda: tr.OPTForCausalLM(
        tr.OPTConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            ffn_dim=32,
            num_attention_heads=2,
            max_position_embeddings=32,
            word_embed_proj_dim=16,
            dropout=0.0,
            layerdrop=0.5,
        )
    ),
    opt=False,
)
lm("qwen2", lambda: tr.Qwen2ForCausalLM(tr.Qwen2Config(**K, num_key_value_heads=1)))
lm("gemma", lambda: tr.GemmaForCausalLM(tr.GemmaConfig(**K, num_key_value_heads=1, head_dim=8, pad_token_id=0)))
lm("mixtral", lambda: tr.MixtralForCausalLM(tr.MixtralConfig(**K, num_key_value_heads=1, num_local_experts=4, output_router_logits=True)))
lm(
    "mamba",
    lambda: tr.MambaForCausalLM(tr.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4, pad_token_id=0)),
    steps=4,
    extra="mamba",
)


@case
def vit(C, log):
    m = tr.ViTForImageClassification(
        tr.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=8,
            patch_size=4,
            hidden_dropout_prob=0.1,
            num_labels=3,
        )
    )
    c = C(m)
    o = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(6):
        r = c(pixel_values=torch.randn(2 + i % 2, 3, 8, 8), labels=torch.randint(0, 3, (2 + i % 2,)), interpolate_pos_encoding=(i == 4))
        o.zero_grad()
        r.loss.backward()
        o.step()
        log(r, mstate(m))


@case
def whisper(C, log):
    m = tr.WhisperForConditionalGeneration(
        tr.WhisperConfig(
            vocab_size=50,
            num_mel_bins=8,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_source_positions=10,
            max_target_positions=12,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
            dropout=0.1,
        )
    )
    c = C(m)
    for i in range(5):
        r = c(input_features=torch.randn(2, 8, 20), labels=torch.randint(4, 50, (2, 4 + i % 2)))
        r.loss.backward()
        log(r.loss, r.logits, {n: p.grad for n, p in m.named_parameters()}, torch.get_rng_state())


@case
def clip(C, log):
    m = tr.CLIPModel(
        tr.CLIPConfig(
            text_config=dict(
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                vocab_size=50,
                max_position_embeddings=16,
                eos_token_id=2,
                bos_token_id=1,
                pad_token_id=0,
            ),
            vision_config=dict(
                hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
            ),
            projection_dim=8,
        )
    )
    c = C(m)
    for i in range(5):
        ids = torch.randint(3, 50, (3, 6))
        ids[:, -1] = 2
        r = c(input_ids=ids, pixel_values=torch.randn(3, 3, 8, 8), return_loss=i != 3)
        L = r.loss if r.loss is not None else r.logits_per_image.sum()
        L.backward()
        log(L, r.logits_per_text, r.text_embeds, {n: p.grad for n, p in m.named_parameters()})


@case
def cache_dec(C, log):
    m = llama()()
    m.eval()
    c = C(m)
    past = None
    for i in range(6):
        r = c(input_ids=torch.randint(3, 50, (1, 1)), past_key_values=past, use_cache=True)
        past = r.past_key_values
        log(r.logits, past.get_seq_length())
    r.logits.sum().backward()
    log({n: p.grad for n, p in m.named_parameters()})


@case
def generate(C, log):
    m = llama()()
    m.eval()
    c = C(m)
    x = torch.randint(3, 50, (2, 4))
    for i in range(3):
        log(c.generate(x, max_new_tokens=5, do_sample=i == 1))
        log(c(x).logits)


@case
def freeze_base(C, log):
    m = bert(0.1, tr.BertForSequenceClassification)()
    c = C(m)
    for i in range(6):
        m.bert.requires_grad_(i >= 3)
        r = c(input_ids=torch.randint(3, 50, (2, 6)), labels=torch.tensor([0, 1]))
        r.loss.backward()
        log(r.loss, {n: p.grad for n, p in m.named_parameters()})
        m.zero_grad()


@case
def inputs_embeds(C, log):
    m = gpt2(0.0)()
    c = C(m)
    for i in range(5):
        e = torch.randn(2, 5, 16, requires_grad=True)
        r = c(inputs_embeds=e, output_attentions=False, return_dict=i != 2)
        L = (r[0] if i == 2 else r.logits).pow(2).sum()
        L.backward()
        log(L, e.grad, type(r).__name__)


@case
def resize_emb(C, log):
    m = gpt2(0.0)()
    c = C(m)
    for i in range(6):
        if i == 3:
            m.zero_grad()
            m.resize_token_embeddings(60)
        x = torch.randint(3, 50, (2, 5))
        r = c(x, labels=x)
        r.loss.backward()
        log(r, {n: p.grad for n, p in m.named_parameters()}) if False else log(
            r.loss, r.logits, {n: p.grad for n, p in m.named_parameters()}
        )


main()
