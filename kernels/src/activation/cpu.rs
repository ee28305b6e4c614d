//! One body in lanes of f32, at three levels.

use sinew_memory::SimdLevel;
use sinew_tensor::DType;

use super::{Activate, Activation, ActivationDynamic, ActivationStatic, Gate};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, takes_lanes};
use crate::simd::{self, Kernel, LANES, Simd};
use crate::strided::{Address, Scratch, Walk};

/// Multiply and add round apart.
const MUL_ADD: Arithmetic = Arithmetic::named("activation.mul-add");
/// Multiply and add are fused.
const FMA: Arithmetic = Arithmetic::named("activation.fma");

/// The rows of [`Activate`].
pub(super) fn rows() -> Vec<Row<Activate>> {
    leveled::rows()
}

impl Leveled for Activate {
    const PORTABLE: AtLevel =
        AtLevel { name: "activation.cpu.portable", arithmetic: MUL_ADD, reads: 0.6, computes: 0.05 };
    const AVX2: AtLevel = AtLevel { name: "activation.cpu.avx2", arithmetic: FMA, reads: 0.8, computes: 0.25 };
    const AVX512: AtLevel = AtLevel { name: "activation.cpu.avx512", arithmetic: FMA, reads: 0.85, computes: 0.35 };

    fn takes(fixed: &ActivationStatic) -> Result<(), Refusal> {
        takes_lanes([fixed.x, fixed.out])
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &ActivationStatic,
        call: &ActivationDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.output(Activate::NAME, Activate::Y, "y")?;
        let x = operands.optional(Activate::X).unwrap_or(y);
        let (x, up) = match fixed.gate {
            // The second operand is not read.
            Gate::None => (*x, *x),
            Gate::Tensor => (*x, *operands.input(Activate::NAME, Activate::UP, "up")?),
            Gate::Halves => {
                let last = x.layout().rank() - 1;
                let half = |start| x.with_layout(x.layout().narrow(last, start, call.width)?);
                (half(0)?, half(call.width)?)
            }
        };
        let kernel = Body {
            activation: fixed.activation,
            gated: fixed.gate != Gate::None,
            dtypes: [fixed.out, fixed.x],
            walk: Walk::any_order([y.layout(), x.layout(), up.layout()]),
            y: Address(y.host_ptr()?),
            x: Address::read(x.host_ptr()?),
            up: Address::read(up.host_ptr()?),
        };
        // SAFETY: the operator's check has seen that operands have one shape and the named dtypes; views lie within
        // their buffers, and the indices of an output share no elements, so that tasks do not meet.
        unsafe { simd::launch(level, launch.team()?, kernel.walk.tasks(), &kernel) };
        Ok(())
    }
}

struct Body {
    activation: Activation,
    gated: bool,
    /// Of the output and of the inputs.
    dtypes: [DType; 2],
    /// Over output, gate and up.
    walk: Walk<3>,
    y: Address,
    x: Address,
    up: Address,
}

impl Kernel for Body {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        let [out, dtype] = self.dtypes;
        let steps = self.walk.steps;
        let (mut x_scratch, mut up_scratch, mut y_scratch) = (Scratch::new(), Scratch::new(), Scratch::new());
        for run in self.walk.task(task) {
            let len = run.len;
            // SAFETY: the walk stays inside the operands; scratch holds a run.
            unsafe {
                let x = Line::new(self.x.at(run.at[1], dtype.size()), dtype, steps[1]);
                let x = x.block::<S>(len, x_scratch.ptr());
                let up = if self.gated {
                    let up = Line::new(self.up.at(run.at[2], dtype.size()), dtype, steps[2]);
                    up.block::<S>(len, up_scratch.ptr())
                } else {
                    std::ptr::null()
                };
                let to = Line::new(self.y.at(run.at[0], out.size()), out, steps[0]);
                let y = to.place(y_scratch.ptr());
                // The function is chosen here, once per run, and not in the loop.
                match self.activation {
                    Activation::Silu => map::<S, 0>(x, up, y, len),
                    Activation::Gelu => map::<S, 1>(x, up, y, len),
                    Activation::GeluTanh => map::<S, 2>(x, up, y, len),
                    Activation::QuickGelu => map::<S, 3>(x, up, y, len),
                    Activation::Relu => map::<S, 4>(x, up, y, len),
                    Activation::Relu2 => map::<S, 5>(x, up, y, len),
                    Activation::SwigluOai => map::<S, 6>(x, up, y, len),
                }
                to.store_block::<S>(len, y);
            }
        }
    }
}

/// Applies [`Activation::ALL`]`[A]` to a run, and multiplies by its factor of `up` unless that is null.
///
/// # Safety
/// Those of [`Simd`]; each holds `len` values; `y` may be `x` or `up`.
#[inline(always)]
unsafe fn map<S: Simd, const A: usize>(x: *const f32, up: *const f32, y: *mut f32, len: usize) {
    let activation = Activation::ALL[A];
    let whole = len - len % LANES;
    // SAFETY: passed on.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            let mut v = activation.apply::<S>(S::load(x.add(i)));
            if !up.is_null() {
                v = S::mul(v, activation.factor::<S>(S::load(up.add(i))));
            }
            S::store(y.add(i), v);
        }
        if whole < len {
            let n = len - whole;
            let mut v = activation.apply::<S>(S::load_n(x.add(whole), n));
            if !up.is_null() {
                v = S::mul(v, activation.factor::<S>(S::load_n(up.add(whole), n)));
            }
            S::store_n(y.add(whole), v, n);
        }
    }
}
