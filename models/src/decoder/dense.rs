//! A feed-forward sublayer that is one for all tokens.

use sinew_ops::layers::{LinearOptions, NormedLinear, Place};

use super::layer::{Activations, Step, norm_bytes};
use super::residual::{Output, input_norm};
use crate::config::Up;
use crate::load::{Loader, Part, Sizes};
use crate::scratch::sum;
use crate::{DecoderConfig, Result};

/// `down · act(up · x)`, or `down · (act(gate · x) ⊙ up · x)`.
#[derive(Debug)]
pub(super) struct Dense {
    /// Of the stream, or of the stream normed.
    up: NormedLinear,
    down: Output,
    /// What `up` is called where kernels are listed.
    up_name: &'static str,
}

impl Dense {
    /// Loads that of a layer whose tensors are called `at(..)`.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        config: &DecoderConfig,
        width: usize,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        let (names, hidden) = (config.names, config.hidden_size);
        let precision = loader.precision();
        let (up, down) = parts(config, width, at);
        let (norm, dtype) = input_norm(loader, config, names.mlp_norm.map(at))?;
        let product = LinearOptions::new(dtype, precision.activations, precision.compute);
        let act = Some(config.hidden_act);
        let product = match names.is_gated() {
            true => LinearOptions { gated: act, ..product },
            false => LinearOptions { activation: act, ..product },
        };
        Ok(Self {
            up_name: if names.is_gated() { "gate and up" } else { "up" },
            up: loader.normed_linear(norm, &up, hidden, config.mlp_bias, product, rows)?,
            down: Output::load(loader, config, down, (width, config.mlp_bias), names.mlp_output_norm.map(at), rows)?,
        })
    }

    /// Adds what it makes of the stream to it.
    pub(super) fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        self.up.run(ctx, x.stream.hidden.read(n)?, Some(x.normed.write(n)?), x.gated.write(n)?)?;
        self.down.run(ctx, n, x.gated.read(n)?, &mut x.stream)
    }

    /// Bytes of the weights that it loads.
    pub(super) fn bytes(
        sizes: &Sizes<'_>,
        config: &DecoderConfig,
        width: usize,
        at: &dyn Fn(&str) -> String,
    ) -> Result<usize> {
        let names = config.names;
        let (up, down) = parts(config, width, at);
        Ok(sum([
            norm_bytes(sizes, config, [names.mlp_norm, names.mlp_output_norm], at)?,
            sizes.linear(&up, config.hidden_size, config.mlp_bias, names.is_gated())?,
            sizes.linear(&[down], width, config.mlp_bias, false)?,
        ]))
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        let mut all = self.up.kernels(["mlp norm", self.up_name]);
        all.extend(self.down.kernels(["down", "mlp output norm"]));
        all
    }

    /// Bytes of its weights.
    pub(super) fn weight_bytes(&self) -> usize {
        self.up.weight_bytes() + self.down.weight_bytes()
    }
}

/// The matrices into the sublayer and out of it.
fn parts(config: &DecoderConfig, width: usize, at: &dyn Fn(&str) -> String) -> (Vec<Part>, Part) {
    let names = config.names;
    let part = |name: &str, n: usize| Part::whole(at(name), n).transposed(names.transposed);
    let up = match &names.up {
        Up::Gated(parts) => parts.iter().map(|name| part(name, width)).collect(),
        Up::Stacked(name) => Part::split(&at(name), &[width, width]),
        Up::Plain(name) => vec![part(name, width)],
    };
    (up, part(names.down, config.hidden_size))
}
