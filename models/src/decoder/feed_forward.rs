//! The feed-forward sublayer: one for all tokens, or experts.

use super::dense::Dense;
use super::experts::Experts;
use super::step::{Activations, Step};
use crate::Result;
use crate::config::{DecoderConfig, FeedForward as Kind, LayerConfig};
use crate::load::{Loaded, Maker, Stage};
use sinew_ops::layers::Place;

/// What follows attention in a layer.
#[derive(Debug)]
pub(super) enum FeedForward<S: Stage = Loaded> {
    Dense(Box<Dense<S>>),
    Experts(Box<Experts<S>>),
}

impl<S: Stage> FeedForward<S> {
    /// Makes that of a layer whose tensors are called `at(..)`.
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        layer: &LayerConfig,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        Ok(match layer.feed_forward {
            Kind::Dense { width } => Self::Dense(Box::new(Dense::make(maker, config, width, at, rows)?)),
            Kind::Experts(experts) => Self::Experts(Box::new(Experts::make(maker, config, experts, at, rows)?)),
        })
    }
}

impl FeedForward {
    /// Adds what it makes of the stream to it.
    pub(super) fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        match self {
            Self::Dense(dense) => dense.run(step, x),
            Self::Experts(experts) => experts.run(step, x),
        }
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        match self {
            Self::Dense(dense) => dense.kernels(),
            Self::Experts(experts) => experts.kernels(),
        }
    }
}
