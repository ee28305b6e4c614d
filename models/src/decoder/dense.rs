//! A feed-forward sublayer that is one for all tokens.

use sinew_ops::layers::{LinearOptions, NormedLinear, Place};

use super::residual::{Output, input_norm};
use super::step::{Activations, Step};
use crate::config::Up;
use crate::load::{LinearSpec, Loaded, Maker, Part, Stage};
use crate::{DecoderConfig, Result};

/// `down · act(up · x)`, or `down · (act(gate · x) ⊙ up · x)`.
#[derive(Debug)]
pub(super) struct Dense<S: Stage = Loaded> {
    /// Of the stream, or of the stream normed.
    up: S::Of<NormedLinear>,
    down: Output<S>,
    /// What `up` is called where kernels are listed.
    up_name: &'static str,
}

impl<S: Stage> Dense<S> {
    /// Makes that of a layer whose tensors are called `at(..)`.
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        width: usize,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        let (names, hidden, bias) = (config.names, config.hidden_size, config.mlp_bias);
        let precision = maker.precision();
        let (norm, dtype) = input_norm(config, precision, names.mlp_norm.map(at));
        let options = LinearOptions::new(dtype, precision.activations, precision.compute);
        let act = Some(config.hidden_act);
        let part = |name: &str, n: usize| Part::whole(at(name), n).transposed(names.transposed);
        let (up_name, options) = match names.is_gated() {
            true => ("gate and up", LinearOptions { gated: act, ..options }),
            false => ("up", LinearOptions { activation: act, ..options }),
        };
        let parts = match &names.up {
            Up::Gated(parts) => parts.iter().map(|name| part(name, width)).collect(),
            Up::Stacked(name) => Part::split(&at(name), &[width, width]),
            Up::Plain(name) => vec![part(name, width)],
        };
        let up = LinearSpec { parts, k: hidden, bias, options, max_rows: rows };
        let down = part(names.down, hidden);
        Ok(Self {
            up_name,
            up: maker.normed_linear(norm, up)?,
            down: Output::make(maker, config, down, (width, bias), names.mlp_output_norm.map(at), rows)?,
        })
    }
}

impl Dense {
    /// Adds what it makes of the stream to it.
    pub(super) fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        self.up.run(ctx, x.residual.hidden.read(n)?, Some(x.normed.write(n)?), x.gated.write(n)?)?;
        self.down.run(ctx, n, x.gated.read(n)?, &mut x.residual)
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        let mut all = self.up.kernels(["mlp norm", self.up_name]);
        all.extend(self.down.kernels(["down", "mlp output norm"]));
        all
    }
}
