//! What kernels in WGSL share: bindings, conversions, walks and reductions.
//!
//! A row is a function that fills in a [`Call`] and a body in WGSL that is written once for all dtypes:
//!
//! ```text
//! let mut call = Call::new(launch, "scale.wgpu", include_str!("wgpu.wgsl"))?;
//! call.option("WORKGROUP", 64);            // a constant of the text, and part of what the pipeline is known by
//! call.read("x", x)?;                      // an operand: a binding, and functions to read it
//! call.write("y", y)?;                     // the same, and functions to write it
//! // at_y(i), at_x(i), and p.count elements, of which an operand larger than a binding leaves fewer to a dispatch.
//! call.walk_in_parts("count", &Walk::any_order([y.layout(), x.layout()]), ["y", "x"])?;
//! call.dispatch_in_parts(|p| p("count").div_ceil(64))
//! ```
//!
//! ```text
//! @compute @workgroup_size(WORKGROUP)
//! fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//!     let i = linear(group) * WORKGROUP + lane;
//!     if (i < p.count) { store_y(at_y(i), 2.0 * load_x(at_x(i))); }
//! }
//! ```
//!
//! What the text has for an operand `x`, where `i` counts elements from the view's element of index 0:
//! - `HAS_X`, whether it is there ([`Call::optional`]); where it is not, loads give zeros and stores do nothing;
//! - of floats `load_x(i) -> f32`, `load4_x(i) -> vec4<f32>`, and where it is written `store_x(i, v)` and
//!   `store2_x(i, vec2(v, w))`, which is the faster where one thread has both of an even pair of 16-bit values;
//! - of integers `load_x(i) -> vec2<u32>`, low and high word with the sign carried on, `store_x(i, v)`, and
//!   `index_x(i, limit) -> u32` of u32, i32 and i64: an index below `limit`, or `limit` where it is none, which
//!   becomes an error of the stream; call [`Call::reports`] for it, or to `report(value)` otherwise
//!   ([`Call::reports_that`], in other words);
//! - of all `bits_x(i) -> vec2<u32>` and `put_x(i, v)`, as they are stored.
//!
//! Where there is an option `WORKGROUP`, the text has reductions that every thread of the workgroup must call:
//! `sum_all(v, lane) -> f32`, `count_all(n, lane) -> u32`, and `best_all(v, lane) -> vec3<u32>`, the one that
//! `is_before` all others; `lane: Lane` is an argument of `main`, and `lane.index` the thread's number. They are by
//! subgroups where the device has these, and give the same bits without.
//!
//! What not every kernel needs stands in files that a body begins with, by `concat!`: `math.wgsl`, functions that are
//! as exact on every driver; `order.wgsl`, floats as integers of their order; `integer.wgsl`, arithmetic of 64 bits.
//!
//! Values of 16 bits are read and written as such where the device can and all of their binding is. Otherwise values of
//! less than 32 bits are written with atomics: neighbours in one word may be other threads'. The conversions are the
//! same either way. A [`Part`] binds packed bytes as what they hold ([`Part::of`]), or vectors of four words for wide
//! loads, where all addresses are multiples of 16 bytes ([`Part::quads`], [`aligned`]).
//!
//! An operand may be larger than a binding. A call with dimensions that it goes along ([`Call::walk_in_parts`],
//! [`Call::dimension`]) is several dispatches then, each of which binds what it sees; what no dimension divides is
//! bound several times, which the functions above hide. What takes more bindings than there are is refused.
//!
//! Parameters are u32; [`Call::param_f32`] is read with `bitcast<f32>(p.name)`. Loops must end and
//! no integer be divided by 0: neither is checked while a kernel runs. f32 and f16 subnormals may count as zeros, so an
//! [`Arithmetic`] says so: [`arithmetic`].

mod call;
mod division;
mod interface;
mod part;
mod text;

pub(crate) use call::Call;
pub(crate) use part::{Part, aligned};

use sinew_memory::{Accelerator, Hardware};

use crate::operator::{Arithmetic, Refusal};

/// An arithmetic of kernels in WGSL, where drivers decide what becomes of subnormals.
pub(crate) const fn arithmetic(name: &'static str) -> Arithmetic {
    Arithmetic { flushes_subnormals: true, ..Arithmetic::named(name) }
}

/// Threads of a device's smallest subgroups; `None` without subgroups, or with such that are of no use.
pub(crate) fn least_subgroup(offers: &Accelerator) -> Option<usize> {
    offers.subgroup_size.map(|(least, _)| least).filter(|least| *least >= 4 && least.is_power_of_two())
}

/// Refuses a device without subgroups.
pub(crate) fn needs_subgroups(hardware: &Hardware) -> Result<(), Refusal> {
    match hardware.accelerator.as_ref().and_then(least_subgroup) {
        Some(_) => Ok(()),
        None => Err(Refusal::of_hardware("needs subgroups of at least 4 threads, which the adapter does not offer")),
    }
}
