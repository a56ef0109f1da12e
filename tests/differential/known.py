"""Programs of this folder that Broach is known to answer otherwise than eager, each with its reason."""

KNOWN = {
    "swap_tensors": "swap_tensors wants nobody else to hold the tensors, and a compiled program holds those that it reads",
    "int_max_str_digits": "str and int read the limit without a call that the interpreter tells of",
    "dict_nan_and_zero_keys": "which NaN object is the key of a dict: numbers are compared by their values",
}
