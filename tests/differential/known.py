"""Programs of this folder that Broach is known to answer otherwise than eager, each with its reason."""

KNOWN = {
    "types_function_made": "Dynamo, which takes it, wants builtins in a function's globals",
    "tensor_truth_errors": "the truth of a tensor without dimensions raises, after a call with one of one element",
    "swap_tensors": "swap_tensors wants nobody else to hold the tensors, and a compiled program holds those that it reads",
    "int_max_str_digits": "str and int read the limit without a call that the interpreter tells of",
    "dict_nan_and_zero_keys": "which NaN object is the key of a dict: numbers are compared by their values",
    "numpy_function_of_tensor": "Dynamo, which takes programs that convert to numpy, gives arrays for numpy's scalars",
    "numpy_scalar_from_tensor_and_back": "the same",
    "numpy_of_grad_tensor_raises": "the same, and it converts tensors that require gradients",
}
