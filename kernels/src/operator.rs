//! The one idea: an operator is a problem, a reference and a table of kernels.

use std::borrow::Cow;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use sinew_memory::{Buffer, CpuStream, Device, DeviceKind, Hardware, Stream, Team};
use sinew_tensor::{DType, View, ViewMut};

use crate::{Compute, Error, Factors, Result};

/// An operator: what can be asked, as a problem in two parts.
///
/// Its rows are not part of the trait: they stand in a [`crate::Table`] that anyone may add to. What is right is said
/// by [`crate::Reference`].
pub trait Operator: Sized + Send + Sync + 'static {
    /// The name, as in tables and on the command line.
    const NAME: &'static str;
    /// What is known when a model is loaded: widths, dtypes, options, epilogue. The choice of a kernel is remembered
    /// under it.
    type Static: Clone + Eq + Hash + Debug + Display + Send + Sync + 'static;
    /// What each call brings: rows, lengths.
    type Dynamic: Copy + Eq + Hash + Debug + Display + Send + Sync + 'static;

    /// The representative of calls that should be served by one row.
    fn bucket(call: Self::Dynamic) -> Self::Dynamic;

    /// The call on which a static problem's arithmetic is decided, where all its calls must share one: typical of how
    /// models call it.
    fn anchor(fixed: &Self::Static) -> Self::Dynamic;

    /// Checks operands against the problem: number, shapes, dtypes. All that a row relies on for memory safety is
    /// checked here, and contents that serve as indices by the row itself.
    ///
    /// # Errors
    /// [`Error::Operands`], naming the operand, what it is and what was expected.
    fn check(fixed: &Self::Static, call: &Self::Dynamic, operands: Operands<'_>) -> Result<()>;

    /// Checks what is known of a problem without operands: that the operator is defined for its dtypes.
    ///
    /// # Errors
    /// What is not defined.
    fn defined(_fixed: &Self::Static) -> Result<()> {
        Ok(())
    }

    /// The least work that solves the problem, for cost models and rooflines.
    fn work(fixed: &Self::Static, call: &Self::Dynamic) -> Work;

    /// What a problem multiplies: which of a device's rates of arithmetic is its limit.
    fn factors(fixed: &Self::Static) -> Factors {
        let _ = fixed;
        Compute::F32.into()
    }
}

/// Everything that decides the bits of a result, under one name: operand rounding, order of the sum, tiling of keys,
/// polynomial for exp. Rows with one arithmetic agree with `==`.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// The name; it alone is compared.
    pub name: &'static str,
    /// The bits depend on the shape or are another library's affair: such rows are chosen only with
    /// `deterministic = off`.
    pub foreign: bool,
    /// Subnormal inputs or results may count as zero.
    pub flushes_subnormals: bool,
}

impl Arithmetic {
    /// A named arithmetic of Sinew's own that keeps subnormals.
    pub const fn named(name: &'static str) -> Self {
        Self { name, foreign: false, flushes_subnormals: false }
    }
}

impl PartialEq for Arithmetic {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Arithmetic {}

/// What a row reads and writes, by position; each operator states its positions.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Read only. Optional ones may be absent.
    pub inputs: &'a [Option<View<'a>>],
    /// Written; those that the operator says so of are read as well.
    pub outputs: &'a [ViewMut<'a>],
}

impl<'a> Operands<'a> {
    /// The input at `position`.
    ///
    /// # Errors
    /// [`Error::Operands`] where it is absent.
    pub fn input(&self, operator: &'static str, position: usize, name: &str) -> Result<&View<'a>> {
        self.optional(position).ok_or_else(|| refuse(operator, format!("{name} (input {position}) is missing")))
    }

    /// The input at `position`, if there is one.
    pub fn optional(&self, position: usize) -> Option<&View<'a>> {
        self.inputs.get(position).and_then(Option::as_ref)
    }

    /// The output at `position`.
    ///
    /// # Errors
    /// [`Error::Operands`] where it is absent.
    pub fn output(&self, operator: &'static str, position: usize, name: &str) -> Result<&'a ViewMut<'a>> {
        self.outputs.get(position).ok_or_else(|| refuse(operator, format!("{name} (output {position}) is missing")))
    }
}

/// Inputs of the operator that has the most.
const MOST_INPUTS: usize = 11;

