//! The accuracy harness: every row against its operator's f64 reference, and against the other rows of its arithmetic.

use std::fmt;
use std::sync::Arc;

use sinew_memory::{Buffer, Device, Stream};
use sinew_tensor::{DType, Element, Layout, Tensor, View, ViewMut};

use crate::Result;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row, Work};
use crate::registry::Table;

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
}

impl Expected {
    /// A value that must come out within `bound`.
    pub fn within(value: f64, bound: f64) -> Self {
        Self { value, naive: value, bound }
    }

    /// A value that must come out exactly.
    pub fn exact(value: f64) -> Self {
        Self::within(value, 0.0)
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
            Values::Normal => self.normal(),
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
        let all: Vec<f64> = (0..shape.iter().product()).map(|_| self.value(values, dtype)).collect();
        host_operand(dtype, shape, lay, all, false)
    }

    /// An output of NaNs, so that an element that a row forgets shows.
    pub fn output(&mut self, dtype: DType, shape: &[usize], lay: Lay) -> Result<HostOperand> {
        host_operand(dtype, shape, lay, vec![f64::NAN; shape.iter().product()], true)
    }
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
        values.iter().flat_map(|&x| bytemuck::bytes_of(&T::from_f64(x)).to_vec()).collect()
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

/// What the harness found for one row.
#[derive(Clone, Debug)]
pub struct RowReport {
    /// The operator.
    pub operator: &'static str,
    /// The row.
    pub row: &'static str,
    /// Its arithmetic.
    pub arithmetic: &'static str,
    /// Cases that it admitted and ran.
    pub cases: usize,
    /// Elements compared with the reference.
    pub elements: usize,
    /// Cases compared bit for bit with another row of its arithmetic.
    pub compared: usize,
    /// The largest share of the allowed error that any element used.
    pub worst: f64,
    /// What was wrong, one line each; the first few.
    pub failures: Vec<String>,
}

/// A row and a case, ready to be timed.
pub struct Run {
    /// The operator.
    pub operator: &'static str,
    /// The row.
    pub row: &'static str,
    /// The case, in words.
    pub case: String,
    /// Its work.
    pub work: Work,
    /// Runs it once and waits.
    pub run: Box<dyn FnMut() -> Result<()>>,
}

/// Elements of each output that are compared with the reference: all where there are so few, else a sample.
const SAMPLE: usize = 256;
/// Failures kept per row.
const KEPT_FAILURES: usize = 5;

/// A case's operands on a device.
struct Placed {
    inputs: Vec<Option<Tensor>>,
    outputs: Vec<Tensor>,
    workspace: Option<Buffer>,
}

fn place(stream: &Arc<dyn Stream>, tensor: &Tensor) -> Result<Tensor> {
    let device = stream.device();
    let bytes = tensor.buffer().as_slice::<u8>()?;
    let mut buffer = Buffer::allocate(device, bytes.len())?;
    stream.upload(bytes, &mut buffer, 0)?;
    Ok(Tensor::new(buffer, tensor.dtype(), *tensor.layout())?)
}

impl Placed {
    fn new<O: Operator>(row: &Row<O>, case: &Case<O>, host: &HostOperands, stream: &Arc<dyn Stream>) -> Result<Self> {
        let inputs = host
            .inputs
            .iter()
            .map(|o| o.as_ref().map(|o| place(stream, &o.tensor)).transpose())
            .collect::<Result<_>>()?;
        let outputs = host.outputs.iter().map(|o| place(stream, &o.tensor)).collect::<Result<_>>()?;
        let needed = (row.workspace)(&case.fixed, &case.call, stream.device().hardware());
        let workspace = (needed > 0).then(|| Buffer::allocate(stream.device(), needed)).transpose()?;
        Ok(Self { inputs, outputs, workspace })
    }

