"""What is known of functions and types written in C, each by its own name after its source was read. What is not listed here
keeps a program that uses it from being captured natively.

What a program does by Python code is watched while it runs; what C code does cannot be seen. A function's name is
"module.function" or "Type.method", a type's is the name that C gives it.
"""

from __future__ import annotations

import functools

import torch


def _names(text: str, prefix: str = "") -> set[str]:
    return {prefix + name for name in text.split()}


# Functions that change nothing but their arguments and depend on these alone. What is written to lists, dicts, sets and objects is
# found by comparing them before and after; methods of Python's own containers, numbers and texts need no entry.
PURE = frozenset(
    _names(
        """
        __build_class__ abs aiter all anext any ascii bin callable chr delattr dir divmod format getattr hasattr hex
        isinstance issubclass iter len max min next oct ord pow repr round setattr sorted sum vars locals compile
        """,
        "builtins.",
    )
    | _names(
        """
        acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees dist erf erfc exp exp2 expm1 fabs factorial
        floor fma fmod frexp fsum gamma gcd hypot isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log1p log10 log2 modf
        pow radians remainder sin sinh sqrt sumprod tan tanh trunc prod perm comb nextafter ulp
        """,
        "math.",
    )
    | _names(
        """
        acos acosh asin asinh atan atanh cos cosh exp isclose isfinite isinf isnan log log10 phase polar rect sin sinh sqrt tan
        tanh
        """,
        "cmath.",
    )
    | _names(
        """
        truth contains indexOf countOf is_ is_not index add sub mul matmul floordiv truediv mod neg pos abs inv invert lshift
        rshift not_ is_none is_not_none and_ xor or_ iadd isub imul imatmul ifloordiv itruediv imod ilshift irshift iand ixor ior concat
        iconcat getitem setitem delitem pow ipow eq ne lt le gt ge length_hint call
        """,
        "_operator.",
    )
    | _names("tee", "itertools.")
    | _names("reduce cmp_to_key", "_functools.")
    | _names("_count_elements", "_collections.")
    | _names("popleft appendleft append pop clear extend extendleft rotate reverse insert remove index count copy __copy__", "collections.deque.")
    | _names("move_to_end popitem pop setdefault clear copy keys values items update __reversed__", "collections.OrderedDict.")
    | _names("copy __copy__ __missing__ get keys values items pop popitem setdefault update clear", "collections.defaultdict.")
    | _names("get_cache_token _abc_init _abc_register _abc_instancecheck _abc_subclasscheck", "_abc.")
    | _names("bisect_right insort_right bisect_left insort_left", "_bisect.")
    | _names("heappush heappushpop heappop heapreplace heapify _heappop_max _heapify_max _heapreplace_max", "_heapq.")
    | _names("compile getcodesize ascii_iscased unicode_iscased ascii_tolower unicode_tolower template", "_sre.")
    | _names("match fullmatch search sub subn split findall finditer scanner __copy__ __deepcopy__", "re.Pattern.")
    | _names("group start end span groups groupdict expand __copy__ __deepcopy__ __getitem__", "re.Match.")
    | _names("calcsize iter_unpack pack pack_into unpack unpack_from", "_struct.")
    | _names("pack pack_into unpack unpack_from iter_unpack", "_struct.Struct.")
    | _names("formatter_field_name_split formatter_parser", "_string.")
    | _names("category decimal digit numeric normalize is_normalized name lookup combining bidirectional", "unicodedata.")
    | _names("encode_basestring_ascii encode_basestring scanstring", "_json.")
    | _names("intern getsizeof audit getdefaultencoding getfilesystemencoding is_finalizing", "sys.")
    # A warning that is shown is seen where the interpreter shows it.
    | _names("warn", "_warnings.")
    | _names("allocate_lock get_native_id", "_thread.")
    | _names("__enter__ __exit__", "_thread.lock.")
    | _names("__enter__ __exit__", "_thread.RLock.")
    | _names("get set reset", "ContextVar.")  # whose value is compared afterwards
    | _names("get set reset", "_contextvars.ContextVar.")
    | _names("send throw close __next__", "generator.")
    | _names("apply", "torch._C._FunctionBase.")  # of which the program's own code is watched
    | _names("getter setter deleter", "property.")
    | _names("get keys values items copy", "mappingproxy.")
    | _names("mapping", "dict_keys.")
    | _names("isdisjoint", "dict_keys.")
    | _names("isdisjoint", "dict_items.")
    | _names("mro __subclasses__ __prepare__ __instancecheck__ __subclasscheck__", "type.")
    | _names("type.__prepare__ dict.fromkeys str.maketrans float.fromhex bytes.fromhex int.from_bytes itertools.chain.from_iterable")
    | _names("object.__new__ tuple.__new__ dict.__new__ list.__new__ int.__new__ float.__new__ str.__new__ object.__init_subclass__")
    | _names("object.__reduce_ex__ object.__reduce__ object.__format__ object.__sizeof__ object.__dir__ object.__subclasshook__")
    | _names("GenericAlias.__new__ types.GenericAlias.__new__ types.GenericAlias.__mro_entries__")
    | _names("BaseException.with_traceback BaseException.add_note")
    | _names("__reduce__ __setstate__", "functools.partial.")
    | _names("isoformat replace total_seconds date time timestamp weekday isoweekday toordinal", "datetime.datetime.")
    | _names("isoformat replace weekday isoweekday toordinal", "datetime.date.")
    | _names("total_seconds", "datetime.timedelta.")
    | _names("fspath _path_normpath", "posix.")
    | _names("_idfunc", "_typing.")
    | _names("cpu_count", "posix.")
    # torch
    | _names(
        """
        is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype
        get_autocast_cpu_dtype get_autocast_gpu_dtype is_autocast_cache_enabled _get_tracing_state _is_tracing
        _jit_get_emit_hooks _infer_size _debug_has_internal_overlap is_storage
        """,
        "torch.",
    )
    | _names(
        """
        is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype
        is_autocast_cache_enabled _get_tracing_state _is_tracing _has_torch_function _has_torch_function_unary
        _has_torch_function_variadic _get_float32_matmul_precision _get_deterministic_algorithms _get_flash_sdp_enabled
        _get_mem_efficient_sdp_enabled _get_math_sdp_enabled _get_cudnn_sdp_enabled _get_overrideable_sdp_enabled
        _get_sdp_priority_order _get_mkldnn_enabled _log_api_usage_once
        _is_torch_function_enabled _autocast_supported_devices _is_autocast_available _is_any_autocast_enabled
        set_autocast_enabled set_autocast_cpu_enabled set_autocast_dtype set_autocast_cache_enabled autocast_increment_nesting
        autocast_decrement_nesting clear_autocast_cache _set_grad_enabled
        """,
        "torch._C.",
    )
    | _names("_functorch.maybe_current_level _functorch.peek_interpreter_stack _functorch.is_batchedtensor _functorch.is_functorch_wrapped_tensor", "torch._C.")
    | _names("has_torch_function has_torch_function_unary has_torch_function_variadic", "torch._C.")
    | _names("_get_privateuse1_backend_name", "torch._C.")
    | _names(
        """
        __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__
        __pow__ __rpow__ __matmul__ __rmatmul__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__
        __rrshift__ __iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
        __ilshift__ __irshift__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __neg__ __invert__ __bool__ __nonzero__ __int__ __long__
        __float__ __complex__ __index__ __len__ __getitem__ __setitem__ __contains__ __iter__ bfloat16 bool byte cdouble cfloat
        char double float half int long short ndimension nelement new new_tensor type dim __deepcopy__ __dir__ __getattribute__
        has_names is_coalesced get_device is_same_size element_size size stride storage_offset numel is_contiguous is_complex
        is_floating_point is_signed is_conj is_neg is_inference _is_view requires_grad_ detach detach_ cpu to
        """,
        "Tensor.",
    )
    | _names("numel", "torch.Size.")
    | _names("__reduce__ to_complex to_real", "torch.dtype.")
    | _names("__reduce__", "torch.device.")
)