/// Inputs by the places that their operator names, so that a call says which is which; those that it leaves out are missing.
///
/// ```
/// use sinew_kernels::Placed;
/// use sinew_kernels::gemm::{A, B, RESIDUAL};
/// # use sinew_tensor::View;
///
/// # fn of<'a>(a: View<'a>, b: View<'a>, residual: View<'a>) {
/// let inputs = Placed::of([(A, Some(a)), (B, Some(b)), (RESIDUAL, Some(residual))]);
/// assert_eq!(inputs.len(), RESIDUAL + 1);
/// assert!(inputs[RESIDUAL].is_some() && inputs[RESIDUAL - 1].is_none());
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    inputs: [Option<View<'a>>; MOST_INPUTS],
    /// As many as there are places up to the last that is named.
    count: usize,
}

impl<'a> Placed<'a> {
    /// Each input with its place, which is one of an operator's.
    pub fn of<const N: usize>(inputs: [(usize, Option<View<'a>>); N]) -> Self {
        let mut placed = Self { inputs: [None; MOST_INPUTS], count: 0 };
        for (place, input) in inputs {
            placed.inputs[place] = input;
            placed.count = placed.count.max(place + 1);
        }
        placed
    }
}

impl<'a> Deref for Placed<'a> {
    type Target = [Option<View<'a>>];

    fn deref(&self) -> &Self::Target {
        &self.inputs[..self.count]
    }
}

/// Checks an operand's dtype and shape.
///
/// # Errors
/// [`Error::Operands`], with what the operand is and what was expected.
pub fn expect(operator: &'static str, name: &str, view: &View<'_>, dtype: DType, shape: &[usize]) -> Result<()> {
    if view.dtype() == dtype && view.shape() == shape {
        return Ok(());
    }
    let (found, layout) = (view.dtype(), view.layout());
    Err(refuse(operator, format!("{name} is {found} {layout:?}; expected {dtype} of shape {shape:?}")))
}

/// Checks that dtypes of a problem are f32, f16 or bf16, in which rows compute.
///
/// # Errors
/// [`Error::Operands`], with the problem and the first dtype that is none of them.
pub fn expect_compute(
    operator: &'static str,
    problem: &dyn Display,
    dtypes: impl IntoIterator<Item = DType>,
) -> Result<()> {
    match dtypes.into_iter().find(|dtype| !DType::COMPUTE.contains(dtype)) {
        Some(dtype) => Err(refuse(operator, format!("{problem}: {dtype} is none of f32, f16 and bf16; cast it first"))),
        None => Ok(()),
    }
}

/// Refuses dtypes that rows do not compute in lanes of f32.
pub(crate) fn takes_lanes(dtypes: impl IntoIterator<Item = DType>) -> Result<(), Refusal> {
    match dtypes.into_iter().find(|dtype| !DType::COMPUTE.contains(dtype)) {
        Some(dtype) => Err(format!("takes f32, f16 and bf16, not {dtype}").into()),
        None => Ok(()),
    }
}

/// An [`Error::Operands`].
pub fn refuse(operator: &'static str, reason: impl Into<String>) -> Error {
    Error::Operands { operator, reason: reason.into() }
}

/// A stream to run a row on, and memory for the workspace of the row.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    stream: &'a Arc<dyn Stream>,
    workspace: Option<&'a Buffer>,
}

impl<'a> Launch<'a> {
    /// A launch on `stream`. `workspace` is the row's alone while it runs.
    ///
    /// # Errors
    /// A workspace that something else shares.
    pub fn new(stream: &'a Arc<dyn Stream>, workspace: Option<&'a mut Buffer>) -> Result<Self> {
        let workspace = match workspace {
            Some(buffer) => {
                buffer.check_writable()?;
                Some(&*buffer)
            }
            None => None,
        };
        Ok(Self { stream, workspace })
    }

    /// The stream.
    pub fn stream(&self) -> &'a Arc<dyn Stream> {
        self.stream
    }

    /// Checks that a row of a kind of device may run: the device of the stream and of every operand.
    fn check(&self, operator: &'static str, row: &'static str, kind: DeviceKind, operands: Operands<'_>) -> Result<()> {
        let device = self.stream.device().id();
        if device.kind != kind {
            return Err(Error::WrongDevice { kernel: row, expected: kind.0, found: device.to_string() });
        }
        for view in operands.inputs.iter().flatten().chain(operands.outputs.iter().map(|o| o.view())) {
            let found = view.buffer().device().id();
            if found != device {
                return Err(refuse(operator, format!("an operand is on {found}, the kernel runs on {device}")));
            }
        }
        Ok(())
    }

    /// The CPU's team.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for another device's stream.
    pub fn team(&self) -> Result<&'a Team> {
        let stream: &dyn std::any::Any = &**self.stream;
        stream.downcast_ref::<CpuStream>().map(CpuStream::team).ok_or_else(|| Error::WrongDevice {
            kernel: "a CPU kernel",
            expected: "cpu",
            found: self.stream.device().id().to_string(),
        })
    }

