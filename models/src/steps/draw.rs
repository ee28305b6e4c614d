//! Draws of tokens on the device that has the logits: only the tokens come to the host.

use sinew_ops::Context;
use sinew_ops::layers::Sample;
use sinew_tensor::{DType, Layout, Tensor};

use crate::Result;
use crate::activations::{ACTIVATIONS, HostInput};
use crate::sampling::Asked;

/// A planned draw from rows of logits.
#[derive(Debug)]
pub(crate) struct Draw {
    sample: Sample,
    params: HostInput,
    top_k: HostInput,
    tokens: Tensor,
    vocab: usize,
    /// What is given to a draw and comes of it, on the host.
    host_params: Vec<f32>,
    host_top_k: Vec<u32>,
    host_tokens: Vec<u32>,
}

impl Draw {
    /// Draws from up to `max_rows` rows of `vocab` logits.
    pub(crate) fn new(ctx: &Context, vocab: usize, max_rows: usize) -> Result<Self> {
        let params = max_rows.saturating_mul(Asked::PARAMS);
        let room = |dtype, most| ctx.uninitialised_tagged(ACTIVATIONS, dtype, &[most]);
        Ok(Self {
            sample: Sample::new(ctx, vocab, max_rows)?,
            params: HostInput::of(room(DType::F32, params)?),
            top_k: HostInput::of(room(DType::U32, max_rows)?),
            tokens: room(DType::U32, max_rows)?,
            vocab,
            host_params: Vec::with_capacity(params),
            host_top_k: Vec::with_capacity(max_rows),
            host_tokens: Vec::with_capacity(max_rows),
        })
    }

    /// The tokens drawn from the first rows of `logits`, one for each that is asked for.
    pub(crate) fn tokens(
        &mut self,
        ctx: &Context,
        logits: &Tensor,
        asked: impl ExactSizeIterator<Item = Asked>,
    ) -> Result<&[u32]> {
        let rows = asked.len();
        self.host_params.clear();
        self.host_top_k.clear();
        for asked in asked {
            self.host_params.extend(asked.params());
            self.host_top_k.push(asked.top_k);
        }
        self.params.upload(ctx, &self.host_params)?;
        self.top_k.upload(ctx, &self.host_top_k)?;
        let logits = logits.view().with_layout(Layout::contiguous(&[rows, self.vocab])?)?;
        let (params, top_k) = (self.params.read_rows(Asked::PARAMS)?, self.top_k.read()?);
        let one_each = Layout::contiguous(&[rows])?;
        self.sample.run(ctx, logits, params, top_k, self.tokens.view_mut()?.with_layout(one_each)?)?;
        self.host_tokens.resize(rows, 0);
        self.tokens.with_layout(one_each)?.download(&**ctx.stream(), &mut self.host_tokens)?;
        Ok(&self.host_tokens)
    }
}
