// Functions of one and two operands, and selection.

// In the order of `UnaryFunction`.
enum class Unary : u32 {
    Neg, Abs, Sign, Square, Sqrt, Rsqrt, Recip, Exp, Log, Sin, Cos, Tanh, Floor, Ceil, Round, Not
};
// In the order of `BinaryFunction`.
enum class Binary : u32 { Add, Sub, Mul, Div, Max, Min, Pow, Eq, Ne, Lt, Le, Gt, Ge };

struct UnaryParams {
    Strided<2> operands;  // y, x
    Unary function;
    u32 padding;
};

struct BinaryParams {
    Strided<3> operands;  // y, a, b
    // Stands for b, as a float and as an integer.
    double scalar;
    i64 integer;
    u32 by_scalar;
    Binary function;
};

struct WhereParams {
    Strided<4> operands;  // y, condition, a, b
    u32 size;
    u32 padding;
};

DEVICE bool is_compute(u32 type) { return type <= BF16; }

// What takes tens of instructions and more.
template <typename T> OUTLINED T transcendental(Unary function, T x) {
    switch (function) {
        case Unary::Exp: return exp(x);
        case Unary::Log: return log(x);
        case Unary::Sin: return sin(x);
        case Unary::Cos: return cos(x);
        default: return tanh(x);
    }
}

// Division and square root round correctly, as the compiler's default has it.
template <typename T> DEVICE T unary_float(Unary function, T x) {
    switch (function) {
        case Unary::Neg: return -x;
        case Unary::Abs: return fabs(x);
        case Unary::Sign: return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
        case Unary::Square: return x * x;
        case Unary::Sqrt: return sqrt(x);
        case Unary::Rsqrt: return T(1) / sqrt(x);
        case Unary::Recip: return T(1) / x;
        case Unary::Floor: return floor(x);
        case Unary::Ceil: return ceil(x);
        case Unary::Round: return rint(x);
        default: return transcendental(function, x);
    }
}

// Of all widths in 64 bits, whose lower bits are those of the narrower result.
DEVICE i64 unary_integer(Unary function, i64 x) {
    switch (function) {
        case Unary::Neg: return i64(0 - u64(x));
        case Unary::Abs: return x < 0 ? i64(0 - u64(x)) : x;
        case Unary::Sign: return i64(x > 0) - i64(x < 0);
        default: return i64(u64(x) * u64(x));
    }
}

SINEW_KERNEL(unary, UnaryParams) {
    const Unary function = p.function;
    const Ptr y = p.operands.pointers[0], x = p.operands.pointers[1];
    const u32 type = p.operands.types[1];
    if (function == Unary::Not) {
        each(p.operands, [&](const i64* at) {
            const bool zero = is_compute(type) ? load(x, type, at[1]) == 0.0f
                              : type == F64    ? *::at<double>(x, at[1]) == 0.0
                                               : load_index(x, type, at[1]) == 0;
            store_index(y, BOOL, at[0], zero);
        });
    } else if (is_compute(type)) {
        map(p.operands, [=](const float* x) { return unary_float(function, x[0]); });
    } else if (type == F64) {
        each(p.operands, [&](const i64* at) {
            *at_mut<double>(y, at[0]) = unary_float(function, *::at<double>(x, at[1]));
        });
    } else {
        each(p.operands, [&](const i64* at) {
            store_index(y, type, at[0], unary_integer(function, load_index(x, type, at[1])));
        });
    }
}

// f32 powers are taken in f64: powf may be wrong by 4 units, twice what is allowed.
OUTLINED double power(double a, double b) { return pow(a, b); }

template <typename T> DEVICE T binary_float(Binary function, T a, T b) {
    switch (function) {
        case Binary::Add: return a + b;
        case Binary::Sub: return a - b;
        case Binary::Mul: return a * b;
        case Binary::Div: return a / b;
        case Binary::Max: return a > b || a != a ? a : b;
        case Binary::Min: return a < b || a != a ? a : b;
        default: return T(power(a, b));
    }
}

DEVICE i64 binary_integer(Binary function, i64 a, i64 b) {
    switch (function) {
        case Binary::Add: return i64(u64(a) + u64(b));
        case Binary::Sub: return i64(u64(a) - u64(b));
        case Binary::Mul: return i64(u64(a) * u64(b));
        case Binary::Max: return a > b ? a : b;
        default: return a < b ? a : b;
    }
}

template <typename T> DEVICE bool compare(Binary function, T a, T b) {
    switch (function) {
        case Binary::Eq: return a == b;
        case Binary::Ne: return a != b;
        case Binary::Lt: return a < b;
        case Binary::Le: return a <= b;
        case Binary::Gt: return a > b;
        default: return a >= b;
    }
}

SINEW_KERNEL(binary, BinaryParams) {
    const Binary function = p.function;
    const Ptr y = p.operands.pointers[0], a = p.operands.pointers[1], b = p.operands.pointers[2];
    const u32 type = p.operands.types[1], b_type = p.operands.types[2];
    const bool compares = function >= Binary::Eq, by_scalar = p.by_scalar != 0;
    const float scalar = float(p.scalar);
    if (is_compute(type) && !compares) {
        map(p.operands, [=](const float* x) { return binary_float(function, x[0], by_scalar ? scalar : x[1]); });
    } else if (is_compute(type)) {
        each(p.operands, [&](const i64* at) {
            const float right = by_scalar ? scalar : load(b, b_type, at[2]);
            store_index(y, BOOL, at[0], compare(function, load(a, type, at[1]), right));
        });
    } else if (type == F64) {
        each(p.operands, [&](const i64* at) {
            const double left = *::at<double>(a, at[1]), right = by_scalar ? p.scalar : *::at<double>(b, at[2]);
            if (compares) store_index(y, BOOL, at[0], compare(function, left, right));
            else *at_mut<double>(y, at[0]) = binary_float(function, left, right);
        });
    } else {
        each(p.operands, [&](const i64* at) {
            const i64 left = load_index(a, type, at[1]), right = by_scalar ? p.integer : load_index(b, type, at[2]);
            if (compares) store_index(y, BOOL, at[0], compare(function, left, right));
            else store_index(y, type, at[0], binary_integer(function, left, right));
        });
    }
}

SINEW_KERNEL(selection, WhereParams) {
    each(p.operands, [&](const i64* at) {
        const u32 from = *::at<u8>(p.operands.pointers[1], at[1]) != 0 ? 2 : 3;
        const Ptr x = from == 2 ? p.operands.pointers[2] : p.operands.pointers[3];
        copy_element(p.operands.pointers[0], at[0], x, from == 2 ? at[2] : at[3], p.size);
    });
}