    fn run<O: Operator>(&mut self, row: &Row<O>, case: &Case<O>, stream: &Arc<dyn Stream>) -> Result<()> {
        let inputs: Vec<Option<View<'_>>> = self.inputs.iter().map(|t| t.as_ref().map(Tensor::view)).collect();
        let outputs: Vec<ViewMut<'_>> =
            self.outputs.iter_mut().map(Tensor::view_mut).collect::<Result<_, sinew_tensor::Error>>()?;
        let launch = Launch::new(stream, self.workspace.as_mut())?;
        row.launch(&launch, &case.fixed, &case.call, Operands { inputs: &inputs, outputs: &outputs })?;
        Ok(stream.synchronize()?)
    }

    /// All bytes of each output's buffer.
    fn output_bytes(&self, stream: &Arc<dyn Stream>) -> Result<Vec<Vec<u8>>> {
        self.outputs
            .iter()
            .map(|t| {
                let mut bytes = vec![0; t.buffer().len()];
                stream.download(t.buffer(), 0, &mut bytes)?;
                Ok(bytes)
            })
            .collect()
    }
}

/// Checks every row of a table that runs on `device`. See [`crate::AnyTable::verify`].
pub fn verify<O: Operator>(table: &Table<O>, device: &Arc<dyn Device>, depth: Depth) -> Vec<RowReport> {
    let hardware = device.hardware();
    let rows: Vec<&Row<O>> = table.rows().iter().filter(|row| row.device == hardware.kind).collect();
    let mut reports: Vec<RowReport> = rows
        .iter()
        .map(|row| RowReport {
            operator: O::NAME,
            row: row.name,
            arithmetic: row.arithmetic.name,
            cases: 0,
            elements: 0,
            compared: 0,
            worst: 0.0,
            failures: Vec::new(),
        })
        .collect();
    let stream = match device.clone().stream() {
        Ok(stream) => stream,
        Err(error) => {
            reports.iter_mut().for_each(|r| r.failures.push(error.to_string()));
            return reports;
        }
    };
    for case in O::cases(depth) {
        let host = match O::operands(&case) {
            Ok(host) => host,
            Err(error) => {
                reports.iter_mut().for_each(|r| r.failures.push(format!("{case}: {error}")));
                continue;
            }
        };
        // What each row of an arithmetic gave, to compare bits with.
        let mut given: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            if (row.admits)(&case.fixed, hardware).is_err() {
                continue;
            }
            let report = &mut reports[i];
            report.cases += 1;
            let outcome = (|| {
                let mut placed = Placed::new(row, &case, &host, &stream)?;
                placed.run(row, &case, &stream)?;
                placed.output_bytes(&stream)
            })();
            let bytes = match outcome {
                Ok(bytes) => bytes,
                Err(error) => {
                    fail(report, format!("{case}: {error}"));
                    continue;
                }
            };
            compare_with_reference(report, &case, &host, row.arithmetic, &bytes);
            if !row.arithmetic.foreign {
                if let Some((other, theirs)) = given.iter().find(|(j, _)| rows[*j].arithmetic == row.arithmetic) {
                    report.compared += 1;
                    if !same_bits(&host, theirs, &bytes) {
                        let other = rows[*other].name;
                        fail(report, format!("{case}: bits differ from {other}, which has the same arithmetic"));
                    }
                }
                given.push((i, bytes));
            }
        }
    }
    reports
}

fn fail(report: &mut RowReport, line: String) {
    if report.failures.len() < KEPT_FAILURES {
        report.failures.push(line);
    }
}

