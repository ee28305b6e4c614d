//! A feed-forward of experts, made of planned layers, against a plain loop in f64.

use std::sync::Arc;

use sinew_kernels::harness::case::{Generator, decode, encode};
use sinew_memory::{Arena, ArenaPlan};
use sinew_ops::layers::{
    Activation, Combine, CombineOptions, Compute, Dispatch, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions,
    PackedWeight, Route, RouteOptions, Routing, WeightPacker, WeightRows,
};
use sinew_ops::{Context, Result};
use sinew_tensor::{DType, Tensor};

/// A mixture, and its matrices as a checkpoint has them: for each expert gate, where there is one, up and down.
struct Mixture {
    experts: usize,
    top_k: usize,
    hidden: usize,
    inner: usize,
    gated: bool,
    renormalize: bool,
    /// Whether each expert's weights have their inputs in an order of their own.
    ordered: bool,
    dtype: DType,
    activation: Activation,
    inside: Vec<Vec<f64>>,
    down: Vec<Vec<f64>>,
    /// Of what is inside and of what comes out, each of as many values as the matrices have rows.
    biases: Option<[Vec<f64>; 2]>,
}

fn normal(random: &mut Generator, count: usize, dtype: DType, scale: f64) -> Vec<f64> {
    (0..count).map(|_| dtype.round(scale * random.normal())).collect()
}

fn pack(
    ctx: &Context,
    dtype: DType,
    matrices: &[Vec<f64>],
    [groups, k]: [usize; 2],
    [gated, ordered]: [bool; 2],
) -> Result<Arc<PackedWeight>> {
    let each = matrices.len() / groups;
    let rows: Vec<usize> = matrices[..each].iter().map(|matrix| matrix.len() / k).collect();
    let mut packer = WeightPacker::grouped(ctx, dtype, groups, &rows, k, gated)?;
    let column = move |group: usize, at: usize| if ordered { (at + group + 1) % k } else { at };
    if ordered {
        let order = (0..groups).flat_map(|group| (0..k).map(move |at| column(group, at) as u32));
        packer = packer.ordered(ctx, &order.collect::<Vec<_>>())?;
    }
    // Slices of one unit, so that their numbers count.
    for slice in packer.slices(1) {
        let pieces = slice.rows.iter().map(|(matrix, rows)| {
            let values = matrices[*matrix][rows.start * k..rows.end * k].chunks(k);
            let values = values.flat_map(|row| (0..k).map(|at| row[column(*matrix / each, at)]));
            WeightRows::from_bytes(encode(dtype, &values.collect::<Vec<_>>()), dtype, rows.len(), k)
        });
        packer.pack(ctx, &slice, &pieces.collect::<std::result::Result<Vec<_>, _>>()?)?;
    }
    Ok(Arc::new(packer.finish()?))
}

impl Mixture {
    fn new(seed: u64, [experts, top_k, hidden, inner]: [usize; 4], gated: bool, dtype: DType) -> Self {
        let mut random = Generator::new(seed);
        let scale = 1.0 / (hidden as f64).sqrt();
        let inside = experts * if gated { 2 } else { 1 };
        Self {
            experts,
            top_k,
            hidden,
            inner,
            gated,
            renormalize: seed.is_multiple_of(2),
            ordered: false,
            dtype,
            activation: Activation::Silu,
            inside: (0..inside).map(|_| normal(&mut random, inner * hidden, dtype, scale)).collect(),
            down: (0..experts).map(|_| normal(&mut random, hidden * inner, dtype, scale)).collect(),
            biases: None,
        }
    }

    /// The same with biases, and with experts as gpt-oss has them.
    fn biased(self) -> Self {
        let mut random = Generator::new(self.experts as u64);
        let count = [self.inside.len() * self.inner, self.experts * self.hidden];
        let biases = count.map(|count| normal(&mut random, count, DType::BF16, 2.0));
        Self { activation: Activation::SwigluOai, biases: Some(biases), ..self }
    }

