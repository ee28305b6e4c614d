//! Mixtures of experts: where tokens go, the experts' products, and the way back.

use std::sync::Arc;

use sinew_kernels::activation::Activation;
use sinew_kernels::combine::{Combine as CombineOperator, CombineDynamic, CombineStatic};
use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::grouped_gemm::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use sinew_kernels::route::{Route as RouteOperator, RouteDynamic, RouteStatic};
use sinew_kernels::{Compute, Placed};
use sinew_memory::{Arena, ArenaPlan};
use sinew_tensor::{DType, Layout, Tensor, View, ViewMut};

use super::{PackedShape, PackedWeight, bytes, names, row_counts, size};
use crate::error::{operand, refuse};
use crate::{Context, Planned, Result};

/// Where the tokens of a step go: written by [`Route`], read by what runs the experts.
///
/// Made once for the most tokens that a step has, and shared by all layers of a model. The views are those of the last
/// step's tokens.
#[derive(Debug)]
pub struct Routing {
    experts: Tensor,
    weights: Tensor,
    offsets: Tensor,
    place: Tensor,
    source: Tensor,
    tokens: usize,
    top_k: usize,
}

impl Routing {
    /// Room for up to `max_tokens` tokens, each of which goes to `top_k` of the experts.
    ///
    /// # Errors
    /// Out of memory, or more than can be counted.
    pub fn new(ctx: &Context, experts: usize, top_k: usize, max_tokens: usize) -> Result<Self> {
        let pooled = |dtype, shape: &[usize]| ctx.uninitialised_tagged("activations", dtype, shape);
        Self::of(ctx, top_k, Self::tensors(experts, top_k, max_tokens, pooled)?)
    }

    /// [`Routing::new`] from an arena, whose plan [counts](Self::plan) it.
    ///
    /// # Errors
    /// An arena without that much room, or more than can be counted.
    pub fn new_in(ctx: &Context, arena: &Arena, experts: usize, top_k: usize, max_tokens: usize) -> Result<Self> {
        let cut = |dtype, shape: &[usize]| ctx.uninitialised_in(arena, dtype, shape);
        Self::of(ctx, top_k, Self::tensors(experts, top_k, max_tokens, cut)?)
    }

    /// Plans that room.
    ///
    /// # Errors
    /// More than can be counted.
    pub fn plan(
        plan: &mut ArenaPlan,
        experts: usize,
        top_k: usize,
        max_tokens: usize,
    ) -> Result<(), sinew_memory::Error> {
        let count = |dtype: DType, shape: &[usize]| {
            plan.allocate(shape.iter().fold(dtype.size(), |bytes, &n| bytes.saturating_mul(n)))
        };
        Self::tensors(experts, top_k, max_tokens, count).map(drop)
    }

    /// What `make` makes of the dtypes and shapes of its tensors, in the order of the fields.
    fn tensors<T, E>(
        experts: usize,
        top_k: usize,
        max_tokens: usize,
        mut make: impl FnMut(DType, &[usize]) -> Result<T, E>,
    ) -> Result<[T; 5], E> {
        let (each, slots) = ([max_tokens, top_k], [max_tokens.saturating_mul(top_k)]);
        Ok([
            make(DType::U32, &each)?,
            make(DType::F32, &each)?,
            make(DType::I32, &[experts.saturating_add(1)])?,
            make(DType::U32, &slots)?,
            make(DType::U32, &slots)?,
        ])
    }

    /// No tokens in these tensors, which become 0.
    fn of(ctx: &Context, top_k: usize, mut tensors: [Tensor; 5]) -> Result<Self> {
        for tensor in &mut tensors {
            let zeros = vec![0; tensor.buffer().len()];
            ctx.stream().upload(&zeros, tensor.buffer_mut()?, 0)?;
        }
        let [experts, weights, offsets, place, source] = tensors;
        Ok(Self { experts, weights, offsets, place, source, tokens: 0, top_k })
    }

