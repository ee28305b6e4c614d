//! Planned operators: what models are made of. Each is described and its kernels are chosen when a model is loaded;
//! running it only enqueues work.

mod attention;
mod elementwise;
mod embedding;
mod linear;
mod mixture;
mod norm;
mod packer;
mod rotary;
mod rounding;
mod sample;

pub use attention::{Attention, Inputs, KvAppend, OldInputs, Sequences};
pub use elementwise::{Add, Scale, Softcap};
pub use embedding::{Embedding, RowGather};
pub use linear::{Linear, LinearOptions, NormedLinear};
pub use mixture::{
    Combine, CombineOptions, Dispatch, GroupedLinear, GroupedLinearOptions, Route, RouteOptions, Routing,
};
pub use norm::{Norm, NormOptions};
pub use packer::{PackedWeight, SliceToPack, UnitSlice, WeightPacker};
pub use rotary::{Rotary, Turn};
pub use rounding::RowQuantizer;
pub use sample::Sample;
pub use sinew_kernels::activation::Activation;
pub use sinew_kernels::attention::{AttentionStatic, KvSource, OldKv};
pub use sinew_kernels::packed::{Codes, Encoding, GROUP_SIZES, MAX_GROUP, PackedShape, WeightRows};
pub use sinew_kernels::{Compute, F32Bits, Factors};

use sinew_tensor::Tensor;

/// Numbers of rows for which a plan chooses kernels: 1, 2, 4, … up to `max_rows`, and that itself.
pub(crate) fn row_counts(max_rows: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(move |&n| n < max_rows).chain([max_rows])
}

/// The size of a dimension that a view ought to have; 0 where it has not, which the operator's check then tells.
pub(crate) fn size(view: &sinew_tensor::View<'_>, dim: usize) -> usize {
    view.shape().get(dim).copied().unwrap_or(0)
}

/// Bytes of a tensor's elements.
pub(crate) fn bytes(tensor: &Tensor) -> usize {
    tensor.layout().elements() * tensor.dtype().size()
}

/// The name of a place in a model, and the rows chosen there for one row of input and for many.
pub type Place = (&'static str, Vec<&'static str>);

/// Adds those places that are not among `all` yet: most layers of a model have the same rows.
///
/// ```
/// use sinew_ops::layers::push_unlike;
///
/// let mut all = Vec::new();
/// let layers = [("attention", vec!["a"]), ("attention", vec!["a"]), ("attention", vec!["a", "b"])];
/// push_unlike(&mut all, layers.into_iter());
/// assert_eq!(all, [("attention", vec!["a"]), ("attention", vec!["a", "b"])]);
/// ```
pub fn push_unlike(all: &mut Vec<Place>, places: impl Iterator<Item = Place>) {
    for place in places {
        if !all.contains(&place) {
            all.push(place);
        }
    }
}

/// Names of the rows of a plan, without repetition.
pub(crate) fn names<O: sinew_kernels::Operator>(plan: &crate::Planned<O>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for row in plan.rows().iter().map(|(_, bound)| bound.row()) {
        if !names.contains(&row.name) {
            names.push(row.name);
        }
    }
    names
}

/// The arithmetics of a plan's rows, call by call.
pub(crate) fn arithmetics<O: sinew_kernels::Operator>(plan: &crate::Planned<O>) -> Vec<&'static str> {
    plan.rows().iter().map(|(_, bound)| bound.row().arithmetic.name).collect()
}
