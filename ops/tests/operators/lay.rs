//! Operands in every kind of layout, and their values in f64.

use half::{bf16, f16};
use sinew_ops::Context;
use sinew_tensor::{DType, Element, Layout, Tensor};

/// How the elements of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lay {
    Contiguous,
    /// Dimensions stored in the opposite order.
    Transposed,
    /// Every second element.
    Stepped,
    /// Gaps between rows, and elements before the first.
    Padded,
    /// The first dimension repeats its first index.
    Broadcast,
}

impl Lay {
    pub const ALL: [Self; 5] = [Self::Contiguous, Self::Transposed, Self::Stepped, Self::Padded, Self::Broadcast];

    /// Those that can be written.
    pub const OUTPUTS: [Self; 4] = [Self::Contiguous, Self::Transposed, Self::Stepped, Self::Padded];

    pub fn layout(self, shape: &[usize]) -> Layout {
        let mut strides = vec![0; shape.len()];
        let (mut step, offset) = match self {
            Self::Stepped => (2, 3),
            Self::Padded => (1, 5),
            _ => (1, 0),
        };
        let order: Vec<usize> = match self {
            Self::Transposed => (0..shape.len()).collect(),
            _ => (0..shape.len()).rev().collect(),
        };
        for d in order {
            strides[d] = step;
            step *= shape[d].max(1);
            if self == Self::Padded {
                step += 3;
            }
        }
        if self == Self::Broadcast && !strides.is_empty() {
            strides[0] = 0;
        }
        Layout::strided(shape, &strides, offset).unwrap()
    }
}

/// What lies between the elements of an operand: nothing may read it, nothing may write it.
const GAP: f64 = 77.0;

fn filled(ctx: &Context, dtype: DType, len: usize, value: impl Fn(usize) -> f64) -> Tensor {
    fn of<T: Element>(ctx: &Context, len: usize, value: impl Fn(usize) -> f64) -> Tensor {
        let values: Vec<T> = (0..len).map(|i| T::from_f64(value(i))).collect();
        ctx.tensor(&values, &[len]).unwrap()
    }
    match dtype {
        DType::F64 => of::<f64>(ctx, len, value),
        DType::F32 => of::<f32>(ctx, len, value),
        DType::F16 => of::<f16>(ctx, len, value),
        DType::BF16 => of::<bf16>(ctx, len, value),
        DType::I64 => of::<i64>(ctx, len, value),
        DType::I32 => of::<i32>(ctx, len, value),
        DType::U32 => of::<u32>(ctx, len, value),
        DType::U8 => of::<u8>(ctx, len, value),
        other => panic!("no test operand of {other}"),
    }
}

/// A number between -2 and 2 for each seed and position.
pub fn number(seed: usize, i: usize) -> f64 {
    let mut x = (seed as u64 ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 32;
    (x >> 11) as f64 / (1u64 << 51) as f64 - 2.0
}

/// An operand with `value(i)` at the i-th of its elements in row-major order, rounded to `dtype`, and gaps around them.
pub fn operand(ctx: &Context, dtype: DType, shape: &[usize], lay: Lay, value: impl Fn(usize) -> f64) -> Tensor {
    let layout = lay.layout(shape);
    let mut all = vec![GAP; layout.end() + 4];
    for (i, at) in layout.indices().enumerate() {
        all[at] = value(i);
    }
    filled(ctx, dtype, all.len(), |i| all[i]).with_layout(layout).unwrap()
}

/// An operand of numbers between -2 and 2.
pub fn random(ctx: &Context, dtype: DType, shape: &[usize], lay: Lay, seed: usize) -> Tensor {
    operand(ctx, dtype, shape, lay, |i| number(seed, i))
}

/// A tensor to write.
pub fn output(ctx: &Context, dtype: DType, shape: &[usize], lay: Lay) -> Tensor {
    operand(ctx, dtype, shape, lay, |_| GAP)
}

/// Fails where anything between the elements of an output has changed.
#[track_caller]
pub fn assert_gaps_kept(ctx: &Context, y: &Tensor) {
    let len = y.buffer().len() / y.dtype().size();
    let all = y.with_layout(Layout::contiguous(&[y.layout().end() + 4]).unwrap()).unwrap();
    assert!(all.layout().elements() <= len);
    let mut values = all.to_f64_vec(&**ctx.stream()).unwrap();
    y.layout().indices().for_each(|at| values[at] = GAP);
    assert!(values.iter().all(|&v| v == GAP), "something was written between the elements of {:?}", y.layout());
}

/// Values in f64 with their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Host {
    pub fn of(ctx: &Context, x: &Tensor) -> Self {
        Self { shape: x.shape().to_vec(), values: x.to_f64_vec(&**ctx.stream()).unwrap() }
    }

    pub fn build(shape: &[usize], f: impl Fn(&[usize]) -> f64) -> Self {
        Self { shape: shape.to_vec(), values: indices(shape).map(|index| f(&index)).collect() }
    }

    /// The element of an index that is aligned at the end; sizes of 1 are repeated.
    pub fn at(&self, index: &[usize]) -> f64 {
        let index = &index[index.len() - self.shape.len()..];
        let at = index.iter().zip(&self.shape).fold(0, |at, (&i, &size)| at * size + if size == 1 { 0 } else { i });
        self.values[at]
    }
}

/// Every index of a shape in row-major order.
pub fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    (0..shape.iter().product()).map(move |mut flat: usize| {
        let mut index = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            index[d] = flat % shape[d];
            flat /= shape[d];
        }
        index
    })
}

/// Compares within `ulps` of the output's dtype, and `slack` more.
#[track_caller]
pub fn assert_close(ctx: &Context, y: &Tensor, want: &Host, ulps: f64, slack: f64, what: &str) {
    let got = Host::of(ctx, y);
    assert_eq!(got.shape, want.shape, "{what}");
    for (i, (&got, &want)) in got.values.iter().zip(&want.values).enumerate() {
        let bound = ulps * y.dtype().ulp(want) + slack;
        let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= bound;
        assert!(same, "{what}: element {i} of {:?} {} is {got}, not {want}", y.layout(), y.dtype());
    }
}

/// The message of an error, which names what a user needs to know.
#[track_caller]
pub fn assert_names<T>(result: sinew_ops::Result<T>, words: &[&str]) {
    let message = match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.to_string(),
    };
    assert!(words.iter().all(|word| message.contains(word)), "`{message}` does not name all of {words:?}");
}