    /// The workspace, with `bytes` bytes at least that are this row's alone while it runs, aligned as the device aligns.
    /// A row asks for it before it enqueues anything, so that it can be launched again with a larger one.
    ///
    /// # Errors
    /// [`Error::Workspace`] where it is missing or too small.
    pub fn workspace(&self, bytes: usize) -> Result<&'a Buffer> {
        let found = self.workspace.map_or(0, Buffer::len);
        self.workspace.filter(|_| found >= bytes).ok_or(Error::Workspace { needed: bytes, found })
    }

    /// The address on the host of a workspace of `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Workspace`] where it is missing or too small, and memory that the host does not reach.
    pub fn host_workspace(&self, bytes: usize) -> Result<*mut u8> {
        if bytes == 0 {
            return Ok(std::ptr::NonNull::<u64>::dangling().as_ptr().cast());
        }
        let workspace = self.workspace(bytes)?;
        let at = workspace.host_ptr().map(std::ptr::NonNull::as_ptr);
        at.ok_or_else(|| refuse("workspace", format!("{workspace:?} is not in the host's memory")))
    }
}

/// The least work that a problem needs.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Work {
    /// Floating-point operations, a multiply-add being two.
    pub flops: f64,
    /// Bytes that must be read and written at least once.
    pub bytes: f64,
}

/// So many of what is called `one` where there is one, as problems are described.
pub(crate) fn count_of(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// Why a row does not take a problem, in words for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    reason: Cow<'static, str>,
    /// Whether the hardware lacks something: then the row takes no problem there.
    of_hardware: bool,
}

