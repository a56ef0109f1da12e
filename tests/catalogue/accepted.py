"""What differs from eager and is known to, with the reason: by program, or by the first words of its name."""

ROUNDING = "roundings to 16 bits that a fused chain leaves out"
ORDER = "f32 sums converted to f64: the order of summation shows"
POSITION = "eager's vectors and its rest of a row treat NaN differently"
NUMBER = "a number that changes is not checked against the range of the type that it is converted to"

KNOWN = {
    "pointwise": {
        "cast ": ROUNDING,
        "mul number f16,bf16": ROUNDING,
        "zero-dimensional ": ORDER,
        "activation ": POSITION,
        "logit of special values": "a gradient's infinity at -0.0 has the other sign",
        "sigmoid far": "eager makes 0 of a result below the normal numbers",
    },
    "reductions": {
        "var huge mean": "the mean's last bit is 0.001 there",
        "var near limits": "squares overflow in f32, which eager sums in f64",
        "layer norm near limits": "eager gives 0 or NaN by the row's length",
    },
    "combinations": {
        "rotation by complex numbers": "an odd offset of the storage, which eager refuses, is not guarded",
        "reassociated products": "one rounding less where a product meets a difference",
        "zero-dimensional of wider type": ORDER,
    },
    "arguments": {
        "clamp uint8": NUMBER,
        "masked_fill beyond": NUMBER,
        "fill beyond": NUMBER,
        "full_like beyond": NUMBER,
        "where beyond": NUMBER,
        "setitem beyond": NUMBER,
        "half beyond range": NUMBER,
        "half filled beyond range": NUMBER,
        "f32 number precision": NUMBER,
        "bf16 numbers": "a number is compared before it is rounded to bf16, once it changes and gradients are on",
        "complex with numbers": "a bug is reported for a complex number with an infinity",
    },
}
