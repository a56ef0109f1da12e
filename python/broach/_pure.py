"""Which functions written in C a captured program may call: those that change nothing outside it and whose results depend on
their arguments and on watched state only. Whatever is not listed here sends the program to the Dynamo front.

A name is "module.function" or "type.method"; a module's or type's name alone stands for all of it. What is written to
lists, dicts and objects that the program did not make itself is found by comparing them before and after, so methods of the
built-in containers need no entry.
"""

from __future__ import annotations

PURE = frozenset(
    """
    builtins math cmath operator _operator itertools functools _functools collections _collections _collections_abc
    _abc _weakref weakref types inspect re _sre _struct struct string _string copy copyreg bisect _bisect heapq _heapq
    numbers fractions decimal enum dataclasses typing contextlib unicodedata _json json
    sys.getrecursionlimit sys.getsizeof sys.intern sys.exc_info sys._getframe sys.getrefcount sys.audit
    _warnings.warn warnings
    dict list tuple str set frozenset int float complex bool bytes bytearray slice range enumerate zip map filter reversed
    GenericAlias types.GenericAlias _thread.RLock _thread.lock _thread.allocate_lock
    torch object type method-wrapper mappingproxy re.Pattern re.Match _struct.Struct
    collections.OrderedDict collections.deque collections.defaultdict _collections.deque
    dict_keys dict_values dict_items odict_keys odict_values odict_items
    generator coroutine property classmethod staticmethod super builtin_function_or_method function method code frame cell
    ContextVar Token _contextvars _contextvars.ContextVar
    functools._lru_cache_wrapper functools.partial
    broach_ext
    dtype torch.dtype torch.device torch.Size torch.layout torch.finfo torch.iinfo
    """.split()
)

# Exceptions from the above, and what takes values out of the tensors' world.
IMPURE = frozenset(
    """
    builtins.print builtins.input builtins.open builtins.exec builtins.eval builtins.breakpoint builtins.globals
    Tensor.numpy Tensor.tolist Tensor.data_ptr Tensor.untyped_storage Tensor._typed_storage Tensor.storage Tensor._storage
    Tensor.__array__ Tensor.__dlpack__ Tensor._make_subclass Tensor.retain_grad Tensor.backward
    Tensor.map_ Tensor.map2_ Tensor.apply_ Tensor.share_memory_ Tensor.set_ Tensor.resize_ Tensor.resize_as_
    Tensor._cdata Tensor.__reduce_ex__
    torch._C._to_dlpack torch._C._to_dlpack_versioned torch._C._from_dlpack
    torch.from_numpy torch.frombuffer torch.from_file torch._C._VariableFunctionsClass.from_numpy
    torch._C.Generator torch.Generator torch.set_num_threads torch._C.set_num_threads torch.set_num_interop_threads
    torch._C._EngineBase torch._C._ImperativeEngine
    torch._C.default_generator torch.seed torch.initial_seed
    """.split()
)