    /// Tokens of the last step.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The experts of each token, u32 `[tokens, top_k]`: that of the largest weight first, and of equal ones the
    /// lowest.
    ///
    /// # Errors
    /// None, unless the routing was made for fewer tokens.
    pub fn experts(&self) -> Result<View<'_>> {
        Ok(self.experts.view().narrow(0, 0, self.tokens)?)
    }

    /// Their weights, f32 `[tokens, top_k]`.
    ///
    /// # Errors
    /// As for [`Routing::experts`].
    pub fn weights(&self) -> Result<View<'_>> {
        Ok(self.weights.view().narrow(0, 0, self.tokens)?)
    }

    /// Where the rows of each expert begin among those sorted by expert, and how many rows there are: i32
    /// `[experts + 1]`.
    pub fn offsets(&self) -> View<'_> {
        self.offsets.view()
    }

    /// Where the row of each token and expert, `t · top_k + j`, is among those sorted by expert: u32
    /// `[tokens · top_k]`.
    ///
    /// # Errors
    /// As for [`Routing::experts`].
    pub fn place(&self) -> Result<View<'_>> {
        Ok(self.place.view().narrow(0, 0, self.tokens * self.top_k)?)
    }

    /// The token of each row sorted by expert, u32 `[tokens · top_k]`.
    ///
    /// # Errors
    /// As for [`Routing::experts`].
    pub fn source(&self) -> Result<View<'_>> {
        Ok(self.source.view().narrow(0, 0, self.tokens * self.top_k)?)
    }
}

/// What a router does with its logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteOptions {
    /// Experts.
    pub experts: usize,
    /// Experts that a token goes to.
    pub top_k: usize,
    /// Whether the weights of a token are divided by their sum (`norm_topk_prob`; Mixtral's always are).
    pub renormalize: bool,
}

/// The choice of each token's experts, planned: the `top_k` largest of `softmax(logits)`.
///
/// A feed-forward of experts is made of this, [`Dispatch`], [`GroupedLinear`] and [`Combine`]:
///
/// ```
/// use std::sync::Arc;
///
/// use sinew_ops::layers::{
///     Activation, Combine, CombineOptions, Compute, Dispatch, GroupedLinear, GroupedLinearOptions, Route,
///     RouteOptions, Routing, WeightPacker, WeightRows,
/// };
/// use sinew_ops::{Context, Result};
/// use sinew_tensor::{DType, Tensor};
///
/// let ctx = Context::cpu()?;
/// let (experts, top_k, hidden, inner, max_tokens) = (4, 2, 8, 6, 3);
/// let f32 = DType::F32;
///
/// // Expert after expert, slice by slice. A checkpoint has gate and up of each expert as matrices of their own.
/// let packed = |rows: &[usize], k: usize, gated: bool| -> Result<_> {
///     let mut packer = WeightPacker::grouped(&ctx, f32, experts, rows, k, gated)?;
///     for slice in packer.slices(16 << 20) {
///         let mut pieces = Vec::new();
///         for (matrix, range) in &slice.rows {
///             let bytes = (*matrix as f32).to_le_bytes().repeat(range.len() * k);
///             pieces.push(WeightRows::from_bytes(bytes, f32, range.len(), k)?);
///         }
///         packer.pack(&ctx, &slice, &pieces)?;
///     }
///     Ok(Arc::new(packer.finish()?))
/// };
///
/// // When the model is loaded.
/// let rows = max_tokens * top_k;
/// let plain = GroupedLinearOptions::new(f32, f32, Compute::F32);
/// let gated = GroupedLinearOptions { gated: Some(Activation::Silu), ..plain.clone() };
/// let route = Route::new(&ctx, RouteOptions { experts, top_k, renormalize: true }, max_tokens)?;
/// let dispatch = Dispatch::new(&ctx, f32, hidden)?;
/// let gate_up = GroupedLinear::new(&ctx, packed(&[inner, inner], hidden, true)?, gated, rows)?;
/// let down = GroupedLinear::new(&ctx, packed(&[hidden], inner, false)?, plain, rows)?;
/// let options = CombineOptions { width: hidden, top_k, input: f32, output: f32, accumulate: true };
/// let combine = Combine::new(&ctx, options, max_tokens)?;
/// let mut routing = Routing::new(&ctx, experts, top_k, max_tokens)?;
///
/// // At each step: `x` is the normed input, `logits` are the router's, and `h` is the residual stream.
/// let x = ctx.tensor(&[0.1f32; 3 * 8], &[3, 8])?;
/// let logits = ctx.tensor(&[0.0f32, 1., 2., 3., 3., 2., 1., 0., 0., 0., 0., 0.], &[3, 4])?;
/// let zeros = |shape: &[usize]| Tensor::zeros(ctx.device(), f32, shape);
/// let (mut sorted, mut inside) = (zeros(&[rows, hidden])?, zeros(&[rows, inner])?);
/// let (mut y, mut h) = (zeros(&[rows, hidden])?, zeros(&[3, hidden])?);
/// route.run(&ctx, logits.view(), &mut routing)?;
/// dispatch.run(&ctx, x.view(), &routing, sorted.view_mut()?)?;
/// gate_up.run(&ctx, sorted.view(), routing.offsets(), inside.view_mut()?)?;
/// down.run(&ctx, inside.view(), routing.offsets(), y.view_mut()?)?;
/// combine.run(&ctx, y.view(), &routing, h.view_mut()?)?;
///
/// assert_eq!(routing.experts()?.shape(), [3, 2]);
/// // Token 2 has equal logits: the lowest two experts are its own. Expert 0's matrices are all zero.
/// let silu = |v: f32| v / (1.0 + (-v).exp());
/// let expert_1 = 6.0 * silu(0.8 * 2.0) * 0.8 * 3.0;
/// assert!((h.to_vec::<f32>()?[2 * 8] - 0.5 * expert_1).abs() < 1e-4);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
#[derive(Debug)]
pub struct Route {
    options: RouteOptions,
    plan: Planned<RouteOperator>,
}