/// The same bytes, but that NaNs may differ in sign and payload.
fn same_bits(host: &HostOperands, a: &[Vec<u8>], b: &[Vec<u8>]) -> bool {
    host.outputs.iter().zip(a.iter().zip(b)).all(|(output, (a, b))| {
        a == b || {
            let (a, b) = (decode(output.tensor.dtype(), a), decode(output.tensor.dtype(), b));
            a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
        }
    })
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

fn compare_with_reference<O: Operator>(
    report: &mut RowReport,
    case: &Case<O>,
    host: &HostOperands,
    arithmetic: Arithmetic,
    bytes: &[Vec<u8>],
) {
    for (o, output) in host.outputs.iter().enumerate() {
        let dtype = output.tensor.dtype();
        let layout = output.tensor.layout();
        let got = decode(dtype, &bytes[o]);
        let elements = layout.elements();
        let mut pick = Generator::new(case.seed ^ 0x5eed);
        // The last element is always in the sample: that is where ragged tails go wrong.
        let chosen: Vec<usize> = if elements <= SAMPLE {
            (0..elements).collect()
        } else {
            (0..SAMPLE - 1).map(|_| pick.below(elements)).chain([elements - 1]).collect()
        };
        let mut index = vec![0; output.shape.len()];
        let mut found: Vec<(Vec<usize>, f64, Expected)> = Vec::with_capacity(chosen.len());
        for flat in chosen {
            let mut rest = flat;
            for d in (0..index.len()).rev() {
                index[d] = rest % output.shape[d];
                rest /= output.shape[d];
            }
            let Some(at) = layout.index(&index) else { continue };
            found.push((index.clone(), got[at], O::expect(case, host, arithmetic, o, &index)));
        }
        let naive =
            found.iter().map(|(_, _, e)| (e.naive - e.value).abs()).filter(|e| e.is_finite()).fold(0.0, f64::max);
        for (index, got, expected) in found {
            report.elements += 1;
            let value = expected.value;
            let allowed = expected.bound + 2.0 * naive;
            let error = (got - value).abs();
            let good = if value.is_nan() {
                got.is_nan()
            } else if value.is_infinite() || got.is_infinite() {
                // Rounding may carry a value at the edge of the output's range either way.
                got == value || dtype.round(value) == got || (dtype.round(value).is_infinite() && error <= allowed)
            } else {
                error <= allowed
            };
            if good {
                if error > 0.0 && error.is_finite() && allowed > 0.0 {
                    report.worst = report.worst.max(error / allowed);
                }
            } else {
                let line =
                    format!("{case}: output {o} at {index:?} is {got:e}, reference {value:e}, allowed {allowed:e}");
                fail(report, line);
            }
        }
        // Nothing outside the view may have been touched.
        let mut named = vec![false; bytes[o].len() / dtype.size()];
        layout.indices().for_each(|at| named[at] = true);
        let before = output.tensor.buffer().as_slice::<u8>().unwrap_or_default();
        let size = dtype.size();
        let spilled = named
            .iter()
            .enumerate()
            .find(|&(at, &named)| !named && before[at * size..(at + 1) * size] != bytes[o][at * size..(at + 1) * size]);
        if let Some((at, _)) = spilled {
            fail(report, format!("{case}: output {o} was written outside its view, at element {at} of the buffer"));
        }
    }
}

/// Every row of a table with every case that it takes, ready to be timed. See [`crate::AnyTable::runs`].
pub fn runs<O: Operator>(table: &Table<O>, device: &Arc<dyn Device>, depth: Depth) -> Result<Vec<Run>> {
    let hardware = device.hardware();
    let stream = device.clone().stream()?;
    let mut runs = Vec::new();
    for case in O::cases(depth).into_iter().filter(|c| c.values == Values::Normal) {
        for row in table.rows().iter().filter(|row| row.device == hardware.kind) {
            if (row.admits)(&case.fixed, hardware).is_err() {
                continue;
            }
            let (row, case, stream) = (*row, case.clone(), stream.clone());
            let host = O::operands(&case)?;
            let mut placed = Placed::new(&row, &case, &host, &stream)?;
            runs.push(Run {
                operator: O::NAME,
                row: row.name,
                case: case.to_string(),
                work: O::work(&case.fixed, &case.call),
                run: Box::new(move || placed.run(&row, &case, &stream)),
            });
        }
    }
    Ok(runs)
}
