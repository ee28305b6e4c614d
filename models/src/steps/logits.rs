//! The logits of a step, where the device has them, and what comes of them to the host: tokens that were drawn there,
//! or the logits themselves.

use sinew_ops::Context;
use sinew_tensor::{DType, Tensor};

use super::draw::Draw;
use crate::Result;
use crate::activations::bytes;
use crate::sampling::Asked;

/// Rows of logits, as many as a step asks for.
#[derive(Debug)]
pub(crate) struct Logits {
    tensor: Tensor,
    vocab: usize,
    /// Where the host does not have the logits, tokens are drawn on the device.
    draw: Option<Draw>,
    /// Of each row, what a device is asked to draw, and what it drew.
    asked: Vec<Option<Asked>>,
    drawn: Vec<Option<u32>>,
    /// Host copy of logits that the host does not have: reused, so that a step allocates nothing.
    copy: Vec<f32>,
}

impl Logits {
    /// Room for `max_rows` rows of `vocab`, from the first `max_sequences` of which tokens may be drawn.
    pub fn new(ctx: &Context, vocab: usize, max_rows: usize, max_sequences: usize) -> Result<Self> {
        let tensor = ctx.uninitialised_tagged("logits", DType::F32, &[max_rows, vocab])?;
        let (draw, copied) = match tensor.buffer().host_ptr() {
            Some(_) => (None, 0),
            None => (Some(Draw::new(ctx, vocab, max_sequences)?), max_rows * vocab),
        };
        let (asked, drawn) = (Vec::with_capacity(max_sequences), Vec::with_capacity(max_sequences));
        Ok(Self { tensor, vocab, draw, asked, drawn, copy: Vec::with_capacity(copied) })
    }

    /// Bytes of `max_rows` rows on the device.
    pub fn bytes(vocab: usize, max_rows: usize) -> usize {
        bytes(DType::F32, &[max_rows, vocab])
    }

    /// The tensor `[max_rows, vocab]`, to be written.
    pub fn tensor_mut(&mut self) -> &mut Tensor {
        self.copy.clear();
        self.drawn.clear();
        &mut self.tensor
    }

    /// Has a device that draws itself draw from the first `rows` rows, and brings them to the host where that is to draw
    /// from one. `ask` writes what is asked of the device for each, nothing where it leaves that to the host, and says
    /// whether the host wants them in any case.
    pub fn draw(&mut self, ctx: &Context, rows: usize, ask: impl FnOnce(&mut [Option<Asked>]) -> bool) -> Result<()> {
        self.drawn.clear();
        self.asked.clear();
        self.asked.resize(rows, None);
        let wanted = ask(&mut self.asked);
        let Some(draw) = &mut self.draw else { return Ok(()) };
        if self.asked.iter().any(Option::is_some) {
            // Of the others it draws something, which nobody takes.
            let all = self.asked.iter().map(|asked| asked.unwrap_or(Asked::GREEDY));
            let each = self.asked.iter().zip(draw.tokens(ctx, &self.tensor, all)?);
            self.drawn.extend(each.map(|(asked, &token)| asked.map(|_| token)));
        }
        if wanted || self.asked.iter().any(Option::is_none) { self.fetch(ctx, rows) } else { Ok(()) }
    }

    /// The token that the device has [drawn](Self::draw) from a row.
    pub fn drawn(&self, row: usize) -> Option<u32> {
        self.drawn.get(row).copied().flatten()
    }

    /// Brings the first rows to the host, if they are not there.
    pub fn fetch(&mut self, ctx: &Context, rows: usize) -> Result<()> {
        if self.draw.is_some() {
            self.copy.resize(rows * self.vocab, 0.0);
            self.tensor.download(&**ctx.stream(), &mut self.copy).map_err(sinew_ops::Error::from)?;
        }
        Ok(())
    }

    /// The first rows, which were [fetched](Self::fetch).
    pub fn rows(&self, rows: usize) -> &[f32] {
        &self.fetched()[..rows * self.vocab]
    }

    /// A row, as far as it was [fetched](Self::fetch): nothing where it was not.
    pub fn row(&self, row: usize) -> &[f32] {
        self.fetched().get(row * self.vocab..(row + 1) * self.vocab).unwrap_or_default()
    }

    fn fetched(&self) -> &[f32] {
        self.tensor.as_slice::<f32>().unwrap_or(&self.copy)
    }
}