# What depends on something that no argument says, and can be asked again.
ANSWERS = frozenset(
    _names("sys.exc_info sys.exception sys.getrecursionlimit sys.getswitchinterval sys.get_int_max_str_digits gc.isenabled gc.get_threshold _thread.get_ident")
    | _names("posix.getpid posix.getcwd posix.getuid locale.localeconv _locale.getencoding")
    | _names("get_num_threads get_num_interop_threads is_warn_always_enabled is_anomaly_enabled is_anomaly_check_nan_enabled", "torch.")
    | _names("is_anomaly_enabled is_anomaly_check_nan_enabled get_num_threads get_num_interop_threads _get_warnAlways get_default_device", "torch._C.")
)

# What Python's own library and torch call and leave nothing of behind.
OF_LIBRARIES = frozenset(
    _names("acquire release locked acquire_lock release_lock", "_thread.lock.")
    | _names("acquire release _is_owned _release_save _acquire_restore", "_thread.RLock.")
    | _names("_getframe _getframemodulename gettrace", "sys.")
    | _names("id hash", "builtins.")  # memos of copies; a tensor's identity is noticed in Tensor.__hash__
)

# Whoever calls them, torch's own Python code too; a module's or type's name stands for all of it.
IMPURE = frozenset(
    _names("print input open exec eval breakpoint globals id hash __import__", "builtins.")
    | _names(
        """
        numpy tolist data_ptr const_data_ptr untyped_storage _typed_storage storage _storage __array__ __dlpack__ retain_grad backward
        map_ map2_ apply_ share_memory_ is_shared set_ resize_ resize_as_ _cdata __reduce_ex__ _view_func _view_func_unsafe
        _rev_view_func_unsafe _use_count _fix_weakref register_hook
        """,
        "Tensor.",
    )
    | _names("_to_dlpack _to_dlpack_versioned _from_dlpack _dlpack_exchange_api _data_address _tensor_impl_raw_handle", "torch._C.")
    | _names("_swap_tensor_impl _replace_ _increment_version _unsafe_reset_storage _add_cached_tensor _is_cached_tensor", "torch._C.")
    | _names("_construct_storage_from_data_pointer Generator default_generator fork wait", "torch._C.")
    | _names("_current_graph_task_id _current_autograd_node set_flush_denormal set_anomaly_enabled _enter_dual_level", "torch._C.")
    | _names(
        """
        from_numpy frombuffer asarray from_file _from_blob seed initial_seed set_num_threads set_num_interop_threads Generator
        default_generator set_flush_denormal
        """,
        "torch.",
    )
    | _names("from_numpy frombuffer asarray from_file _from_blob", "torch._VariableFunctionsClass.")
    | _names("from_numpy frombuffer asarray from_file _from_blob", "torch._C._VariableFunctionsClass.")
)

