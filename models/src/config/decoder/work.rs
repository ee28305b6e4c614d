//! How many weights a decoder has, and how many operations a token takes.

use super::{DecoderConfig, ExpertsConfig, FeedForward, LayerConfig};
use crate::config::fields::product;

impl FeedForward {
    /// How often a token's values go through inner layers.
    fn passes(&self) -> usize {
        match *self {
            Self::Dense { .. } => 1,
            Self::Experts(experts) => experts.per_token,
        }
    }

    /// Weights, where `products` matrices go in and out of each inner layer.
    fn weights(&self, hidden_size: usize, products: usize) -> Option<usize> {
        match *self {
            Self::Dense { width } => product(&[products, hidden_size, width]),
            Self::Experts(ExpertsConfig { count, width, .. }) => {
                product(&[products, hidden_size, width, count])?.checked_add(hidden_size.checked_mul(count)?)
            }
        }
    }
}

impl DecoderConfig {
    /// Floating-point operations of one token in all layers, a multiply-add being two, when it attends to `keys` keys
    /// on average. The head is [`head_flops`](Self::head_flops).
    pub fn flops_per_token(&self, keys: f64) -> f64 {
        let hidden = self.hidden_size as f64;
        let (q, kv) = (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim);
        let layer = |layer: &LayerConfig| {
            let feed_forward = layer.feed_forward;
            let inner = (self.mlp_products() * feed_forward.width() * feed_forward.passes()) as f64;
            let router = match feed_forward {
                FeedForward::Experts(experts) => experts.count as f64,
                FeedForward::Dense { .. } => 0.0,
            };
            let seen = layer.window.map_or(keys, |window| keys.min(window as f64));
            hidden * ((2 * q + 2 * kv) as f64 + inner + router) + 2.0 * q as f64 * seen
        };
        2.0 * self.layers.iter().map(layer).sum::<f64>()
    }

    /// Floating-point operations of one row of logits.
    pub fn head_flops(&self) -> f64 {
        2.0 * self.hidden_size as f64 * self.vocab_size as f64
    }

    /// Elements of its matrices and tables; none where they are more than can be counted.
    pub(super) fn weights(&self) -> Option<usize> {
        let hidden = self.hidden_size;
        let attention = product(&[self.num_attention_heads, self.head_dim])
            .zip(product(&[self.num_key_value_heads, self.head_dim]))
            .and_then(|(q, kv)| q.checked_add(kv)?.checked_mul(2)?.checked_mul(hidden));
        let layers = self.layers.iter().try_fold(0usize, |all, layer| {
            all.checked_add(attention?)?.checked_add(layer.feed_forward.weights(hidden, self.mlp_products())?)
        });
        let rows = self.vocab_size.checked_mul(2).and_then(|rows| rows.checked_add(self.max_position_embeddings));
        let embeddings = rows.and_then(|rows| rows.checked_mul(hidden));
        layers.zip(embeddings).and_then(|(a, b)| a.checked_add(b))
    }

    /// Products of a feed-forward layer: gate, up and down, or the last two.
    fn mlp_products(&self) -> usize {
        2 + usize::from(self.names.is_gated())
    }
}