    /// `h` after the experts, in f64.
    fn reference(&self, logits: &[f64], x: &[f64], h: &[f64]) -> Vec<f64> {
        let Self { experts, top_k, hidden, inner, .. } = *self;
        let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
        let mut out = h.to_vec();
        for (t, x) in x.chunks(hidden).enumerate() {
            let logits = &logits[t * experts..][..experts];
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            order.truncate(top_k);
            let exp = |e: usize| logits[e].exp();
            let sum: f64 =
                if self.renormalize { order.iter().map(|&e| exp(e)).sum() } else { (0..experts).map(exp).sum() };
            for e in order {
                let inside: Vec<f64> = (0..inner)
                    .map(|i| {
                        let product = |matrix: usize| {
                            let bias = self.biases.as_ref().map_or(0.0, |[inside, _]| inside[matrix * inner + i]);
                            dot(&self.inside[matrix][i * hidden..][..hidden], x) + bias
                        };
                        match (self.gated, self.activation) {
                            (true, Activation::SwigluOai) => {
                                let (gate, up) = (product(2 * e).min(7.0), product(2 * e + 1).clamp(-7.0, 7.0));
                                (up + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
                            }
                            (true, _) => {
                                let (gate, up) = (product(2 * e), product(2 * e + 1));
                                gate / (1.0 + (-gate).exp()) * up
                            }
                            (false, _) => product(e),
                        }
                    })
                    .map(|value| self.dtype.round(value))
                    .collect();
                for (i, row) in self.down[e].chunks(inner).enumerate() {
                    let bias = self.biases.as_ref().map_or(0.0, |[_, down]| down[e * hidden + i]);
                    out[t * hidden + i] += exp(e) / sum * (dot(row, &inside) + bias);
                }
            }
        }
        out
    }

    /// The layers, for up to so many tokens.
    fn layers(&self, ctx: &Context, max_tokens: usize) -> Result<Layers> {
        let Self { experts, top_k, hidden, inner, gated, renormalize, ordered, dtype, .. } = *self;
        let compute = if dtype == DType::BF16 { Compute::Bf16 } else { Compute::F32 };
        let gate = gated.then_some(self.activation);
        // Biases as a checkpoint may have them, and widened.
        let bias = |of: usize, dtype: DType| {
            let bias = |all: &[Vec<f64>; 2]| {
                let shape = [experts, all[of].len() / experts];
                Tensor::from_bytes(ctx.device(), &encode(dtype, &all[of]), dtype, &shape)
            };
            self.biases.as_ref().map(bias).transpose()
        };
        let [inside, outside] = [(dtype, gate, bias(0, DType::BF16)?), (DType::F32, None, bias(1, DType::F32)?)].map(
            |(to, gated, bias)| GroupedLinearOptions { bias, gated, ..GroupedLinearOptions::new(dtype, to, compute) },
        );
        let (rows, f32) = (max_tokens * top_k, DType::F32);
        let combine = CombineOptions { width: hidden, top_k, input: f32, output: f32, accumulate: true };
        let packed = pack(ctx, dtype, &self.inside, [experts, hidden], [gated, ordered])?;
        let down = pack(ctx, dtype, &self.down, [experts, inner], [false, ordered])?;
        Ok(Layers {
            route: Route::new(ctx, RouteOptions { experts, top_k, renormalize }, max_tokens)?,
            dispatch: Dispatch::new(ctx, dtype, hidden)?,
            inside: GroupedLinear::new(ctx, packed, inside, rows)?,
            down: GroupedLinear::new(ctx, down, outside, rows)?,
            combine: Combine::new(ctx, combine, max_tokens)?,
            routing: Routing::new(ctx, experts, top_k, max_tokens)?,
        })
    }

    /// `h` after the experts, by the layers.
    fn run(&self, ctx: &Context, layers: &mut Layers, logits: &[f64], x: &[f64], h: &[f64]) -> Result<Vec<f64>> {
        let (tokens, rows) = (x.len() / self.hidden, x.len() / self.hidden * self.top_k);
        let tensor = |dtype, values: &[f64], width| {
            Tensor::from_bytes(ctx.device(), &encode(dtype, values), dtype, &[tokens, width])
        };
        let zeros = |dtype, width| Tensor::zeros(ctx.device(), dtype, &[rows, width]);
        let logits = tensor(DType::F32, logits, self.experts)?;
        let (x, mut h) = (tensor(self.dtype, x, self.hidden)?, tensor(DType::F32, h, self.hidden)?);
        let (mut sorted, mut inside) = (zeros(self.dtype, self.hidden)?, zeros(self.dtype, self.inner)?);
        let mut y = zeros(DType::F32, self.hidden)?;
        layers.route.run(ctx, logits.view(), &mut layers.routing)?;
        layers.dispatch.run(ctx, x.view(), &layers.routing, sorted.view_mut()?)?;
        layers.inside.run(ctx, sorted.view(), layers.routing.offsets(), inside.view_mut()?)?;
        layers.down.run(ctx, inside.view(), layers.routing.offsets(), y.view_mut()?)?;
        layers.combine.run(ctx, y.view(), &layers.routing, h.view_mut()?)?;
        Ok(decode(DType::F32, h.buffer().as_slice::<u8>()?))
    }
}

struct Layers {
    route: Route,
    dispatch: Dispatch,
    inside: GroupedLinear,
    down: GroupedLinear,
    combine: Combine,
    routing: Routing,
}

/// Logits, inputs and the residual stream of so many tokens; of all experts but two out of three no token thinks much.
fn inputs(mixture: &Mixture, tokens: usize) -> [Vec<f64>; 3] {
    let mut random = Generator::new(tokens as u64);
    let mut logits = normal(&mut random, tokens * mixture.experts, DType::F32, 1.0);
    logits.iter_mut().enumerate().filter(|(i, _)| i % mixture.experts % 3 == 1).for_each(|(_, logit)| *logit -= 20.0);
    let x = normal(&mut random, tokens * mixture.hidden, mixture.dtype, 1.0);
    [logits, x, normal(&mut random, tokens * mixture.hidden, DType::F32, 1.0)]
}

#[test]
fn where_tokens_go_is_of_the_contexts_memory_and_zero_at_first() {
    let (experts, top_k, tokens) = (8, 2, 512);
    let ctx = Context::cpu().unwrap();
    // Memory that the pool hands out again is not zero by itself.
    let used = [tokens * top_k, tokens * top_k, experts + 1, tokens * top_k, tokens * top_k];
    drop(used.map(|n| ctx.tensor(&vec![u32::MAX; n], &[n]).unwrap()));
    let routing = Routing::new(&ctx, experts, top_k, tokens).unwrap();
    assert_eq!(routing.offsets().buffer().as_slice::<i32>().unwrap(), vec![0; experts + 1]);
    let mut plan = ArenaPlan::new(ctx.device().alignment());
    Routing::plan(&mut plan, experts, top_k, tokens).unwrap();
    let bytes = plan.bytes();
    let report = ctx.memory_report();
    let held = report.live.iter().find(|usage| usage.tag == "activations").map_or(0, |usage| usage.bytes);
    assert!(held >= bytes, "{held} of {bytes}: {report}");
    let small = Context::cpu().unwrap().with_memory_limit(bytes - 1);
    let error = Routing::new(&small, experts, top_k, tokens).unwrap_err().to_string();
    assert!(error.contains("out of memory"), "{error}");

    let arena = Arena::planned(ctx.device(), bytes).unwrap();
    let routing = Routing::new_in(&ctx, &arena, experts, top_k, tokens).unwrap();
    assert_eq!(routing.offsets().buffer().as_slice::<i32>().unwrap(), vec![0; experts + 1]);
    let error = Routing::new_in(&ctx, &arena, 1, 1, 1).unwrap_err().to_string();
    assert!(error.contains("an arena with 16.0 KiB in 5 live buffers"), "{error}");
}

#[test]
fn a_feed_forward_of_experts_is_that_of_each_tokens_experts_weighted() {
    let ctx = Context::cpu().unwrap();
    // Sizes that are no multiples of a panel, every expert for each token, and one expert.
    let shapes = [[8, 2, 64, 32], [5, 5, 33, 47], [9, 1, 70, 18], [1, 1, 20, 40], [16, 4, 96, 130]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for (turn, dtype) in (0..4).flat_map(|turn| DType::COMPUTE.map(|dtype| (turn, dtype))) {
            let (gated, biased) = (turn % 2 == 1, turn / 2 == 1);
            let mixture = Mixture::new(seed as u64, shape, gated, dtype);
            let mut mixture = if biased { mixture.biased() } else { mixture };
            for (ordered, tokens) in [false, true].into_iter().flat_map(|ordered| [1, 3, 40, 0].map(|n| (ordered, n))) {
                mixture.ordered = ordered;
                let mut layers = mixture.layers(&ctx, 40).unwrap();
                let [logits, x, h] = inputs(&mixture, tokens);
                let found = mixture.run(&ctx, &mut layers, &logits, &x, &h).unwrap();
                // What is rounded inside may fall to either side of a tie.
                let bound = if dtype == DType::F32 { 1e-5 } else { 0.02 };
                for (found, wanted) in found.iter().zip(mixture.reference(&logits, &x, &h)) {
                    assert!(
                        (found - wanted).abs() < bound,
                        "{found} is not {wanted}: {shape:?} {gated} {biased} {dtype} {ordered} {tokens}"
                    );
                }
                let offsets = layers.routing.offsets().buffer().as_slice::<i32>().unwrap();
                assert_eq!(offsets[mixture.experts] as usize, tokens * mixture.top_k);
                let spare = mixture.experts - mixture.top_k > mixture.experts / 3;
                assert!(!spare || (0..mixture.experts).all(|e| e % 3 != 1 || offsets[e] == offsets[e + 1]));
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_as_among_others() {
    let ctx = Context::cpu().unwrap();
    let mixture = Mixture::new(2, [16, 4, 96, 130], true, DType::BF16);
    let mut layers = mixture.layers(&ctx, 40).unwrap();
    let [logits, x, h] = inputs(&mixture, 40);
    let all = mixture.run(&ctx, &mut layers, &logits, &x, &h).unwrap();
    for token in [0, 7, 39] {
        let row = |values: &[f64], width: usize| values[token * width..][..width].to_vec();
        let (logits, x, h) = (row(&logits, mixture.experts), row(&x, mixture.hidden), row(&h, mixture.hidden));
        let alone = mixture.run(&ctx, &mut layers, &logits, &x, &h).unwrap();
        assert_eq!(alone, row(&all, mixture.hidden), "token {token}");
    }
}

#[test]
fn layers_of_a_mixture_refuse_what_does_not_fit() {
    let ctx = Context::cpu().unwrap();
    let mixture = Mixture::new(0, [8, 2, 64, 32], true, DType::F32);
    let mut layers = mixture.layers(&ctx, 4).unwrap();
    let [logits, x, h] = inputs(&mixture, 5);
    let error = mixture.run(&ctx, &mut layers, &logits, &x, &h).unwrap_err().to_string();
    assert!(error.contains("5 tokens"), "{error}");
    let weight = pack(&ctx, DType::F32, &mixture.down, [8, 32], [false; 2]).unwrap();
    let plain = LinearOptions::new(DType::F32, DType::F32, Compute::F32);
    let error = Linear::new(&ctx, weight.clone(), plain, 4).unwrap_err().to_string();
    assert!(error.contains("grouped linear"), "{error}");
    let gated = GroupedLinearOptions {
        gated: Some(Activation::Silu),
        ..GroupedLinearOptions::new(DType::F32, DType::F32, Compute::F32)
    };
    assert!(GroupedLinear::new(&ctx, weight.clone(), gated, 4).is_err());
    let biased = GroupedLinearOptions {
        bias: Some(ctx.tensor(&[0f32; 64], &[64]).unwrap()),
        ..GroupedLinearOptions::new(DType::F32, DType::F32, Compute::F32)
    };
    let error = GroupedLinear::new(&ctx, weight, biased, 4).unwrap_err().to_string();
    assert!(error.contains("the bias is") && error.contains("[8, 64]"), "{error}");
    let more = RouteOptions { experts: 2, top_k: 3, renormalize: false };
    let logits = ctx.tensor(&[0f32; 2], &[1, 2]).unwrap();
    let mut routing = Routing::new(&ctx, 2, 3, 1).unwrap();
    let route = Route::new(&ctx, more, 1).unwrap();
    let error = route.run(&ctx, logits.view(), &mut routing).unwrap_err().to_string();
    assert!(error.contains("no more than all"), "{error}");
}
