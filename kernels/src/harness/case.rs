//! Cases: problems to try, their operands on the host, and what should come out.

use std::fmt;
use std::sync::LazyLock;

use sinew_memory::Buffer;
use sinew_tensor::{DType, Element, Layout, Tensor};

use crate::Result;
use crate::operator::{Arithmetic, Operator, refuse};
use crate::packed::Format;
use crate::support::stored::StoredAs;

/// What is right, and what to try: the cases of an operator and the f64 reference that its rows are held against.
///
/// Choosing and running rows needs none of it, so it is a trait apart from [`Operator`].
pub trait Reference: Operator {
    /// A bounded set of problems over awkward shapes, dtypes, layouts and values: what accuracy tests and benches
    /// walk.
    fn cases(depth: Depth) -> Vec<Case<Self>>;

    /// A small problem for the table of [support](crate::support), whose operand is stored so: of products the right
    /// operand, of attention the cache, of others what they read. `None` where the operator cannot be asked for that.
    /// The operator's [check](Operator::check) and the rows' predicates say whether it is supported.
    fn stored_as(stored: StoredAs) -> Option<(Self::Static, Self::Dynamic)>;

    /// The same of a weight in a packed format, which is asked about where there is one. `None` where the operator has
    /// no such operand.
    fn packed_as(format: &'static Format) -> Option<(Self::Static, Self::Dynamic)> {
        let _ = format;
        None
    }

    /// Operands for a case, on the host.
    ///
    /// # Errors
    /// Whatever keeps them from being made, such as memory that is not there.
    fn operands(case: &Case<Self>) -> Result<HostOperands>;

    /// The reference: one element of one output in f64, from the same rounded inputs, with the error allowed to a
    /// row of `arithmetic`.
    fn expect(
        case: &Case<Self>,
        host: &HostOperands,
        arithmetic: Arithmetic,
        output: usize,
        index: &[usize],
    ) -> Expected;

    /// The values of an output in row-major order of its [`shape`](HostOperand::shape), from its tensor's elements in
    /// row-major order of theirs; `None` where they are the same.
    fn logical(case: &Case<Self>, output: usize, elements: &[f64]) -> Option<Vec<f64>> {
        let _ = (case, output, elements);
        None
    }

    /// The same problem cut down in sizes, dtypes and options as they are: one whose operands are made in no time, to
    /// check a row on that is to solve a large one. `None` where nothing can be cut.
    fn smaller(fixed: &Self::Static, call: Self::Dynamic) -> Option<(Self::Static, Self::Dynamic)> {
        let _ = (fixed, call);
        None
    }

    /// The inputs that come from memory each time a model runs the problem, as it has read much else since: weights,
    /// tables, keys and values. The others were just written, or will be read again. What is timed is timed so.
    const COLD: &'static [usize] = &[];

    /// The same problem with less of its weight, of about `bytes` bytes, where all of it is larger: what takes time is
    /// proportional, and is measured with operands that are made in a moment.
    fn part(fixed: &Self::Static, bytes: usize) -> Self::Static {
        let _ = bytes;
        fixed.clone()
    }
}

/// A size cut down to not much more than `most`; what is over a multiple of 128 stays, so that it is as awkward.
pub(crate) fn cut(size: usize, most: usize) -> usize {
    const TILE: usize = 128;
    if size <= most { size } else { most.next_multiple_of(TILE) + size % TILE }
}

/// How many cases to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Seconds: what every test run does.
    Quick,
    /// Minutes: every pair of options.
    Full,
}

/// What an input is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Normal numbers of standard deviation 1.
    Normal,
    /// Small integers: every sum is exact, and so must every result be that the operator calls exact.
    Integers,
    /// Normal numbers with a few NaNs and infinities.
    Special,
    /// Normal numbers scaled to the format's subnormal range.
    Subnormal,
    /// Normal numbers. Of a product only every third step of K counts: the others multiply huge activations with weights
    /// of exactly zero, which sums that do not leave them out lose all others to.
    Cancelling,
    /// Normal numbers, of a few thousand over and over: made in no time, for operands of a model's size that are timed.
    Repeating,
}