# Functions, and modules and types with all that is theirs, of which Dynamo is known to answer otherwise than eager: it copies generators
# of random numbers, and shows itself in identities and in what a debugger sees.
EAGER = frozenset("builtins.hash builtins.id builtins.__import__ functools._lru_cache_wrapper sys Tensor.numpy _random.Random torch._C._EngineBase".split())

# Functions of torch.optim, by file: they do nothing but call operations, read gradients, keep tensors in dicts of the optimizer's, and
# count and compute numbers. Optimizers that are not listed are left to eager.
_STEPS = {
    "optimizer": "_use_grad _get_value _stack_if_compiling maybe_fallback _default_to_fused_or_foreach _view_as_real _get_scalar_dtype"
    " _get_capturable_supported_devices _to_scalar _accelerator_graph_capture_health_check _cuda_graph_capture_health_check"
    " _optimizer_step_code wrapper _group_tensors_by_device_and_dtype zero_grad _device_dtype_check_for_fused",
    "radam": "step _init_group radam _single_tensor_radam _multi_tensor_radam _compute_rect _compute_adaptive_lr",
    "lr_scheduler": "wrapper step _update_lr get_lr _get_closed_form_lr get_last_lr _param_groups_val_list _update_param_group_val __init__"
    " __enter__ __exit__ _warn_get_lr_called_within_step _copy scale_fn _triangular_scale_fn _triangular2_scale_fn _exp_range_scale_fn"
    " _anneal_func _annealing_cos _annealing_linear _is_better in_cooldown _reduce_lr",  # a wrapper is around an optimizer's step
    "swa_utils": "update_parameters forward ema_update swa_update get_swa_avg_fn get_swa_multi_avg_fn",
    "adamw": "adamw",
    "_muon": "step _init_group muon _single_tensor_muon _adjust_lr _zeropower_via_newtonschulz",
} | {
    name: f"step _init_group {name} _single_tensor_{name} _multi_tensor_{name} _fused_{name}"
    for name in "sgd adam rmsprop adagrad adamax nadam adadelta rprop".split()
}  # fmt: skip
OPTIMIZERS = frozenset(f"{file}.{name}" for file, names in _STEPS.items() for name in f"{names} <listcomp> <genexpr> <lambda>".split())

# Functions, by the modules that they stand in, that ask whether they are compiled and are told so in every captured run: their callers were
# read, which leave out warnings and checks of elements, and compute masks and positions in the way that reads none on the host.
TOLD = {"is_torchdynamo_compiling": "transformers.utils.import_utils"}

# Settings of torch whose change is noticed after the run, or which the capture has a way with.
_NOTICED = frozenset(
    """
    _set_grad_enabled _set_torch_function_state _set_fwd_grad_enabled set_autocast_enabled set_autocast_cpu_enabled
    set_autocast_dtype set_autocast_cpu_dtype set_autocast_gpu_dtype set_autocast_cache_enabled _set_view_replay_enabled
    _set_default_dtype _set_deterministic_algorithms _set_float32_matmul_precision _set_mkldnn_enabled _set_mkldnn_deterministic
    _set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math _set_sdp_use_cudnn _set_sdp_use_overrideable
    _set_sdp_priority_order _set_skip_next_torch_function _set_conj _set_neg
    """.split()
)