impl Refusal {
    /// What the hardware lacks that every problem needs. A predicate asks for it first.
    pub fn of_hardware(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), of_hardware: true }
    }

    /// Whether the hardware lacks something, so that the row takes no problem there.
    pub fn is_of_hardware(&self) -> bool {
        self.of_hardware
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { reason: reason.into(), of_hardware: false }
    }
}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Self {
        Self { reason: reason.into(), of_hardware: false }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// A kernel: one row of an operator's table.
pub struct Row<O: Operator> {
    /// A name that says operator, device and way, as `gemm.cpu.avx512`.
    pub name: &'static str,
    /// The kind of device it runs on.
    pub device: DeviceKind,
    /// What decides its bits.
    pub arithmetic: Arithmetic,
    /// Whether it takes the problem on this hardware, and if not, why.
    pub admits: fn(&O::Static, &Hardware) -> Result<(), Refusal>,
    /// Predicted seconds.
    pub cost: fn(&O::Static, &O::Dynamic, &Hardware) -> f64,
    /// Bytes of workspace that it takes from the launch.
    pub workspace: fn(&O::Static, &O::Dynamic, &Hardware) -> usize,
    /// Enqueues the work. No allocation.
    ///
    /// # Safety
    /// The operands have passed [`Operator::check`], and the row admits the problem on the stream's device.
    /// [`Row::launch`] and [`Bound::launch`] see to both.
    pub run: unsafe fn(&Launch<'_>, &O::Static, &O::Dynamic, Operands<'_>) -> Result<()>,
}

impl<O: Operator> Row<O> {
    /// Binds the row to a problem on a device. The row must admit the problem, so that launches need not ask again.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sinew_kernels::cast::{CastStatic, rows};
    /// use sinew_memory::{Cpu, Device};
    /// use sinew_tensor::DType;
    ///
    /// let cpu: Arc<dyn Device> = Cpu::get();
    /// let fixed = Arc::new(CastStatic { input: DType::F32, output: DType::BF16 });
    /// let bound = rows().iter().find_map(|row| row.bind(fixed.clone(), &cpu).ok()).unwrap();
    /// assert!(bound.row().name.starts_with("cast.cpu") && *bound.fixed() == fixed);
    /// ```
    ///
    /// # Errors
    /// [`Error::NoKernel`] with the row's reason.
    pub fn bind(&self, fixed: Arc<O::Static>, device: &Arc<dyn Device>) -> Result<Bound<O>> {
        self.admit(&fixed, &**device)?;
        Ok(Bound { row: *self, fixed, device: device.clone() })
    }

    fn admit(&self, fixed: &O::Static, device: &dyn Device) -> Result<()> {
        (self.admits)(fixed, device.hardware()).map_err(|reason| refused(O::NAME, fixed, device, self.name, &reason))
    }

    /// Checks the problem and the operands, then runs the row.
    ///
    /// # Errors
    /// A problem that it does not admit, and those of [`Bound::launch`].
    pub fn launch(
        &self,
        launch: &Launch<'_>,
        fixed: &O::Static,
        call: &O::Dynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        launch.check(O::NAME, self.name, self.device, operands)?;
        self.admit(fixed, &**launch.stream().device())?;
        O::check(fixed, call, operands)?;
        // SAFETY: device, admission and operands were checked just above.
        unsafe { (self.run)(launch, fixed, call, operands) }
    }
}

/// The error of a row that does not admit a problem.
#[cold]
fn refused(
    operator: &'static str,
    problem: &dyn Display,
    device: &dyn Device,
    row: &'static str,
    reason: &Refusal,
) -> Error {
    let (problem, device) = (problem.to_string(), device.id().to_string());
    Error::NoKernel { operator, problem, device, reasons: format!("{row}: {reason}") }
}

/// A row bound to a problem that it admits on a device: see [`Row::bind`].
pub struct Bound<O: Operator> {
    row: Row<O>,
    fixed: Arc<O::Static>,
    device: Arc<dyn Device>,
}

impl<O: Operator> Bound<O> {
    /// The row.
    pub fn row(&self) -> &Row<O> {
        &self.row
    }

    /// The static part of the problem.
    pub fn fixed(&self) -> &Arc<O::Static> {
        &self.fixed
    }

    /// Checks the operands, then runs the row.
    ///
    /// # Errors
    /// Operands that do not fit the problem, a stream of a device that the row does not run on, [`Error::Workspace`]
    /// where the launch has too little, or what the kernel itself reports.
    pub fn launch(&self, launch: &Launch<'_>, call: &O::Dynamic, operands: Operands<'_>) -> Result<()> {
        let Self { row, fixed, device } = self;
        let here = launch.stream().device();
        if !std::ptr::addr_eq(Arc::as_ptr(device), Arc::as_ptr(here)) {
            return row.launch(launch, fixed, call, operands);
        }
        launch.check(O::NAME, row.name, row.device, operands)?;
        O::check(fixed, call, operands)?;
        // SAFETY: the row admits the problem on this device; devices and operands were checked just above.
        unsafe { (row.run)(launch, fixed, call, operands) }
    }
}

impl<O: Operator> Clone for Bound<O> {
    fn clone(&self) -> Self {
        Self { row: self.row, fixed: self.fixed.clone(), device: self.device.clone() }
    }
}

impl<O: Operator> Debug for Bound<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bound({:?}, {}, {})", self.row, self.fixed, self.device.id())
    }
}

impl<O: Operator> Clone for Row<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Operator> Copy for Row<O> {}

impl<O: Operator> Debug for Row<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Row({}, {})", self.name, self.arithmetic.name)
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::Cpu;
    use sinew_tensor::Tensor;

    use super::*;

    #[test]
    fn an_operand_that_does_not_fit_is_named_with_what_it_is_and_what_was_expected() {
        let x = Tensor::from_slice(&Cpu::get(), &[0f32; 6], &[2, 3]).unwrap();
        assert!(expect("norm", "x", &x.view(), DType::F32, &[2, 3]).is_ok());
        for (dtype, shape) in [(DType::BF16, [2, 3]), (DType::F32, [3, 2])] {
            let error = expect("norm", "x", &x.view(), dtype, &shape).unwrap_err().to_string();
            let (found, wanted) = (format!("norm: x is f32 {:?}", x.layout()), format!("{dtype} of shape {shape:?}"));
            assert!(error.starts_with(&found) && error.ends_with(&wanted), "{error}");
        }
    }
}