/// How a tensor lies in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lay {
    /// Row-major.
    Contiguous,
    /// The last two dimensions exchanged in memory.
    Transposed,
    /// Every second element of the last dimension.
    Stepped,
    /// Row-major with longer rows, starting past the first element.
    Padded,
    /// The first dimension repeated by a stride of 0 (inputs only; outputs take [`Lay::Padded`]).
    Broadcast,
}

impl Lay {
    /// Every lay.
    pub const ALL: [Self; 5] = [Self::Contiguous, Self::Transposed, Self::Stepped, Self::Padded, Self::Broadcast];

    /// The layout of a tensor of this shape.
    fn layout(self, shape: &[usize], writable: bool) -> Result<Layout> {
        let rank = shape.len();
        Ok(match self {
            Self::Transposed if rank >= 2 => {
                let mut swapped = shape.to_vec();
                swapped.swap(rank - 1, rank - 2);
                Layout::contiguous(&swapped)?.transpose(rank - 1, rank - 2)?
            }
            Self::Stepped if rank >= 1 => {
                let mut strides = Layout::contiguous(shape)?.strides().to_vec();
                strides.iter_mut().for_each(|s| *s *= 2);
                Layout::strided(shape, &strides, 1)?
            }
            Self::Broadcast if rank >= 1 && !writable => {
                let mut strides = Layout::contiguous(shape)?.strides().to_vec();
                strides[0] = 0;
                Layout::strided(shape, &strides, 0)?
            }
            Self::Padded | Self::Broadcast if rank >= 1 => {
                let mut longer = shape.to_vec();
                longer[rank - 1] += 3;
                let strides = Layout::contiguous(&longer)?.strides().to_vec();
                Layout::strided(shape, &strides, 2)?
            }
            _ => Layout::contiguous(shape)?,
        })
    }
}

/// One problem to try, with everything that makes it reproducible.
#[derive(Debug)]
pub struct Case<O: Operator> {
    /// The static part.
    pub fixed: O::Static,
    /// The dynamic part.
    pub call: O::Dynamic,
    /// How operands lie.
    pub lay: Lay,
    /// What they hold.
    pub values: Values,
    /// Seed of the values.
    pub seed: u64,
}

impl<O: Operator> Clone for Case<O> {
    fn clone(&self) -> Self {
        Self { fixed: self.fixed.clone(), ..*self }
    }
}

impl<O: Operator> Case<O> {
    /// Whether it writes over its input, where the operator lets it: every third does. What is timed does not, or it would
    /// run on what it made the last time, and end with zeros or infinities.
    pub(crate) fn in_place(&self) -> bool {
        self.seed.is_multiple_of(3) && self.values != Values::Repeating
    }
}

impl<O: Operator> fmt::Display for Case<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?} {:?} seed {}", self.fixed, self.call, self.lay, self.values, self.seed)
    }
}

/// An operand on the host: the tensor that rows receive, and the logical values that the reference reads.
#[derive(Clone, Debug)]
pub struct HostOperand {
    /// What rows receive. For packed weights its bytes are the packed form.
    pub tensor: Tensor,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Logical values in row-major order.
    pub values: Vec<f64>,
}

impl HostOperand {
    /// The value at an index.
    pub fn at(&self, index: &[usize]) -> f64 {
        debug_assert_eq!(index.len(), self.shape.len());
        self.values[index.iter().zip(&self.shape).fold(0, |at, (&i, &size)| at * size + i)]
    }
}

/// The operands of a case. Outputs hold what was in them before the call.
#[derive(Clone, Debug, Default)]
pub struct HostOperands {
    /// Inputs by position.
    pub inputs: Vec<Option<HostOperand>>,
    /// Outputs by position.
    pub outputs: Vec<HostOperand>,
}

impl HostOperands {
    /// The input at a position that the operator requires.
    ///
    /// # Panics
    /// Where it is absent: a mistake in the operator's own case generator.
    pub fn input(&self, position: usize) -> &HostOperand {
        self.inputs[position].as_ref().expect("the case generator makes every required operand")
    }
}

/// What one element should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The f64 reference.
    pub value: f64,
    /// What a naive implementation gives that rounds at the same places. Twice the largest error that it makes in a
    /// case is allowed to every element of that case (FlashAttention's rule). Equal to `value` where that rule is not
    /// used.
    pub naive: f64,
    /// Absolute error allowed on top.
    pub bound: f64,
    /// Whether any NaN or infinity will do, and nothing else: of an infinity times what may round to zero.
    pub not_finite: bool,
}

