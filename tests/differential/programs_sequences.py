"""The sequences of calls in `sequences_<subject>.py`, all of them with BROACH_TEST_ALL=1 and else those that take least time."""
import os

import sequences
import sequences_arguments  # noqa: F401
import sequences_autograd  # noqa: F401
import sequences_language  # noqa: F401
import sequences_modules  # noqa: F401
import sequences_tensors  # noqa: F401

SHORT = """
global_number global_created_deleted global_tensor torch_patched closure_two_functions closures_made_inside defaults_changed
mutable_default str_args float_arith size_branches list_args dict_key_kinds nested_args returns_input_identity identity_state
partial_objs singledispatch_reduce recursion walrus_match enums slots_props_descr getattribute_objs isinstance_duck data_branch
""".split()
CHOSEN = list(sequences.CASES) if os.environ.get("BROACH_TEST_ALL") == "1" else SHORT
PROGRAMS = {name: f"import sequences; out = sequences.run({name!r}, C)" for name in CHOSEN}
