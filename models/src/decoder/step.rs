//! What one step gives to the layers and what they work on: numbers of the host, and activations that all layers share.

use sinew_ops::Context;
use sinew_ops::layers::{Rotary, Routing, Sequences};
use sinew_tensor::{DType, View};

use super::batch::Batch;
use super::residual::Residual;
use crate::activations::{HostInput, Rows};
use crate::cache::{Form, LayerCache};
use crate::config::ExpertsConfig;
use crate::load::{Loaded, Maker, Stage};
use crate::load_options::Limits;
use crate::{DecoderConfig, Result};

/// What the host gives to a step.
#[derive(Debug)]
pub(super) struct StepInputs<S: Stage = Loaded> {
    pub(super) tokens: S::Of<HostInput>,
    positions: S::Of<HostInput>,
    /// The same as rows of a table, where there is one.
    pub(super) position_ids: Option<S::Of<HostInput>>,
    query_start: S::Of<HostInput>,
    kv_len: S::Of<HostInput>,
    /// For each group of layers, the slots and the block tables.
    places: Vec<[S::Of<HostInput>; 2]>,
    pub(super) wanted: S::Of<HostInput>,
    /// Block tables on the host: kept, so that a step allocates nothing.
    laid_out: S::Of<Vec<u32>>,
    ids: S::Of<Vec<u32>>,
}

/// What all layers of one step share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) ctx: &'a Context,
    pub(super) rows: usize,
    pub(super) ropes: &'a [Rotary],
    /// i32 `[rows]`.
    pub(super) positions: View<'a>,
    /// i64 `[rows]`: where keys and values go.
    pub(super) slots: View<'a>,
    pub(super) sequences: Sequences<'a>,
    /// Slots and block table where old tokens have a form of their own.
    pub(super) old: Option<[View<'a>; 2]>,
}

/// Activations of one step; every layer uses the same.
#[derive(Debug)]
pub(super) struct Activations<S: Stage = Loaded> {
    pub(super) residual: Residual<S>,
    pub(super) normed: S::Of<Rows>,
    pub(super) qkv: S::Of<Rows>,
    pub(super) attended: S::Of<Rows>,
    pub(super) gated: S::Of<Rows>,
    pub(super) experts: Option<ExpertActivations<S>>,
}

/// What the experts of a step work on; every layer uses the same.
#[derive(Debug)]
pub(super) struct ExpertActivations<S: Stage = Loaded> {
    /// Of the router, `[tokens, experts]`.
    pub(super) scores: S::Of<Rows>,
    pub(super) routing: S::Of<Routing>,
    /// Tokens sorted by expert, each as often as it has experts.
    pub(super) sorted: S::Of<Rows>,
    pub(super) gated: S::Of<Rows>,
    pub(super) outputs: S::Of<Rows>,
}

impl<S: Stage> StepInputs<S> {
    pub(super) fn make(maker: &mut impl Maker<S>, config: &DecoderConfig, limits: &Limits) -> Result<Self> {
        let &Limits { max_rows, max_sequences, context, block_size, .. } = limits;
        let blocks = max_sequences.saturating_mul(context.div_ceil(block_size));
        let ids = if config.learned_positions { max_rows } else { 0 };
        let groups = Form::count(config, &maker.precision());
        Ok(Self {
            tokens: maker.host_input(DType::U32, max_rows)?,
            positions: maker.host_input(DType::I32, max_rows)?,
            position_ids: config.learned_positions.then(|| maker.host_input(DType::U32, ids)).transpose()?,
            query_start: maker.host_input(DType::I32, max_sequences.saturating_add(1))?,
            kv_len: maker.host_input(DType::I32, max_sequences)?,
            places: (0..groups)
                .map(|_| Ok([maker.host_input(DType::I64, max_rows)?, maker.host_input(DType::U32, blocks)?]))
                .collect::<Result<_>>()?,
            wanted: maker.host_input(DType::U32, limits.max_wanted())?,
            laid_out: maker.planned(|_| Ok(Vec::with_capacity(blocks)))?,
            ids: maker.planned(|_| Ok(Vec::with_capacity(ids)))?,
        })
    }
}

impl StepInputs {
    pub(super) fn upload(&mut self, ctx: &Context, batch: &Batch) -> Result<()> {
        self.tokens.upload(ctx, batch.tokens())?;
        self.positions.upload(ctx, batch.positions())?;
        if let Some(ids) = &mut self.position_ids {
            self.ids.clear();
            // Positions are not negative.
            self.ids.extend(batch.positions().iter().map(|&position| position as u32));
            ids.upload(ctx, &self.ids)?;
        }
        self.query_start.upload(ctx, batch.query_start())?;
        self.kv_len.upload(ctx, batch.kv_len())?;
        for ([slots, tables], places) in self.places.iter_mut().zip(batch.places()) {
            slots.upload(ctx, places.slots())?;
            places.lay_out_block_tables(&mut self.laid_out);
            tables.upload(ctx, &self.laid_out)?;
        }
        Ok(())
    }

    /// What a layer is given.
    pub(super) fn step<'a>(
        &'a self,
        ctx: &'a Context,
        batch: &Batch,
        ropes: &'a [Rotary],
        of_layer: &LayerCache<'_>,
    ) -> Result<Step<'a>> {
        let places = |group: usize| -> Result<[View<'a>; 2]> {
            let [slots, tables] = &self.places[group];
            Ok([slots.read()?, tables.read_rows(batch.places()[group].blocks_per_table())?])
        };
        let [slots, block_table] = places(of_layer.group)?;
        let old = of_layer.old.as_ref().map(|&(group, _)| places(group)).transpose()?;
        let sequences = Sequences {
            query_start: self.query_start.read()?,
            kv_len: self.kv_len.read()?,
            block_table: Some(block_table),
            max_query: batch.max_query(),
            max_kv: batch.max_kv(),
        };
        Ok(Step { ctx, rows: batch.tokens().len(), ropes, positions: self.positions.read()?, slots, sequences, old })
    }
}

impl<S: Stage> Activations<S> {
    pub(super) fn make(maker: &mut impl Maker<S>, config: &DecoderConfig, max_rows: usize) -> Result<Self> {
        let (heads, kv_heads, d) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let activations = maker.precision().activations;
        Ok(Self {
            residual: Residual::make(maker, config, max_rows)?,
            normed: maker.rows(activations, max_rows, config.hidden_size)?,
            qkv: maker.rows(DType::F32, max_rows, (heads + 2 * kv_heads) * d)?,
            attended: maker.rows(activations, max_rows, heads * d)?,
            gated: maker.rows(activations, max_rows, config.dense_width())?,
            experts: config
                .experts()
                .map(|experts| ExpertActivations::make(maker, config, experts, max_rows))
                .transpose()?,
        })
    }
}

impl<S: Stage> ExpertActivations<S> {
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        experts: ExpertsConfig,
        max_rows: usize,
    ) -> Result<Self> {
        let ExpertsConfig { count, per_token, width, .. } = experts;
        let (hidden, activations) = (config.hidden_size, maker.precision().activations);
        let input = if config.names.mlp_norm.is_some() { activations } else { DType::F32 };
        let sorted = max_rows.saturating_mul(per_token);
        Ok(Self {
            scores: maker.rows(DType::F32, max_rows, count)?,
            routing: maker.routing(count, per_token, max_rows)?,
            sorted: maker.rows(input, sorted, hidden)?,
            gated: maker.rows(activations, sorted, width)?,
            outputs: maker.rows(DType::F32, sorted, hidden)?,
        })
    }
}