impl Expected {
    /// A value that must come out within `bound`.
    pub fn within(value: f64, bound: f64) -> Self {
        Self { value, naive: value, bound, not_finite: false }
    }

    /// A value that must come out exactly.
    pub fn exact(value: f64) -> Self {
        Self::within(value, 0.0)
    }

    /// With room, where an arithmetic takes subnormals for zeros, for so many of them that are multiplied with up to
    /// `largest`.
    pub fn flushing(self, arithmetic: Arithmetic, count: f64, largest: f64) -> Self {
        let flushed = if arithmetic.flushes_subnormals && largest.is_finite() { count * (1.0 + largest) } else { 0.0 };
        Self { bound: self.bound + flushed * f64::from(f32::MIN_POSITIVE), ..self }
    }
}

/// A small generator (SplitMix64, Steele et al. 2014) of test values: reproducible everywhere.
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; `n` at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal with standard deviation 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
    }

    /// A value of one kind, as it would be stored in `dtype`.
    pub fn value(&mut self, values: Values, dtype: DType) -> f64 {
        let x = match values {
            Values::Normal | Values::Cancelling => self.normal(),
            Values::Repeating => repeating()[self.below(REPEATING)],
            Values::Integers => self.below(9) as f64 - 4.0,
            Values::Special => match self.below(97) {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2 => f64::NEG_INFINITY,
                _ => self.normal(),
            },
            Values::Subnormal => self.normal() * if dtype == DType::F16 { 2f64.powi(-16) } else { 2f64.powi(-130) },
        };
        dtype.round(x)
    }

    /// An operand of these values; bytes of the buffer that no index names hold NaN.
    pub fn operand(&mut self, dtype: DType, shape: &[usize], lay: Lay, values: Values) -> Result<HostOperand> {
        let all: Vec<f64> = (0..elements(shape)?).map(|_| self.value(values, dtype)).collect();
        host_operand(dtype, shape, lay, all, false)
    }

    /// An output of NaNs, so that an element that a row forgets shows.
    pub fn output(&mut self, dtype: DType, shape: &[usize], lay: Lay) -> Result<HostOperand> {
        host_operand(dtype, shape, lay, vec![f64::NAN; elements(shape)?], true)
    }
}

/// Elements of an operand, which is made as f64 first: more are no case.
pub(crate) fn elements(shape: &[usize]) -> Result<usize> {
    const MOST: usize = 1 << 27;
    let elements = shape.iter().try_fold(1usize, |elements, &size| elements.checked_mul(size));
    elements.filter(|elements| *elements <= MOST).ok_or_else(|| {
        refuse("case", format!("operands of {shape:?} elements are not made; those of up to {MOST} elements are"))
    })
}

/// How many numbers [`Values::Repeating`] takes.
const REPEATING: usize = 1 << 12;

fn repeating() -> &'static [f64; REPEATING] {
    static NUMBERS: LazyLock<[f64; REPEATING]> = LazyLock::new(|| {
        let mut generator = Generator::new(0);
        std::array::from_fn(|_| generator.normal())
    });
    &NUMBERS
}

/// Lays values out on the host, with NaN (or the largest integer) wherever no index points.
///
/// `values` are row-major; where `lay` repeats elements the last written wins, and the operand's values say so.
pub fn host_operand(dtype: DType, shape: &[usize], lay: Lay, values: Vec<f64>, writable: bool) -> Result<HostOperand> {
    let layout = lay.layout(shape, writable)?;
    let mut flat = vec![f64::NAN; layout.end() + 5];
    for (at, value) in layout.indices().zip(&values) {
        flat[at] = *value;
    }
    let values = layout.indices().map(|at| flat[at]).collect();
    let buffer = Buffer::from_slice(&sinew_memory::Cpu::get(), &encode(dtype, &flat))?;
    Ok(HostOperand { tensor: Tensor::new(buffer, dtype, layout)?, shape: shape.to_vec(), values })
}