@functools.cache
def impure() -> frozenset[str]:
    """Torch's other settings and registries count as impure, too."""
    prefixes = ("set_", "_set_", "_jit_set_", "_push_on_", "_pop_", "_dispatch_tls_set", "_vmapmode_", "_stash_", "_rename_")
    settings = {n for n in dir(torch._C) if n.startswith(prefixes) and n not in _NOTICED}
    return IMPURE | {f"{module}.{n}" for n in settings for module in ("torch._C", "torch")}


@functools.cache
def operators() -> frozenset[str]:
    """Functions of torch's that its schemas describe: the dispatcher shows each of their calls."""
    return frozenset(schema.name.split("::")[1] for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::"))


# ---- types written in C ----

# Their instances never change: what they refer to is all there is to them.
VALUES = frozenset(
    """
    property staticmethod classmethod mappingproxy types.GenericAlias types.UnionType typing.Union slice NotImplementedType ellipsis
    wrapper_descriptor method_descriptor classmethod_descriptor getset_descriptor member_descriptor method-wrapper
    instancemethod code NoneType bool range builtin_function_or_method
    operator.itemgetter operator.attrgetter operator.methodcaller re.Pattern re.Match _collections._tuplegetter collections._tuplegetter _struct.Struct
    datetime.date datetime.time datetime.datetime datetime.timedelta datetime.timezone
    typing.TypeVar typing.ParamSpec typing.ParamSpecArgs typing.ParamSpecKwargs typing.TypeVarTuple typing.TypeAliasType
    typing.NoDefaultType typing.Generic
    _contextvars.Token Token
    numpy.dtype numpy.ufunc numpy._ArrayFunctionDispatcher
    torch.dtype torch.device torch.layout torch.memory_format torch.finfo torch.iinfo torch.Size torch.qscheme
    PyCapsule ScriptFunction torch._C.ScriptFunction
    """.split()
)

# Locks, and what only the interpreter's bookkeeping reads.
STATELESS = frozenset("_thread.lock _thread.RLock _abc._abc_data _abc_data".split())

# A program may make them: what making one gives depends on the arguments only. Exceptions are another such kind.
MAKERS = frozenset(
    """
    object type int float complex str bytes bytearray tuple list dict set frozenset slice super enumerate zip map filter reversed
    memoryview function method builtin_function_or_method module cell generator coroutine async_generator traceback frame
    types.SimpleNamespace functools.partial functools._lru_cache_wrapper collections.deque collections.defaultdict
    collections.OrderedDict weakref weakref.ReferenceType weakref.ProxyType weakref.CallableProxyType
    dict_keys dict_values dict_items odict_keys odict_values odict_items dict_keyiterator list_iterator tuple_iterator
    itertools.accumulate itertools.combinations itertools.combinations_with_replacement itertools.cycle itertools.dropwhile
    itertools.takewhile itertools.islice itertools.starmap itertools.chain itertools.compress itertools.filterfalse
    itertools.count itertools.zip_longest itertools.pairwise itertools.permutations itertools.product itertools.repeat
    itertools.groupby itertools.batched
    ContextVar _contextvars.ContextVar Context _contextvars.Context
    numpy.ndarray numpy.generic
    torch._C.TensorBase torch._C._TensorBase torch._C._FunctionBase torch._C._TensorMeta torch._C.Size _TensorMeta _FunctionBase TensorBase
    torch._C._disabled_torch_function_impl torch._C.DisableTorchFunctionSubclass torch._C.DisableTorchFunction
    EnumType
    """.split()
)

# Attributes and globals of libraries that no result depends on, by their class or module.
UNWATCHED = {
    "logging.Logger": {"_cache", "handlers"},  # the cache follows from the levels
    "logging.RootLogger": {"_cache", "handlers"},
    "logging.Manager": {"loggerDict", "loggerClass", "logRecordFactory", "emittedNoHandlerWarning"},
    "re": {"_cache", "_cache2", "_MAXCACHE"},
    "re._parser": {"_cache"},
    "torch.compiler": {"_is_compiling_flag"},
    "torch.utils.hooks.RemovableHandle": {"hooks_dict_ref", "extra_dict_ref"},  # which show in the dicts
    "torch.Tensor": {"tolist", "item", "grad"},  # replaced in captured runs
    # The code of an operation, which runs in every call.
    "torch._library.custom_ops.CustomOpDef": {
        *("_init_fn", "_backend_fns", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_torch_dispatch_fns", "_vmap_fn"),
        *("_autocast_dtype", "_disabled_kernel", "_used_triton_kernels"),
    },
    "sys": {"modules"},
}
