//! Draws of tokens on the device that has the logits: only the token comes to the host.

use sinew_ops::Context;
use sinew_ops::layers::Sample;
use sinew_tensor::{DType, Layout, Tensor};

use crate::Result;
use crate::sampling::Asked;
use crate::scratch::Values;

/// A planned draw from one row of logits.
#[derive(Debug)]
pub(crate) struct Draw {
    sample: Sample,
    params: Values,
    top_k: Values,
    token: Tensor,
    vocab: usize,
}

impl Draw {
    pub(crate) fn new(ctx: &Context, vocab: usize) -> Result<Self> {
        Ok(Self {
            sample: Sample::new(ctx, vocab, 1)?,
            params: Values::new(ctx, DType::F32, Asked::PARAMS)?,
            top_k: Values::new(ctx, DType::U32, 1)?,
            token: ctx.uninitialised(DType::U32, &[1])?,
            vocab,
        })
    }

    /// The token drawn from the first row of `logits`.
    pub(crate) fn token(&mut self, ctx: &Context, logits: &Tensor, asked: &Asked) -> Result<u32> {
        self.params.upload(ctx, &asked.params())?;
        self.top_k.upload(ctx, &[asked.top_k])?;
        let row = logits.view().with_layout(Layout::contiguous(&[1, self.vocab])?)?;
        let (params, top_k) = (self.params.read_rows(Asked::PARAMS)?, self.top_k.read()?);
        self.sample.run(ctx, row, params, top_k, self.token.view_mut()?)?;
        let mut token = [0u32];
        self.token.download(&**ctx.stream(), &mut token)?;
        Ok(token[0])
    }
}