/// The bytes of `values` as `dtype`.
pub fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    fn all<T: Element>(values: &[f64]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|&x| bytes.extend_from_slice(bytemuck::bytes_of(&T::from_f64(x))));
        bytes
    }
    match dtype {
        DType::F64 => all::<f64>(values),
        DType::F32 => all::<f32>(values),
        DType::F16 => all::<half::f16>(values),
        DType::BF16 => all::<half::bf16>(values),
        DType::I64 => all::<i64>(values),
        DType::I32 => all::<i32>(values),
        DType::I16 => all::<i16>(values),
        DType::I8 => all::<i8>(values),
        DType::U32 => all::<u32>(values),
        DType::U8 => all::<u8>(values),
        DType::Bool => values.iter().map(|&x| u8::from(x != 0.0)).collect(),
        DType::F8E4M3 => all::<float8::F8E4M3>(values),
        DType::F8E5M2 => all::<float8::F8E5M2>(values),
        _ => Vec::new(),
    }
}

/// The values of bytes that hold `dtype`.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn all<T: Element>(bytes: &[u8]) -> Vec<f64> {
        bytes.chunks_exact(size_of::<T>()).map(|c| bytemuck::pod_read_unaligned::<T>(c).to_f64()).collect()
    }
    match dtype {
        DType::F64 => all::<f64>(bytes),
        DType::F32 => all::<f32>(bytes),
        DType::F16 => all::<half::f16>(bytes),
        DType::BF16 => all::<half::bf16>(bytes),
        DType::I64 => all::<i64>(bytes),
        DType::I32 => all::<i32>(bytes),
        DType::I16 => all::<i16>(bytes),
        DType::I8 => all::<i8>(bytes),
        DType::U32 => all::<u32>(bytes),
        DType::F8E4M3 => bytes.iter().map(|&b| float8::F8E4M3::from_bits(b).to_f64()).collect(),
        DType::F8E5M2 => bytes.iter().map(|&b| float8::F8E5M2::from_bits(b).to_f64()).collect(),
        _ => all::<u8>(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        activation, attention, cast, combine, elementwise, embedding, gather, gemm, grouped_gemm, kv_append, norm,
        reduce, rotary, route, sample, softmax, topk,
    };

    /// What problems count.
    const COUNTED: [&str; 10] =
        ["token", "row", "head", "sequence", "query", "key", "element", "expert", "group", "dim"];

    /// Counts in the problems of an operator, and whether each noun is that of one or of many.
    fn counted<O: Reference>() -> Vec<(String, bool, String)> {
        let mut all = Vec::new();
        for case in O::cases(Depth::Quick) {
            let problem = format!("{} {}; {}", O::NAME, case.fixed, case.call);
            let words: Vec<&str> = problem.split(' ').collect();
            for pair in words.windows(2) {
                let noun = pair[1].trim_end_matches([',', ';']);
                let many = COUNTED.iter().any(|one| noun == format!("{one}s")) || noun == "queries";
                if pair[0].bytes().all(|byte| byte.is_ascii_digit()) && (many || COUNTED.contains(&noun)) {
                    all.push((pair[0].to_owned(), many, problem.clone()));
                }
            }
        }
        all
    }

    #[test]
    fn problems_speak_of_one_token_and_of_many_tokens() {
        let all = [
            counted::<activation::Activate>(),
            counted::<attention::Attention>(),
            counted::<cast::Cast>(),
            counted::<combine::Combine>(),
            counted::<elementwise::Binary>(),
            counted::<elementwise::Unary>(),
            counted::<elementwise::Where>(),
            counted::<embedding::Embedding>(),
            counted::<gather::Gather>(),
            counted::<gemm::Gemm>(),
            counted::<grouped_gemm::GroupedGemm>(),
            counted::<kv_append::KvAppend>(),
            counted::<norm::Norm>(),
            counted::<reduce::Reduce>(),
            counted::<rotary::Rotary>(),
            counted::<route::Route>(),
            counted::<sample::Sample>(),
            counted::<softmax::Softmax>(),
            counted::<topk::TopK>(),
        ]
        .concat();
        for many in [false, true] {
            assert!(all.iter().any(|found| found.1 == many), "no case has one, or none has many");
        }
        let wrong: Vec<&String> = all.iter().filter(|(n, many, _)| (n != "1") != *many).map(|(.., p)| p).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