impl Route {
    /// Plans the choice for up to `max_tokens` tokens.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, options: RouteOptions, max_tokens: usize) -> Result<Self> {
        let RouteOptions { experts, top_k, renormalize } = options;
        let calls = [RouteDynamic { tokens: 1 }, RouteDynamic { tokens: max_tokens }];
        Ok(Self { options, plan: ctx.plan(RouteStatic { experts, top_k, renormalize }, &calls)? })
    }

    /// Enqueues the choice by `logits`, f32 `[tokens, experts]`.
    ///
    /// # Errors
    /// Logits of another shape or dtype than planned, or a routing that was made for fewer tokens, or for others.
    pub fn run(&self, ctx: &Context, logits: View<'_>, routing: &mut Routing) -> Result<()> {
        let (tokens, room) = (size(&logits, 0), routing.experts.shape()[0]);
        if routing.top_k != self.options.top_k || tokens > room {
            let [own, made] = [self.options.top_k, routing.top_k];
            let reason = format!("{tokens} tokens of {own} experts each; the routing has room for {room} of {made}");
            return Err(refuse("route", reason));
        }
        routing.tokens = tokens;
        let slots = tokens * routing.top_k;
        let outputs = [
            routing.experts.view_mut()?.narrow(0, 0, tokens)?,
            routing.weights.view_mut()?.narrow(0, 0, tokens)?,
            routing.offsets.view_mut()?,
            routing.place.view_mut()?.narrow(0, 0, slots)?,
            routing.source.view_mut()?.narrow(0, 0, slots)?,
        ];
        self.plan.run(ctx, &RouteDynamic { tokens }, &[Some(logits)], &outputs)
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// Tokens' rows sorted by expert, planned.
#[derive(Debug)]
pub struct Dispatch {
    width: usize,
    plan: Planned<Gather>,
}

impl Dispatch {
    /// Plans it for rows of `width` values.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, dtype: DType, width: usize) -> Result<Self> {
        let plan = ctx.plan(GatherStatic { dtype, dim: 0 }, &[GatherDynamic { elements: width, size: 1 }])?;
        Ok(Self { width, plan })
    }

    /// Enqueues the rows of `x [tokens, width]` to `sorted [tokens · top_k, width]`, for each expert those of its
    /// tokens.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run(&self, ctx: &Context, x: View<'_>, routing: &Routing, sorted: ViewMut<'_>) -> Result<()> {
        if size(&x, 1) != self.width || size(&x, 0) != routing.tokens {
            let (tokens, width) = (routing.tokens, self.width);
            return Err(refuse("dispatch", format!("x is {:?}; expected [{tokens}, {width}]", x.layout())));
        }
        let source = routing.source()?;
        let rows = size(&source, 0);
        // One index for each row.
        let layout = Layout::strided(&[rows, self.width], &[source.strides()[0], 0], source.layout().offset())?;
        let source = source.with_layout(layout)?;
        let call = GatherDynamic { elements: rows * self.width, size: routing.tokens };
        self.plan.run(ctx, &call, &[Some(x), Some(source)], &[sorted])
    }
}

