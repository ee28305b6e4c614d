//! What follows the sum: scale, bias, activation, gate, residual, and the one rounding to the result's type.

use std::fmt;
use std::hash::{Hash, Hasher};

use sinew_tensor::DType;

use crate::activation::Activation;

/// Where the residual is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residual {
    /// An input of this type.
    Input(DType),
    /// The output itself: `D = … + beta·D`.
    Output,
}

/// What follows the sum, in the order of the [module](super)'s formula.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue {
    /// Factor of the sum.
    pub alpha: f32,
    /// Type of the bias, if there is one.
    pub bias: Option<DType>,
    /// The activation.
    pub activation: Option<Activation>,
    /// Whether the first half of the outputs gates the second.
    pub gated: bool,
    /// The residual.
    pub residual: Option<Residual>,
    /// Factor of the residual.
    pub beta: f32,
}

impl Default for Epilogue {
    fn default() -> Self {
        Self { alpha: 1.0, bias: None, activation: None, gated: false, residual: None, beta: 1.0 }
    }
}

impl Epilogue {
    /// The same with this factor of the sum.
    pub fn scaled(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// The type of a residual that is an input.
    pub fn residual_input(&self) -> Option<DType> {
        match self.residual {
            Some(Residual::Input(dtype)) => Some(dtype),
            _ => None,
        }
    }

    /// Factors compare by their bits, so that an epilogue can be a key.
    fn key(&self) -> impl Eq + Hash {
        let Self { alpha, bias, activation, gated, residual, beta } = *self;
        (alpha.to_bits(), bias, activation, gated, residual, beta.to_bits())
    }
}

impl PartialEq for Epilogue {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Epilogue {}

impl Hash for Epilogue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.alpha != 1.0 {
            write!(f, " alpha={}", self.alpha)?;
        }
        if let Some(dtype) = self.bias {
            write!(f, " bias({dtype})")?;
        }
        if let Some(activation) = self.activation {
            write!(f, " {activation}")?;
        }
        if self.gated {
            f.write_str(" gated")?;
        }
        match self.residual {
            Some(Residual::Input(dtype)) => write!(f, " residual({dtype})")?,
            Some(Residual::Output) => f.write_str(" residual(in place)")?,
            None => {}
        }
        if self.residual.is_some() && self.beta != 1.0 {
            write!(f, " beta={}", self.beta)?;
        }
        Ok(())
    }
}
