//! The feed-forward sublayer: one for all tokens, or experts.

use super::dense::Dense;
use super::experts::Experts;
use super::layer::{Activations, Step};
use crate::Result;
use crate::config::{DecoderConfig, FeedForward as Kind, LayerConfig};
use crate::load::{Loader, Sizes};
use sinew_ops::layers::Place;

/// What follows attention in a layer.
#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Box<Dense>),
    Experts(Box<Experts>),
}

impl FeedForward {
    /// Loads that of a layer whose tensors are called `at(..)`.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        config: &DecoderConfig,
        layer: &LayerConfig,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        Ok(match layer.feed_forward {
            Kind::Dense { width } => Self::Dense(Box::new(Dense::load(loader, config, width, at, rows)?)),
            Kind::Experts(experts) => Self::Experts(Box::new(Experts::load(loader, config, experts, at, rows)?)),
        })
    }

    /// Adds what it makes of the stream to it.
    pub(super) fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        match self {
            Self::Dense(dense) => dense.run(step, x),
            Self::Experts(experts) => experts.run(step, x),
        }
    }

    /// Bytes of the weights that it loads.
    pub(super) fn bytes(
        sizes: &Sizes<'_>,
        config: &DecoderConfig,
        layer: &LayerConfig,
        at: &dyn Fn(&str) -> String,
    ) -> Result<usize> {
        match layer.feed_forward {
            Kind::Dense { width } => Dense::bytes(sizes, config, width, at),
            Kind::Experts(experts) => Experts::bytes(sizes, config, experts, at),
        }
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        match self {
            Self::Dense(dense) => dense.kernels(),
            Self::Experts(experts) => experts.kernels(),
        }
    }

    /// Bytes of its weights.
    pub(super) fn weight_bytes(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.weight_bytes(),
            Self::Experts(experts) => experts.weight_bytes(),
        }
    }

    /// Bytes of weights that a step of `rows` tokens reads at most.
    pub(super) fn step_bytes(&self, rows: usize) -> usize {
        match self {
            Self::Dense(dense) => dense.weight_bytes(),
            Self::Experts(experts) => experts.step_bytes(rows),
        }
    }
}