/// What a grouped linear layer does around its products.
#[derive(Debug, Clone)]
pub struct GroupedLinearOptions {
    /// Dtype of the input.
    pub input: DType,
    /// Dtype of the output.
    pub output: DType,
    /// Dtype of the products' operands.
    pub compute: Compute,
    /// `[groups, n]` in f32, f16 or bf16; of gated weights for each group that of gate, then that of up.
    pub bias: Option<Tensor>,
    /// For gated weights: `act(gate) · up`, or what the [`Activation`] makes of them, which halves the output.
    pub gated: Option<Activation>,
}

impl GroupedLinearOptions {
    /// Plain products.
    pub fn new(input: DType, output: DType, compute: Compute) -> Self {
        Self { input, output, compute, bias: None, gated: None }
    }
}

/// `y[i] = x[i] · W[g]ᵀ + b[g]` for the rows `i` of group `g`, or that gated, planned for up to a number of rows.
///
/// ```
/// use std::sync::Arc;
///
/// use sinew_ops::Context;
/// use sinew_ops::layers::{Compute, GroupedLinear, GroupedLinearOptions, WeightPacker, WeightRows};
/// use sinew_tensor::{DType, Tensor};
///
/// let ctx = Context::cpu()?;
/// // Two experts with weights [1, 2].
/// let mut packer = WeightPacker::grouped(&ctx, DType::F32, 2, &[1], 2, false)?;
/// for slice in packer.slices(1 << 20) {
///     let weights = [[1.0f32, 1.0], [1.0, -1.0]].map(|weight| weight.map(f32::to_le_bytes).concat());
///     let mut pieces = Vec::new();
///     for (matrix, rows) in &slice.rows {
///         pieces.push(WeightRows::from_bytes(&weights[*matrix], DType::F32, rows.len(), 2)?);
///     }
///     packer.pack(&ctx, &slice, &pieces)?;
/// }
/// let plain = GroupedLinearOptions::new(DType::F32, DType::F32, Compute::F32);
/// let options = GroupedLinearOptions { bias: Some(ctx.tensor(&[0.5f32, -0.5], &[2, 1])?), ..plain };
/// let linear = GroupedLinear::new(&ctx, Arc::new(packer.finish()?), options, 3)?;
///
/// // The first row is the first expert's, two are the second's.
/// let x = ctx.tensor(&[1.0f32, 2.0, 1.0, 2.0, 4.0, 1.0], &[3, 2])?;
/// let offsets = ctx.tensor(&[0i32, 1, 3], &[3])?;
/// let mut y = Tensor::zeros(ctx.device(), DType::F32, &[3, 1])?;
/// linear.run(&ctx, x.view(), offsets.view(), y.view_mut()?)?;
/// assert_eq!(y.to_vec::<f32>()?, [3.5, -1.5, 2.5]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
#[derive(Debug)]
pub struct GroupedLinear {
    weight: Arc<PackedWeight>,
    bias: Option<Tensor>,
    plan: Planned<GroupedGemm>,
}

impl GroupedLinear {
    /// Plans the layer for inputs of up to `max_rows` rows of all groups together.
    ///
    /// # Errors
    /// Options that do not fit the weights, or no kernel for them on the context's device.
    pub fn new(
        ctx: &Context,
        weight: Arc<PackedWeight>,
        options: GroupedLinearOptions,
        max_rows: usize,
    ) -> Result<Self> {
        if weight.shape().gated != options.gated.is_some() {
            return Err(refuse("grouped linear", "a gated weight and a gated activation go together"));
        }
        let &PackedShape { groups, n, .. } = weight.shape();
        if let Some(bias) = options.bias.as_ref().filter(|bias| bias.shape() != [groups, n]) {
            let reason = format!("{}; expected [{groups}, {n}]", operand("the bias", bias));
            return Err(refuse("grouped linear", reason));
        }
        let fixed = GroupedGemmStatic { gathered: weight.order().is_some(), ..Self::problem(weight.shape(), &options) };
        let plan = ctx.plan(fixed, &Self::calls(max_rows))?;
        Ok(Self { weight, bias: options.bias, plan })
    }

