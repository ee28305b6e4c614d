//! Problems that a context was asked for, without their operator's types.

use std::any::Any;

use sinew_kernels::Operator;

use crate::choice;
use crate::{Context, Result};

/// A static problem and the representative of its calls.
pub(crate) trait Problem {
    /// Its operator's name.
    fn operator(&self) -> &'static str;
    /// Names it among its operator's problems: every field, word for word.
    fn key(&self) -> String;
    /// In the words of messages.
    fn words(&self) -> String;
    /// `(O::Static, O::Dynamic)`, for [`sinew_kernels::AnyTable::trial`].
    fn typed(&self) -> Box<dyn Any>;
    /// The rows that may serve it, by predicted seconds; none of a problem without work.
    ///
    /// # Errors
    /// An operator that the registry does not hold.
    fn candidates(&self, ctx: &Context) -> Result<Vec<(&'static str, f64)>>;
}

/// A problem of an operator.
pub(crate) struct ProblemOf<O: Operator>(pub O::Static, pub O::Dynamic);

impl<O: Operator> Problem for ProblemOf<O> {
    fn operator(&self) -> &'static str {
        O::NAME
    }
    fn key(&self) -> String {
        key::<O>(&self.0, &self.1)
    }
    fn words(&self) -> String {
        format!("{}; {}", self.0, self.1)
    }
    fn typed(&self) -> Box<dyn Any> {
        Box::new((self.0.clone(), self.1))
    }
    fn candidates(&self, ctx: &Context) -> Result<Vec<(&'static str, f64)>> {
        let Self(fixed, call) = self;
        if O::work(fixed, call).bytes == 0.0 {
            return Ok(Vec::new());
        }
        let hardware = ctx.device().hardware();
        let judged = choice::judge::<O>(ctx, fixed, call)?;
        let right = judged.allowed().filter(|row| ctx.trust().check(ctx, row, fixed, *call).is_ok());
        let mut all: Vec<_> = right.map(|row| (row.name, (row.cost)(fixed, call, hardware))).collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        Ok(all)
    }
}

/// [`Problem::key`].
pub(super) fn key<O: Operator>(fixed: &O::Static, like: &O::Dynamic) -> String {
    format!("{fixed:?} {like:?}")
}