    /// Bytes of workspace that a layer with such weights would make room for: known before there are any.
    ///
    /// # Errors
    /// No kernel on the context's device.
    pub fn workspace(
        ctx: &Context,
        weight: &PackedShape,
        options: &GroupedLinearOptions,
        max_rows: usize,
    ) -> Result<usize> {
        ctx.workspace_bytes::<GroupedGemm>(&Self::problem(weight, options), &Self::calls(max_rows))
    }

    /// The products of a layer with weights that have their inputs in no other order.
    fn problem(
        &PackedShape { format, groups, n, k, .. }: &PackedShape,
        options: &GroupedLinearOptions,
    ) -> GroupedGemmStatic {
        let &GroupedLinearOptions { input, output, compute, ref bias, gated } = options;
        let bias = bias.as_ref().map(Tensor::dtype);
        GroupedGemmStatic { groups, n, k, a: input, format, gathered: false, bias, out: output, compute, gated }
    }

    /// The calls that a plan chooses kernels for.
    fn calls(max_rows: usize) -> Vec<GroupedGemmDynamic> {
        row_counts(max_rows).map(|rows| GroupedGemmDynamic { rows }).collect()
    }

    /// Enqueues `x [rows, k]`, sorted by group, to `out [rows, n]` (`n / 2` where gated). `offsets`, i32
    /// `[groups + 1]`, say where each group's rows begin, and how many rows there are.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or offsets that do not share out the rows.
    pub fn run(&self, ctx: &Context, x: View<'_>, offsets: View<'_>, out: ViewMut<'_>) -> Result<()> {
        let call = GroupedGemmDynamic { rows: size(&x, 0) };
        let shape = self.weight.shape();
        let order = match self.weight.order() {
            // That of one expert is that of a weight alone, of one dimension.
            Some(order) => Some(order.view().with_layout(Layout::contiguous(&[shape.groups, shape.k])?)?),
            None => None,
        };
        let bias = self.bias.as_ref().map(Tensor::view);
        let inputs = Placed::of([
            (GroupedGemm::A, Some(x)),
            (GroupedGemm::B, Some(self.weight.tensor().view())),
            (GroupedGemm::OFFSETS, Some(offsets)),
            (GroupedGemm::ORDER, order),
            (GroupedGemm::BIAS, bias),
        ]);
        self.plan.run(ctx, &call, &inputs, &[out])
    }

    /// Bytes of the packed weights and the bias.
    pub fn weight_bytes(&self) -> usize {
        self.weight.bytes() + self.bias.as_ref().map_or(0, bytes)
    }

    /// Kernels chosen, for few rows first.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// How experts' results become tokens' again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CombineOptions {
    /// Values of a row.
    pub width: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Dtype of the experts' results.
    pub input: DType,
    /// Dtype of the output.
    pub output: DType,
    /// Add to what the output holds: the residual stream.
    pub accumulate: bool,
}

/// `out[t] = Σ_j weight[t, j] · y[place[t, j]]`, or that added to `out[t]`, planned. The sum is in f32, in the order of
/// `j`.
#[derive(Debug)]
pub struct Combine {
    plan: Planned<CombineOperator>,
}

impl Combine {
    /// Plans it for up to `max_tokens` tokens.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, options: CombineOptions, max_tokens: usize) -> Result<Self> {
        let CombineOptions { width, top_k, input, output, accumulate } = options;
        let fixed = CombineStatic { width, top_k, y: input, out: output, accumulate };
        let calls = [CombineDynamic { tokens: 1 }, CombineDynamic { tokens: max_tokens }];
        Ok(Self { plan: ctx.plan(fixed, &calls)? })
    }

    /// Enqueues the sums of `y [tokens · top_k, width]`, sorted by expert, to `out [tokens, width]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run(&self, ctx: &Context, y: View<'_>, routing: &Routing, out: ViewMut<'_>) -> Result<()> {
        let call = CombineDynamic { tokens: routing.tokens };
        self.plan.run(ctx, &call, &[Some(y), Some(routing.weights()?), Some(routing.place()?)], &[out])
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}
